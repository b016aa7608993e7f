"""The current run: what verbs mean when nobody names a root.

One JSON file in the workspace, written only once a start succeeded. It is also written under, and
read from, the name that scripts of the controller before this one open by themselves.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

from fsworker.errors import FormatError, NotRunning, StorageError
from fsworker.protocol.fsops import storage_error

NAME = "shardfleet-current.json"
OLD_NAME = "sao-reward-current.json"


def paths(workspace: str) -> tuple[str, str]:
    """Where the current run is written down: our name, and the one of before."""
    folder = os.path.join(workspace, "tmp")
    return os.path.join(folder, NAME), os.path.join(folder, OLD_NAME)


def check(workspace: str) -> None:
    """StorageError when `write` could not write there; nothing is made yet."""
    folder = _lowest(os.path.dirname(paths(workspace)[0]))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        why = "is not writable for you" if os.path.isdir(folder) else "is no folder"
        raise StorageError(
            f"the workspace {workspace} cannot be used: {folder} {why}: give another --ws",
            path=folder,
        )


def _lowest(folder: str) -> str:
    """The folder itself, or the lowest above it that is there."""
    above = os.path.dirname(folder)
    return folder if os.path.lexists(folder) or above == folder else _lowest(above)


def write(workspace: str, meta: dict[str, Any]) -> str:
    """Make the run of `meta` the current one; the file that says so."""
    ours, old = paths(workspace)
    data = json.dumps(meta, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    try:
        os.makedirs(os.path.dirname(ours), exist_ok=True)
        for path in (old, ours):
            _replace(path, data)
    except OSError as error:
        raise storage_error(error, "write", ours) from None
    return ours


def read(workspace: str) -> tuple[str, str]:
    """(root, file) of the current run. NotRunning when there is none."""
    for path in paths(workspace):
        root = _root_in(path)
        if root is not None:
            return root, path
    raise NotRunning(
        f"there is no current run in {os.path.join(workspace, 'tmp')}: give --root",
        path=paths(workspace)[0],
    )


def forget(workspace: str, root: str) -> None:
    """Drop the current run if it is the one at `root`, which is gone."""
    for path in paths(workspace):
        try:
            if _root_in(path) == root:
                os.unlink(path)
        except (FormatError, StorageError, OSError):
            continue  # not ours to judge: it names no root that was removed


def _root_in(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            meta = json.loads(file.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, "read", path) from None
    except ValueError:
        raise FormatError(
            f"{path} is not valid JSON: remove it or give --root", path=path
        ) from None
    root = meta.get("root") if isinstance(meta, dict) else None
    if not isinstance(root, str) or not os.path.isabs(root):
        raise FormatError(
            f"{path}: field 'root' must be an absolute path, not {root!r}: give --root", path=path
        )
    return root


def _replace(path: str, data: bytes) -> None:
    temp = f"{path}.{secrets.token_hex(4)}"
    try:
        with open(temp, "xb") as file:
            file.write(data)
        os.replace(temp, path)
    except OSError:
        if os.path.exists(temp):
            os.unlink(temp)
        raise
