"""Files and folders that a command writes for a user: they appear whole, or not at all.

A command that is killed leaves a hidden one behind, which the next one in that folder removes if
the process that made it is dead for certain: one of this boot of this machine, and of this pid
namespace, that is no more. Whoever cannot be judged from here may be at work on another machine.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from fsworker import identity, procfs
from fsworker.errors import Refused, StorageError, UsageError, spelt
from fsworker.protocol import fsfolders
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import Identity

log = logging.getLogger(__name__)

_NAME = re.compile(
    r"\.merge\.tmp~(?P<boot>[^~]+)~(?P<ns>\d+)~(?P<pid>\d+)~(?P<start>\d+)~[0-9a-f]+"
)


class Target:
    """An output that is written under `temporary` and then published under its name.

    Raises UsageError for a name that cannot be written, Refused for one that exists (`force`:
    unless it is a file). `hint` says what else to do then.
    """

    def __init__(self, path: str, *, force: bool = False, hint: str = "remove it first") -> None:
        self.path = path
        self._folder, self._name = os.path.split(os.path.abspath(path))
        if not os.path.isdir(self._folder):
            raise UsageError(f"{self._folder}: there is no such folder", path=self._folder)
        if not path:
            raise UsageError("an output has no name: say which file to write")
        _refuse_long(path)
        special = os.path.exists(path) and not os.path.isfile(path)  # /dev/null would be replaced
        if os.path.lexists(path) and (not force or special):
            if special:
                hint = "remove it first" if os.path.isdir(path) else "it is no regular file"
            raise Refused(f"{path} exists: {hint}", path=path)
        self._store = Store(self._folder)
        self._hidden = hidden_name()
        self.temporary = os.path.join(self._folder, self._hidden)

    def publish(self) -> None:
        """Give it its name."""
        try:
            self._store.rename(self._hidden, self._name)
            self._store.sync_folder("")
        except OSError as error:
            raise storage_error(error, "write", f"{self._folder}/{self._name}") from error

    def drop(self) -> None:
        """Remove what was written and is not wanted; nothing, where nothing was."""
        fsfolders.remove_tree(self._store, self._hidden)

    def sweep(self) -> None:
        """Remove what commands that were killed left in the folder; what cannot be told stays."""
        with suppress(OSError):
            for name in self._store.scan(""):
                if is_left_over(name) and os.lstat(self._store.path(name)).st_uid == os.geteuid():
                    log.info("removing %s, whose process is dead", self._store.path(name))
                    fsfolders.remove_tree(self._store, name)


@contextmanager
def named(targets: Sequence[Target]) -> Iterator[None]:
    """Have errors of the storage tell the names that a user gave, not the hidden ones."""
    try:
        yield
    except StorageError as error:
        for target in targets:
            hidden = spelt(target.temporary)  # as errors tell a name that is no UTF-8
            if hidden in str(error):
                words = str(error).replace(hidden, target.path)
                raise StorageError(words, path=target.path) from error
        raise


def hidden_name() -> str:
    """A name that tells who writes under it; short, since the final name may be a long one."""
    place, stat = identity.Place.here(""), procfs.read_stat(os.getpid())
    namespace = "".join(filter(str.isdigit, place.pid_ns)) or "0"
    start = stat.start if stat is not None else 0
    who = f"{place.boot_id or '-'}~{namespace}~{os.getpid()}~{start}"
    return f".merge.tmp~{who}~{secrets.token_hex(4)}"


def is_left_over(name: str) -> bool:
    """Whether this is such a name, of a process that is dead for certain."""
    found, here = _NAME.fullmatch(name), identity.Place.here("")
    if found is None or not here.boot_id or found["boot"] != here.boot_id:
        return False
    if f"pid:[{found['ns']}]" != here.pid_ns:
        return False
    who = Identity("", here.boot_id, here.pid_ns, int(found["pid"]), int(found["start"]))
    return identity.provably_dead(who, here)


def _refuse_long(path: str) -> None:
    """UsageError for a name that the filesystem has no room for: before hours of merging."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"{path:.80}…: that name is longer than the filesystem allows", path=path
            ) from None
