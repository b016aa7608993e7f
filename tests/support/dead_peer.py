"""A kept connection whose link is cut, in network namespaces of this process and its one host.

    unshare --net python -m tests.support.dead_peer FOLDER

Prints JSON: seconds until the connection was known to be dead, the stage at which the next command
failed, and how many logins the host saw after the link was mended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ctl.launchers import open_launcher, sshsocket
from ctl.launchers.errors import LaunchError
from tests.rigs import hosts
from tests.rigs.hosts import HostRig
from tests.rigs.stub import Stub
from tests.support.waiting import wait_until

NEAR, FAR = "10.0.0.1", "10.0.0.2"


def ip(*words: str, inside: int | None = None) -> None:
    """Run ip(8), in the namespace of a process if one is given."""
    enter = ["nsenter", "-t", str(inside), "-n"] if inside else []
    subprocess.run([*enter, "ip", *words], check=True)


def main() -> None:
    """Lay the link, use it, cut it, mend it."""
    folder = Path(sys.argv[1])
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) as keeper:
        assert keeper.stdin
        own = Path("/proc/self/ns/net").readlink()
        wait_until(lambda: Path(f"/proc/{keeper.pid}/ns/net").readlink() != own)
        ip("link", "set", "lo", "up")
        ip("link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(keeper.pid))
        for name, address, inside in (("near", NEAR, None), ("far", FAR, keeper.pid)):
            ip("addr", "add", f"{address}/30", "dev", name, inside=inside)
            ip("link", "set", name, "up", inside=inside)
        hosts._UNSHARE[:0] = ["nsenter", "-t", str(keeper.pid), "-n", "--"]
        hosts.free_address, hosts.free_port = lambda: FAR, lambda address: 2222
        sshsocket._UNANSWERED_MS = 2000
        with HostRig(folder) as rig:
            print(json.dumps(play(rig, Stub(folder), keeper.pid)))
        keeper.stdin.close()


def play(rig: HostRig, stub: Stub, far: int) -> dict[str, Any]:
    """What is told of it."""
    host = rig.add("n1", client=["ServerAliveInterval 1"])
    options = rig.options(pythonpath=[str(stub.path)], connect_timeout=2.0, retry_timeout=0.1)
    launcher: Any = open_launcher("ssh", options)
    with launcher:
        launcher.probe("n1", "/r")
        link = launcher._slots["n1"].link
        ip("link", "set", "far", "down", inside=far)
        cut = time.monotonic()
        wait_until(lambda: not link.alive(), what="the connection is known to be dead")
        known = time.monotonic() - cut
        try:
            launcher.probe("n1", "/r")
            stage = "none"
        except LaunchError as error:
            stage = error.stage
        ip("link", "set", "far", "up", inside=far)
        hosts.wait_for_banner(host)
        launcher.probe("n1", "/r")
        launcher.probe("n1", "/r")
    logins = host.log.read_text().count("Accepted publickey")
    return {"known_after": known, "stage": stage, "logins": logins}


if __name__ == "__main__":
    main()
