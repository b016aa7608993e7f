"""What a worker hears from outside its root: signals, and the end of the wrapper above it.

Both become events of its one loop, so that nothing ever interrupts it in the middle of a step.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
from collections.abc import Callable

from fsworker.errors import Refused
from fsworker.life import hostlock
from fsworker.life.lifetime import LIFE_FD_VARIABLE
from fsworker.protocol.layout import Owner

_OTHER_FILES = 128
"""Files that a worker has open besides a socket for each slot."""
GENTLE = signal.SIGUSR1
"""What a wrapper says that knows us: to end, without haste."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, GENTLE)


def wrapped() -> bool:
    """Whether a wrapper started this process and watches over it."""
    return LIFE_FD_VARIABLE in os.environ


def listen(
    selector: selectors.BaseSelector,
    on_signal: Callable[[int], None],
    on_wrapper_gone: Callable[[], None],
) -> list[socket.socket]:
    """Turn ending signals and the end of the wrapper into events; gives what must be kept."""
    reading, writing = socket.socketpair()
    for end in (reading, writing):
        end.setblocking(False)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    for signum in ENDING:
        signal.signal(signum, lambda *_: None)

    def deliver(_: int) -> None:
        for signum in reading.recv(64):
            if signum in ENDING:
                on_signal(signum)

    selector.register(reading, selectors.EVENT_READ, deliver)
    _watch_wrapper(selector, on_wrapper_gone)
    return [reading, writing]


def _watch_wrapper(selector: selectors.BaseSelector, gone: Callable[[], None]) -> None:
    text = os.environ.get(LIFE_FD_VARIABLE, "")
    if not (text.isascii() and text.isdigit()):
        return
    fd = int(text)

    def ended(_: int) -> None:
        if not os.read(fd, 64):
            selector.unregister(fd)
            gone()

    os.set_inheritable(fd, False)
    selector.register(fd, selectors.EVENT_READ, ended)


def need_files(count: int) -> None:
    """Let this process have that many files open. Refused where its hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count + _OTHER_FILES
    if most <= soft:
        return
    if hard != resource.RLIM_INFINITY and hard < most:
        raise Refused(
            f"{count} slots need {most} open files, and {hard} are this host's limit "
            "(ulimit -Hn): lower the concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def set_environment(root: str, run_id: str, owner: Owner, shard: int) -> None:
    """What user code, and the search for leftovers, find in the environment of every process."""
    names = {
        "FLEET_RUN": hostlock.run_key(root, run_id),
        "FLEET_RUN_ROOT": root,
        "FLEET_HOST": owner.host,
        "FLEET_SHARD": str(shard),
        "FLEET_INCARNATION": owner.incarnation,
    }
    os.environ.update(names)
