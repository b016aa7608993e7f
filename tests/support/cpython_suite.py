"""CPython's own tests of executors, wherever this machine has them.

Distributions leave them out or ship them apart (Debian: libpython3.11-testsuite), so they are
looked for beside this interpreter, beside the system's of the same version, and in the folder that
SHARDFLEET_CPYTHON_TESTS names. They are linked into a folder of our own under a top-level name, by
which this process and the slots of workers import the same functions.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

NAME = "test_concurrent_futures"


def find() -> Path | None:
    """The file of the tests, for this version of Python; None when there is none here."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    given = os.environ.get("SHARDFLEET_CPYTHON_TESTS")
    folders = [given] if given else []
    folders += [os.path.join(os.path.dirname(os.__file__), "test"), f"/usr/lib/{version}/test"]
    files = (Path(folder, f"{NAME}.py") for folder in folders)
    return next((file for file in files if file.is_file()), None)


def load(file: Path, folder: Path) -> ModuleType:
    """Import the tests from a link in `folder`."""
    (folder / f"{NAME}.py").symlink_to(file)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(NAME)
    finally:
        sys.path.remove(str(folder))
