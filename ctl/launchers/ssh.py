"""Workers on other machines, over SSH: the only module that knows paramiko.

paramiko speaks the protocol; how a host is reached and whether its key is trusted is decided as ssh
would (`sshconfig`, `hosttrust`). Every wait here is bounded, also those where paramiko's own are
not: a time-out in `start_client` passes for success, `exec_command` waits for ever for an answer,
and a handshake that broke leaves its timer thread behind.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

import paramiko

from ctl.launchers import sshkeys
from ctl.launchers.base import Sink
from ctl.launchers.connections import ConnectedLauncher, Link
from ctl.launchers.errors import LaunchError
from ctl.launchers.hosttrust import known_kinds, require_trust
from ctl.launchers.script import COMMAND, clean
from ctl.launchers.sshblocks import SshConfig
from ctl.launchers.sshconfig import Settings
from ctl.launchers.sshkeys import Ask, Keyring
from ctl.launchers.sshsocket import Stream, open_stream
from fsworker.errors import UsageError

log = logging.getLogger(__name__)
_wire = log.getChild("wire")
# paramiko reports as errors, with tracebacks, what is told here in a sentence.
_wire.addFilter(lambda record: _wire.isEnabledFor(logging.DEBUG))

_CHUNK = 64 << 10
_IDLE_POLL = 1.0
_MAX_KEYS = 6
"""A usual server hangs up at the sixth key that it does not like."""


class SshLauncher(ConnectedLauncher):
    """Runs the script through sshd, with one connection per host that is kept until `close`.

    `ssh_config` is read in place of the user's own; `accept_new` adds the keys of hosts that are
    not in known_hosts yet, and never excuses a changed one.
    """

    name: ClassVar[str] = "ssh"
    options: ClassVar[frozenset[str]] = frozenset({"ssh_config", "accept_new"})

    def __init__(
        self, *, ssh_config: str | None = None, accept_new: bool = False, **common: Any
    ) -> None:
        super().__init__(**common)
        if ssh_config is not None and not os.path.isfile(ssh_config):
            raise UsageError(f"{ssh_config} is not a file: ssh_config must name one")
        if not isinstance(accept_new, bool):
            raise UsageError(f"accept_new must be true or false, not {accept_new!r}")
        self._config = SshConfig(ssh_config)
        self._accept_new = accept_new
        self._settings: dict[str, Settings] = {}
        self._keyring = Keyring()

    def unlock(self, hosts: Iterable[str], ask: Ask) -> None:
        """Ask, once for each, for the passphrases of keys that these hosts need.

        A host whose settings cannot be read is passed over: connecting to it will say so.
        """
        for host in hosts:
            try:
                self._settings[host] = self._effective(host)
            except LaunchError:
                continue
        end = time.monotonic() + self.timeouts.connect
        self._keyring.unlock(list(self._settings.values()), ask, end)

    def _effective(self, host: str) -> Settings:
        return self._config.effective(host, self.terms(host).ssh)

    def connect(self, host: str, end: float) -> Link:
        """A new connection to `host`; everything up to its login takes `connect` at most."""
        settings = self._settings.get(host) or self._effective(host)
        bound = min(self.timeouts.connect, settings.connect_timeout or self.timeouts.connect)
        end = min(end, time.monotonic() + bound)
        self._settings.pop(host, None)  # read again after a failure: somebody may mend them
        link = SshLink(settings, open_stream(settings, end), self._keyring)
        try:
            link.log_in(end, accept_new=self._accept_new)
        except BaseException:
            link.close()
            raise
        self._settings[host] = settings
        return link


class SshLink:
    """One connection to one host."""

    def __init__(self, settings: Settings, stream: Stream, keyring: Keyring) -> None:
        self.settings = settings
        self._keyring = keyring
        self._stream = stream
        self.transport = paramiko.Transport(stream.sock)
        self.transport.set_log_channel(_wire.name)

    def alive(self) -> bool:
        """Whether paramiko believes that the connection stands."""
        return bool(self.transport.is_active() and self.transport.is_authenticated())

    def close(self) -> None:
        """Close it and everything that paramiko would leave behind."""
        self._stream.cut()  # wakes paramiko's thread, which then ends by itself
        self.transport.close()
        if self.transport.is_alive():
            self.transport.join(2.0)
        self.transport.packetizer.complete_handshake()  # ends the timer of a broken handshake
        self._stream.close()

    def log_in(self, end: float, *, accept_new: bool) -> None:
        """Handshake, check of the host's key, and authentication."""
        with self._stream.bounded(end):
            self._shake_hands(end)
            key = self.transport.get_remote_server_key()
            require_trust(self.settings, key.get_name(), key.asbytes(), accept_new=accept_new)
            self._authenticate(end)

    def run(self, body: bytes, sink: Sink, end: float) -> int | None:
        """Run the constant command with `body` as its input."""
        with self._stream.bounded(end):
            try:
                return self._run(body, sink, end)
            except paramiko.ChannelException as error:
                text = f"it refuses to open a session: {error.text}"
                raise self._error("command", text) from error
            except (paramiko.SSHException, OSError, EOFError) as error:
                # Not by its type: a connection that the kernel gave up is a TimeoutError too.
                if self._stream.late or time.monotonic() > end - 0.1:
                    raise self._too_late() from error
                text = f"the connection ended during the command: {error or type(error).__name__}"
                passing = not self.transport.is_active()
                raise self._error("command", text, transient=passing) from error

    def _shake_hands(self, end: float) -> None:
        transport, left = self.transport, _left(end)
        transport.banner_timeout = transport.handshake_timeout = left
        transport.auth_timeout = transport.channel_timeout = left
        _prefer(transport, known_kinds(self.settings))
        done = threading.Event()
        transport.start_client(event=done)
        agreed = done.wait(left) and transport.is_active()
        if agreed:
            return
        cause = transport.get_exception()
        what = "while keys were exchanged" if transport.remote_version else "before its SSH banner"
        if self._stream.late or not done.is_set():
            raise self._error("banner", f"no answer {what}", timed_out=True) from cause
        wrong = isinstance(cause, paramiko.ssh_exception.IncompatiblePeer)
        wrong = wrong or "Indecipherable" in str(cause)
        detail = f": {clean(str(cause).encode())}" if wrong else ""
        text = f"the connection ended {what}{detail}"
        raise self._error("banner", text, transient=not wrong) from cause

    def _authenticate(self, end: float) -> None:
        notes: list[str] = []
        with sshkeys.agent(self.settings, end, notes) as held:
            candidates = self._keyring.candidates(self.settings, held, notes)
            for tried, (name, key) in enumerate(candidates, 1):
                self.transport.auth_timeout = _left(end)
                try:
                    more = self.transport.auth_publickey(self.settings.user, key)
                except (paramiko.SSHException, OSError, EOFError) as error:
                    notes.append(f"{name} was not accepted")
                    self._auth_failed(error, tried, notes)
                    continue
                if not more:
                    self._settle()
                    return
                notes.append(f"{name} was accepted but the host also wants {' or '.join(more)}")
        raise self._rejected(notes or ["there is no key to try"])

    def _auth_failed(self, error: BaseException, tried: int, notes: list[str]) -> None:
        if self._stream.late or "timeout" in str(error):
            raise self._error("auth", "no answer to our key", timed_out=True) from error
        if isinstance(error, paramiko.BadAuthenticationType):
            notes.append(f"it accepts only {', '.join(error.allowed_types)}")
            raise self._rejected(notes) from error
        if self.transport.is_active():
            return
        # Not get_banner(), which forgets what was said once the connection is down.
        words = clean(getattr(self.transport.auth_handler, "banner", None) or b"")
        if words and tried < _MAX_KEYS:
            # It took the key, said why the account may not come in, and hung up.
            text = f"it refuses {self.settings.user}: {words}"
            raise self._error("auth", text, denied=words) from error
        if tried >= _MAX_KEYS:
            notes.append(f"it hung up after {tried} keys (IdentitiesOnly limits them)")
            raise self._rejected(notes) from error
        text = "the connection ended during authentication"
        raise self._error("auth", text, transient=True) from error

    def _rejected(self, notes: list[str]) -> LaunchError:
        return self._error("auth", f"no access as {self.settings.user}: " + "; ".join(notes))

    def _settle(self) -> None:
        self.transport.set_keepalive(self.settings.keepalive)
        # paramiko wakes ten times a second to look around; an idle fleet should not.
        self._stream.sock.settimeout(_IDLE_POLL)

    def _run(self, body: bytes, sink: Sink, end: float) -> int | None:
        channel = self.transport.open_session(timeout=_left(end))
        with channel:
            channel.set_combine_stderr(True)
            channel.exec_command(COMMAND)
            channel.settimeout(_left(end))
            with suppress(OSError):  # it may end before it reads, and its words say why
                channel.sendall(body)
                channel.shutdown_write()
            return self._listen(channel, sink, end)

    def _listen(self, channel: paramiko.Channel, sink: Sink, end: float) -> int | None:
        while True:
            channel.settimeout(_left(end))
            data = channel.recv(_CHUNK)
            if sink(data):
                return None
            if not data:
                break
        channel.status_event.wait(max(0.0, end - time.monotonic()))
        if channel.exit_status >= 0:
            return int(channel.exit_status)
        if self._stream.late:
            raise self._too_late()
        if not self.transport.is_active():
            raise EOFError("it hung up")
        return None

    def _too_late(self) -> LaunchError:
        return self._error("timeout", "the command did not end in its time", timed_out=True)

    def _error(self, stage: str, text: str, **fields: Any) -> LaunchError:
        words = self._stream.words()
        if words:
            text += f"; its proxy said: {words}"
        return _error(self.settings.host, stage, text, **fields)


def _error(host: str, stage: str, text: str, **fields: Any) -> LaunchError:
    fields.setdefault("transient", bool(fields.get("timed_out")))
    return LaunchError(f"host {host}: {text}", host=host, stage=stage, **fields)


def _prefer(transport: paramiko.Transport, kinds: list[str]) -> None:
    options = transport.get_security_options()
    ours = list(options.key_types)
    wanted = [
        a for k in kinds for a in (("rsa-sha2-512", "rsa-sha2-256") if k == "ssh-rsa" else (k,))
    ]
    first = [a for a in wanted if a in ours]
    options.key_types = first + [a for a in ours if a not in first]


def _left(end: float) -> float:
    return max(0.05, end - time.monotonic())
