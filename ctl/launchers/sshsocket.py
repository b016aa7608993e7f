"""The byte stream to a host: TCP, or a proxy's standard streams, both as one real socket.

A proxy gets one end of a socket pair as its stdin and stdout. So there is a single kind of stream
above, whose reads can be bounded, and whose closing ends the proxy and is never waited for.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from ctl.launchers.deadlines import DEADLINES
from ctl.launchers.errors import LaunchError
from ctl.launchers.script import clean
from ctl.launchers.sshconfig import Settings, show

_UNANSWERED_MS = 30_000


class Stream:
    """An open socket to a host's sshd, and the proxy behind it if there is one.

    `late` tells that a bound of ours has cut it.
    """

    def __init__(
        self,
        sock: socket.socket,
        proxy: subprocess.Popen[bytes] | None = None,
        errors: IO[bytes] | None = None,
    ) -> None:
        self.sock = sock
        self.late = False
        self._proxy = proxy
        self._errors = errors

    def words(self) -> str:
        """What the proxy said, which is why the stream broke."""
        if self._errors is None:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        return clean(os.pread(self._errors.fileno(), 4096, max(0, size - 4096)))

    @contextmanager
    def bounded(self, end: float) -> Iterator[None]:
        """Cut the stream at the monotonic time `end`.

        That ends every wait on it, also those of libraries that take no time-out.
        """
        due = DEADLINES.add(end, self._cut_late)
        try:
            yield
        finally:
            DEADLINES.drop(due)

    def _cut_late(self) -> None:
        self.late = True
        self.cut()

    def cut(self) -> None:
        """Make every read from it end at once."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, waking whoever reads from it, and end the proxy."""
        self.cut()
        with suppress(OSError):
            self.sock.close()
        if self._proxy is not None:
            _end(self._proxy)
        if self._errors is not None:
            self._errors.close()


def open_stream(settings: Settings, end: float) -> Stream:
    """A stream to the host's sshd before the monotonic time `end`. LaunchError, stage connect."""
    if settings.proxy is not None:
        return _through_proxy(settings, settings.proxy)
    where = f"{settings.hostname} port {settings.port}"
    try:
        found = socket.getaddrinfo(
            settings.hostname, settings.port, settings.family, socket.SOCK_STREAM
        )
    except socket.gaierror as error:
        passing = error.errno == socket.EAI_AGAIN
        raise _error(
            settings, f"its name {settings.hostname} has no address: {error}", passing
        ) from error
    last: OSError | None = None
    for family, kind, proto, _, address in found:
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            return Stream(_connect(family, kind, proto, address, left, settings.bind_address))
        except OSError as error:
            last = error
    if last is None or isinstance(last, TimeoutError):
        raise _error(settings, f"no answer from {where} in time", True, timed_out=True) from last
    passing = isinstance(last, (ConnectionResetError, ConnectionAbortedError))
    raise _error(settings, f"no connection to {where}: {last.strerror or last}", passing) from last


class _Prompt(socket.socket):
    """A TCP socket that acknowledges at once what it received.

    sshd writes some answers in two small packets and, while a session is set up, lets the second
    wait for the acknowledgement of the first; the kernel would keep that back for 40 ms, twice a
    login. The kernel forgets the option, so it is set again after each read.
    """

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        self.acknowledge()
        return data

    def acknowledge(self) -> None:
        """Acknowledge what has come, now."""
        with suppress(OSError):  # it may have been closed meanwhile
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _connect(
    family: int, kind: int, proto: int, address: object, left: float, source: str | None = None
) -> socket.socket:
    sock = _Prompt(family, kind, proto)
    try:
        # Small requests and small answers: waiting to fill packets costs 40 ms a turn.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        sock.settimeout(left)
        if source is not None:
            sock.bind((source, 0))
        sock.connect(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        sock.acknowledge()
    except BaseException:
        sock.close()
        raise
    return sock


def _through_proxy(settings: Settings, argv: Sequence[str]) -> Stream:
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # the stream closes it
    quiet = {"SSH_ASKPASS_REQUIRE": "never"}
    try:
        proxy = subprocess.Popen(
            argv,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors,
            start_new_session=True,  # no terminal to ask on, and one group to end
            env={**os.environ, **quiet},
        )
    except OSError as error:
        ours.close()
        errors.close()
        raise _error(settings, f"its proxy {show(argv)!r} cannot start: {error}", False) from error
    finally:
        theirs.close()
    return Stream(ours, proxy, errors)


def _end(proxy: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Not reaped yet, so pid and group are still the ones that we made.
        if proxy.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(proxy.pid, number)
            with suppress(subprocess.TimeoutExpired):
                proxy.wait(2.0)


def _error(
    settings: Settings, text: str, transient: bool, *, timed_out: bool = False
) -> LaunchError:
    return LaunchError(
        f"host {settings.host}: {text}",
        host=settings.host,
        stage="connect",
        transient=transient or timed_out,
        timed_out=timed_out,
    )
