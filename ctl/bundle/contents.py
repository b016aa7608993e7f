"""What goes into a bundle: our own package, and the pure Python of the two that it needs.

Each by its name in the file. Nothing compiled is taken: msgpack falls back to its own Python.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from fsworker.errors import FleetError

NEEDED = ("click", "msgpack")
"""The installed packages that a worker imports."""
VENDOR = "vendor"
MAIN = "__main__.py"
_ENTRY = "fsworker/bundle_main.py"


def gather() -> dict[str, bytes]:
    """The files of a bundle: sources by their paths in it. FleetError for what is not here."""
    found = dict(_sources("fsworker", ""))
    found[MAIN] = found.pop(_ENTRY)
    for name in NEEDED:
        found |= _sources(name, f"{VENDOR}/")
        found |= _papers(name)
    return found


def _sources(package: str, below: str) -> Iterator[tuple[str, bytes]]:
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise FleetError(f"the package {package} is not installed here, so it cannot be bundled")
    for folder, folders, files in os.walk(places[0]):
        folders[:] = [f for f in folders if f != "__pycache__" and not f.startswith(".")]
        inside = os.path.relpath(folder, places[0])
        for name in files:
            if name.endswith(".py"):
                path = os.path.normpath(os.path.join(package, inside, name))
                with open(os.path.join(folder, name), "rb") as file:
                    yield below + path, file.read()


def _papers(package: str) -> Mapping[str, bytes]:
    """Version and license of a package, as they lie beside it where it is installed."""
    found = {}
    for path in importlib.metadata.files(package) or ():
        folder = path.parts[0]
        papers = path.name in ("METADATA", "COPYING") or "LICENSE" in path.name.upper()
        if folder.endswith(".dist-info") and papers:
            found[f"{VENDOR}/{path.as_posix()}"] = path.read_binary()
    return found
