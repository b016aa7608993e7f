"""Whether two machines run the same code: a digest of this package, for showing who differs."""

from __future__ import annotations

import hashlib
import os

import fsworker
from fsworker import bundled


def package_digest() -> str:
    """Twelve hex digits that differ when the code of this package does."""
    if bundled.archive() is not None:
        return str(bundled.facts()["package_digest"])
    digest = hashlib.sha256()
    top = os.path.dirname(fsworker.__file__)
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if not f.startswith(("_", ".")))
        for name in sorted(f for f in files if f.endswith(".py")):
            path = os.path.join(folder, name)
            digest.update(os.path.relpath(path, top).encode())
            with open(path, "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()[:12]
