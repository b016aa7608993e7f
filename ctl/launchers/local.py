"""Workers on this machine: every host name is a label for it.

For one big machine, for trying things out, and as the twin that keeps the contract honest: the
script is the same as over SSH, with a child process as the only difference.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import ClassVar

from ctl.launchers.base import ScriptLauncher, Sink
from ctl.launchers.errors import LaunchError
from ctl.launchers.script import COMMAND

_CHUNK = 64 << 10


class LocalLauncher(ScriptLauncher):
    """Runs the script in a child of this process, in a session of its own."""

    name: ClassVar[str] = "local"
    options: ClassVar[frozenset[str]] = frozenset()

    def run_script(self, host: str, body: bytes, sink: Sink, timeout: float) -> int | None:
        """Run the script here; `host` only names it in errors."""
        end = time.monotonic() + timeout
        try:
            child = subprocess.Popen(
                COMMAND.split(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
                cwd="/",
            )
        except OSError as error:
            text = f"host {host}: no shell can be started here: {error}"
            raise LaunchError(text, host=host, stage="command", transient=True) from error
        with child:
            patience = 0.0
            try:
                status = _converse(host, child, body, sink, end)
                patience = 2.0
                return status
            finally:
                _end(child, patience)


def _environment() -> dict[str, str]:
    # A session over SSH would not have them, and a worker must not take ours for its own.
    return {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}


def _converse(
    host: str, child: subprocess.Popen[bytes], body: bytes, sink: Sink, end: float
) -> int | None:
    assert child.stdin and child.stdout
    todo = memoryview(body)
    os.set_blocking(child.stdin.fileno(), False)
    os.set_blocking(child.stdout.fileno(), False)
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdin, selectors.EVENT_WRITE)
        ready.register(child.stdout, selectors.EVENT_READ)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise _too_late(host)
            for key, _ in ready.select(left):
                if key.fileobj is child.stdin:
                    todo = _write(child.stdin.fileno(), todo)
                    if not todo:
                        ready.unregister(child.stdin)
                        child.stdin.close()
                    continue
                data = os.read(child.stdout.fileno(), _CHUNK)
                if sink(data):
                    return None
                if not data:
                    return _status(host, child, end)


def _write(fd: int, todo: memoryview) -> memoryview:
    try:
        return todo[os.write(fd, todo) :]
    except BrokenPipeError:  # the shell ended early; what it printed tells why
        return todo[:0]


def _status(host: str, child: subprocess.Popen[bytes], end: float) -> int:
    try:
        return child.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise _too_late(host) from None


def _too_late(host: str) -> LaunchError:
    return LaunchError(
        f"host {host}: the command did not end in its time",
        host=host,
        stage="timeout",
        transient=True,
        timed_out=True,
    )


def _end(child: subprocess.Popen[bytes], patience: float) -> None:
    # After a complete reply the host side is about to end by itself; it must be able to.
    if child.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
    if child.returncode is None:
        # Not reaped yet, so the group is still the one that we made.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
