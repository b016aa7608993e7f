"""The digest of what a merge wrote, by the same functions that check uploads."""

from __future__ import annotations

import os

from fsworker.protocol import artifacts, fsfolders
from fsworker.protocol.fsops import Store, storage_error


def digest_of(path: str) -> str:
    """The SHA-256 of a file, or of a folder as `done.json` would have it. StorageError."""
    folder, name = os.path.split(os.path.abspath(path))
    store = Store(folder)
    try:
        if os.path.isdir(path):
            return artifacts.tree_digest(artifacts.digest_files(store, name))
        return fsfolders.digest(store, name)[1]
    except OSError as error:
        raise storage_error(error, "read", path) from error
