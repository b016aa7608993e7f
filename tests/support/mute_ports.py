"""Ports that answer like hosts which are ill, in a process of their own.

    python mute_ports.py ADDRESS

Prints one JSON line: kind to port. `deaf` accepts and is silent, `mute` says its SSH banner and is
silent, `rude` hangs up, `hole` answers no more, like a host that is gone: its backlog is full. Ends
with its stdin.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys

BANNER = b"SSH-2.0-OpenSSH_9.2\r\n"


def main() -> None:
    """Serve until stdin ends."""
    address = sys.argv[1]
    chosen = selectors.DefaultSelector()
    chosen.register(sys.stdin, selectors.EVENT_READ, "end")
    ports = {}
    for kind in ("deaf", "mute", "rude"):
        server = socket.create_server((address, 0), backlog=128)
        ports[kind] = server.getsockname()[1]
        chosen.register(server, selectors.EVENT_READ, kind)
    hole = socket.create_server((address, 0), backlog=0)
    ports["hole"] = hole.getsockname()[1]
    fill = [socket.socket() for _ in range(4)]
    for one in fill:
        one.setblocking(False)
        one.connect_ex(hole.getsockname())
    print(json.dumps(ports), flush=True)
    while True:
        for key, _ in chosen.select():
            if key.data == "end":
                return
            _serve(chosen, key)


def _serve(chosen: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    one = key.fileobj
    assert isinstance(one, socket.socket)
    if key.data == "guest":
        try:
            gone = not one.recv(1 << 16)
        except OSError:
            gone = True
        if gone:
            chosen.unregister(one)
            one.close()
        return
    guest, _ = one.accept()
    if key.data == "rude":
        guest.close()
        return
    if key.data == "mute":
        guest.sendall(BANNER)
    chosen.register(guest, selectors.EVENT_READ, "guest")


if __name__ == "__main__":
    main()
