"""Leaving the session that started us, completely, and telling it first whether that worked.

A process started over SSH that keeps one of the channel's pipes makes its starter hang; one that
stays in the session dies with it. So: two forks and a session of its own in between (no terminal
can ever be acquired), the root folder as working directory, no descriptor of before. The only tie
left is a pipe for one report, so the starter knows the outcome instead of guessing.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Collection

log = logging.getLogger("fsworker.life.detach")


def run_detached(body: Callable[[int], int], wait: float) -> bytes:
    """Run `body(report_fd)` in a detached process and return what it writes there until it closes.

    Returns after at most `wait` seconds; an empty answer means that no report came. `body`'s return
    value is the exit code of the detached process.
    """
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        _become_detached(body, writing)
    os.close(writing)
    try:
        report = _read_until(reading, time.monotonic() + wait)
    finally:
        os.close(reading)
        os.waitpid(middle, 0)
    return report


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor except `keep`."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that was listing the folder


def point_to(target: int | None, fds: Collection[int]) -> None:
    """Make `fds` lead where `target` leads; to nowhere if it is None."""
    source = os.open(os.devnull, os.O_RDWR) if target is None else target
    for fd in fds:
        os.dup2(source, fd)
    if target is None and source not in fds:
        os.close(source)


def _become_detached(body: Callable[[int], int], report: int) -> None:
    """The rest of the child's life; never returns, so that no code of the parent runs twice."""
    code = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        os.chdir("/")
        close_all_but({0, 1, 2, report})
        point_to(None, (0, 1, 2))
        code = body(report)
    except BaseException:
        log.exception("the detached process failed")
    finally:
        os._exit(code)


def _read_until(fd: int, deadline: float) -> bytes:
    data = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            chunk = os.read(fd, 4096)
            if not chunk:
                break
            data += chunk
    return data
