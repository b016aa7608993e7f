"""A worker for tests of what surrounds one: it writes down each of its lives, then does as told.

    scripted_worker.py LIVES_FILE ACTION [--shard N …]

The options of a real worker may follow. ACTION: `exit:CODE` at once, `signal:NUMBER` to itself,
`serve` until TERM or until the wrapper is gone, `drain:SECONDS` after TERM, `deaf` to TERM and to
the end of its wrapper, `strays` (leaves helpers behind and dies), `noise` (writes for ever). One
action, or several split by commas, one a life; the last repeats.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SLEEP = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main() -> int:
    lives = Path(sys.argv[1])
    before = lives.read_text().count("\n") if lives.exists() else 0
    actions = sys.argv[2].split(",")
    action, _, argument = actions[min(before, len(actions) - 1)].partition(":")
    term_read, term_write = os.pipe()
    deaf = action == "deaf"
    os.set_blocking(term_write, False)
    signal.set_wakeup_fd(term_write)  # a handler would not run until `select` is over
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: None)
    lock = None if "FLEET_LIFE_FD" in os.environ else live_without_wrapper()
    helpers = leave_strays() if action == "strays" else []
    fds = {int(n): os.readlink(f"/proc/self/fd/{n}") for n in ("0", "1", "2")}
    me = {
        "pid": os.getpid(),
        "sid": os.getsid(0),
        "cwd": os.getcwd(),
        "env": {k: v for k, v in os.environ.items() if k.startswith("FLEET_")},
        "fds": fds,
        "helpers": helpers,
        "own_lock": lock is not None,
        "argv": sys.argv,
    }
    with lives.open("a") as file:
        file.write(json.dumps(me) + "\n")
    if action == "exit":
        return int(argument)
    if action == "signal":
        os.kill(os.getpid(), int(argument))
    if action == "strays":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "noise":
        while True:
            os.write(1, b"x" * 99 + b"\n")
            time.sleep(0.0005)
    if deaf:
        time.sleep(600)
    return serve(term_read, float(argument or 0))


def serve(term: int, drain: float) -> int:
    life = int(os.environ.get("FLEET_LIFE_FD", "-1"))
    ready, _, _ = select.select([term, *([life] if life >= 0 else [])], [], [])
    if term in ready:
        time.sleep(drain)
        print("drained", flush=True)
    return 0


def live_without_wrapper() -> socket.socket:
    """What a worker does that was started directly: lock, identity, pid file."""
    from fsworker import identity
    from fsworker.life import hostlock, lifefiles
    from fsworker.protocol.fsops import Store
    from fsworker.protocol.records.run import HostIdentity

    option = {name: sys.argv[sys.argv.index(name) + 1] for name in ("--root", "--host", "--launch")}
    root, host = option["--root"], option["--host"]
    store = Store(root)
    lock = hostlock.hold(root, lifefiles.read_manifest(store).run_id, host)
    me = identity.identify(os.getpid(), identity.Place.here(host))
    lifefiles.publish(store, HostIdentity(host, int(option["--launch"]), worker=me))
    return lock


def leave_strays() -> list[int]:
    """Helpers in their own session: with our environment, without any, and without a parent."""
    argv = [sys.executable, "-c", SLEEP]
    own = subprocess.Popen(argv, start_new_session=True)
    clean = subprocess.Popen(argv, start_new_session=True, env={})
    shell = ["/bin/sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *argv]
    orphan = int(subprocess.run(shell, stdout=subprocess.PIPE, check=True).stdout)
    time.sleep(0.2)  # so that they ignore TERM by the time that it comes
    return [own.pid, clean.pid, orphan]


if __name__ == "__main__":
    sys.exit(main())
