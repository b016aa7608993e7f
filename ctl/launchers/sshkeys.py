"""The keys with which a host is asked for entry: the agent's, those in files, and locked ones.

A key file with a passphrase is unlocked before any host is contacted, by asking once; nothing is
ever asked by a watcher, from a script, or while a connection waits.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import paramiko
from paramiko.agent import AgentSSH

from ctl.launchers.sshconfig import Settings, public_blob

TRIES = 3
"""How often a passphrase is asked for, as ssh does."""

_CERTIFICATE = "-cert.pub"
Version = tuple[tuple[int, int, int] | None, ...]
Ask = Callable[[str], str | None]
"""Gives what a person typed at this prompt; None when nobody can be asked."""


@dataclass
class Keyring:
    """Keys of files, each read once until it changes. `unlocked` are those with a passphrase."""

    unlocked: dict[str, paramiko.PKey] = field(default_factory=dict)
    _read: dict[str, tuple[Version, paramiko.PKey]] = field(default_factory=dict)

    def unlock(self, hosts: Iterable[Settings], ask: Ask, end: float) -> None:
        """Ask for the passphrase of each locked key that a host may need and no agent holds."""
        tried: set[str] = set()
        for settings in hosts:
            files = [f for f in settings.key_files() if f not in tried and f not in self.unlocked]
            tried.update(files)
            locked = [f for f in files if _is_locked(f)]
            if not locked:
                continue
            with agent(settings, end, []) as held:
                seen = {key.asbytes() for key in held}
            for file in locked:
                if public_blob(file) not in seen:
                    self._unlock(file, ask)

    def _unlock(self, file: str, ask: Ask) -> None:
        for _ in range(TRIES):
            given = ask(f"passphrase of {file}: ")
            if not given:
                return  # it will be said of each host that it has a passphrase
            try:
                self.unlocked[file] = paramiko.PKey.from_path(file, given.encode())  # type: ignore[arg-type]  # what it hands on wants bytes
                return
            except (paramiko.SSHException, ValueError):
                continue

    def candidates(
        self, settings: Settings, held: list[paramiko.PKey], notes: list[str]
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        """The keys to try, each with its name, in the order in which ssh tries them.

        But a key whose file is named comes before what else an agent holds: behind six of those ssh
        never comes to it, since the server has hung up.
        """
        files = settings.key_files()
        named = {public_blob(file) for file in files}
        configured = [k for k in held if k.asbytes() in named]
        others = [] if settings.identities_only else [k for k in held if k.asbytes() not in named]
        first, last = (configured, others) if settings.gives_keys else (configured + others, [])
        for key in first:
            yield f"the agent's key {key.get_name()}", key
        yield from self._of_files(files, {key.asbytes() for key in held}, notes)
        for key in last:
            yield f"the agent's key {key.get_name()}", key

    def _of_files(
        self, files: Iterable[str], seen: set[bytes], notes: list[str]
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        """The keys in these files but those that were `seen` in an agent."""
        for file in files:
            try:
                key = self.unlocked.get(file) or self._from_file(file)
            except _UNUSABLE as error:
                # cryptography says by a TypeError that it needs a passphrase
                locked = isinstance(error, TypeError)
                why = "has a passphrase" if locked else f"is unusable: {error}"
                if public_blob(file) not in seen:
                    notes.append(f"{file} {why}")
                continue
            if key.public_blob or key.asbytes() not in seen:
                yield file, key

    def _from_file(self, file: str) -> paramiko.PKey:
        """The key in a file; parsing it for every host would cost as much as using it."""
        version = _version(file)
        known = self._read.get(file)
        if known is None or known[0] != version:
            known = self._read[file] = (version, paramiko.PKey.from_path(file))
        return known[1]


def _version(file: str) -> Version:
    """What changes when the key does, or the certificate beside it that comes with it."""
    stem = file.removesuffix(_CERTIFICATE)
    found: list[tuple[int, int, int] | None] = []
    for path in (stem, stem + _CERTIFICATE):
        try:
            info = os.stat(path)
            found.append((info.st_mtime_ns, info.st_size, info.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


_UNUSABLE = (paramiko.SSHException, ValueError, OSError, TypeError)


def _is_locked(file: str) -> bool:
    try:
        paramiko.PKey.from_path(file)
    except TypeError:
        return True
    except (paramiko.SSHException, ValueError, OSError):
        return False
    return False


@contextmanager
def agent(settings: Settings, end: float, notes: list[str]) -> Iterator[list[paramiko.PKey]]:
    """The keys that the agent holds; a missing or silent agent holds none."""
    if settings.agent is None:
        yield []
        return
    keys: list[paramiko.PKey] = []
    # A socket of our own: paramiko's waits for ever for an agent that does not answer.
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(max(0.05, end - time.monotonic()))
        try:
            sock.connect(settings.agent)
            agent = AgentSSH()
            agent._connect(sock)  # type: ignore[attr-defined]  # the only way to give it a socket
            keys += agent.get_keys()
        except (OSError, paramiko.SSHException, struct.error) as error:
            notes.append(f"the agent at {settings.agent} does not answer ({error})")
        yield keys
