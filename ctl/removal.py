"""Removing a run root, and nothing else, whatever lies in it.

Every step goes through the descriptor of a folder that was opened without following links, so that
a link inside the root, or one that is slipped in while this runs, loses only itself. The manifest
goes first: from then on no reader takes the folder for a run. The marker goes last: until then a
second cleanup knows the folder for ours and finishes what this one could not.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from fsworker.errors import Refused, StorageError
from fsworker.protocol import layout

PATIENCE = 10.0
"""Seconds for which files that come back are removed again: servers keep deleted open files."""

_PAUSE = 0.2
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LATER = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ESTALE)


@dataclass
class _Pass:
    """One walk over the root: the paths that stayed, and why."""

    mount: str
    left: list[tuple[str, OSError]] = field(default_factory=list)

    def failed(self, path: str, error: OSError) -> None:
        if error.errno != errno.ENOENT:
            self.left.append((path, error))


def remove_root(real: str, marker: bytes, patience: float = PATIENCE) -> None:
    """Remove the run root at `real`, a real path. StorageError names what cannot be removed.

    `marker` is what a root without a marker gets first, so that it is known for ours to the end.
    """
    parent = os.open(os.path.dirname(real), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove_below(parent, real, marker, time.monotonic() + patience)
    finally:
        os.close(parent)


def hide(real: str, marker: bytes) -> None:
    """Take the manifest away, so that nobody takes the folder for a run from now on."""
    top = os.open(real, _FOLDER)
    try:
        _put_marker(top, real, marker)
        walk = _Pass("")
        _remove_file(top, layout.MANIFEST, os.path.join(real, layout.MANIFEST), walk)
        if walk.left:
            raise _stays(*walk.left[0])
    finally:
        os.close(top)


def _remove_below(parent: int, real: str, marker: bytes, end: float) -> None:
    name = os.path.basename(real)
    top = _open_folder(parent, name, real)
    try:
        _put_marker(top, real, marker)
        _empty_but_marker(top, real, end)
        _retire_marker(top, real)
        _last_step(parent, top, real, marker, end)
    finally:
        os.close(top)


def _put_marker(top: int, real: str, marker: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(layout.MARKER, flags, 0o600, dir_fd=top)
    except FileExistsError:
        return
    except OSError as error:
        raise _stays(real, error) from None
    with os.fdopen(fd, "wb") as file:
        file.write(marker)


def _open_folder(parent: int, name: str, real: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        raise _stays(real, error) from None


def _empty_but_marker(top: int, real: str, end: float) -> None:
    """Remove everything but the marker, again and again until it stays away or time is up."""
    mount = _mount_id(top)
    while True:
        walk = _Pass(mount)
        _remove_file(top, layout.MANIFEST, os.path.join(real, layout.MANIFEST), walk)
        _empty(top, real, walk, keep=layout.MARKER)
        if not walk.left:
            return
        soon = any(e.errno in _LATER for _, e in walk.left) or any(
            os.path.basename(p).startswith(".nfs") for p, _ in walk.left
        )
        if not soon or time.monotonic() >= end:
            raise _stays(*walk.left[0])
        time.sleep(_PAUSE)


def _empty(folder: int, path: str, walk: _Pass, keep: str = "") -> None:
    for name in _names(folder, path, walk):
        if name == keep:
            continue
        entry = os.path.join(path, name)
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            walk.failed(entry, error)
            continue
        if not stat.S_ISDIR(found.st_mode):
            _remove_file(folder, name, entry, walk)
        else:
            _remove_folder(folder, name, entry, walk)


def _mount_id(folder: int) -> str:
    """Which mount an open folder lies on. A bind mount has the same device as what it shows."""
    with open(f"/proc/self/fdinfo/{folder}", encoding="ascii") as info:
        return next((line for line in info if line.startswith("mnt_id:")), "")


def _names(folder: int, path: str, walk: _Pass) -> Iterator[str]:
    try:
        return iter(os.listdir(folder))
    except OSError as error:
        walk.failed(path, error)
        return iter(())


def _remove_folder(parent: int, name: str, path: str, walk: _Pass) -> None:
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        walk.failed(path, error)
        return
    before = len(walk.left)
    try:
        if _mount_id(folder) != walk.mount:
            walk.failed(path, OSError(errno.EXDEV, "something else is mounted there"))
        else:
            _empty(folder, path, walk)
        if len(walk.left) == before:  # else what is in it was named already
            _remove_empty(parent, name, folder, path, walk)
    finally:
        os.close(folder)


def _remove_empty(parent: int, name: str, folder: int, path: str, walk: _Pass) -> None:
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        inside = next(_names(folder, path, walk), "") if error.errno == errno.ENOTEMPTY else ""
        walk.failed(os.path.join(path, inside) if inside else path, error)


def _remove_file(folder: int, name: str, path: str, walk: _Pass) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError as error:
        walk.failed(path, error)


def _retire_marker(top: int, real: str) -> None:
    walk = _Pass("")
    _remove_file(top, layout.MARKER, os.path.join(real, layout.MARKER), walk)
    if walk.left:
        raise _stays(*walk.left[0])


def _last_step(parent: int, top: int, real: str, marker: bytes, end: float) -> None:
    """Remove the empty root. A leftover of the server may come back for a moment even now."""
    while True:
        try:
            os.rmdir(os.path.basename(real), dir_fd=parent)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _LATER or time.monotonic() >= end:
                _put_marker(top, real, marker)
                raise _stays(real, error) from None
        time.sleep(_PAUSE)
        _empty(top, real, _Pass(_mount_id(top)))


def _stays(path: str, error: OSError) -> StorageError | Refused:
    if error.errno == errno.ELOOP:
        return Refused(f"{path} became a symlink while it was removed", path=path)
    return StorageError(
        f"cannot remove {path}: {error.strerror}: remove what holds it and run cleanup again",
        path=path,
    )
