"""Locks for whoever works on a run root from outside: comfort where they are, never relied upon.

A lock is `flock`, so it ends with its holder. Where a filesystem has none, the library that is used
would make the presence of the file the lock, in some of its versions: then whoever is killed, and
any file that an earlier lock left, would keep everybody out for ever. So there is no lock there.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from fsworker.protocol.fsops import Store

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What `flock` says where there is none: not at all, not on this filesystem, not by its server."""


def lock_of(store: Store, name: str) -> BaseFileLock:
    """The lock by a file of the root, which nobody has taken yet."""
    from filelock import FileLock  # lazily: reading commands and workers do without

    path, mode = store.path(name), 0o660 if store.group_writable else 0o600
    try:
        return FileLock(path, mode=mode, fallback_to_soft=False)
    except TypeError:  # older than this choice
        return FileLock(path, mode=mode)


def take(lock: BaseFileLock, timeout: float) -> None:
    """Take it within some seconds.

    Raises the library's Timeout when another holds it, NotImplementedError where there are no
    locks, OSError where the storage fails.
    """
    try:
        lock.acquire(timeout=timeout)
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise NotImplementedError(str(error)) from error
        raise
