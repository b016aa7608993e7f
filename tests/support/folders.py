"""Folders that are unlike others: in memory, or on a filesystem of a few megabytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tiny_filesystem(place: Path, megabytes: int) -> Iterator[Path]:
    """A filesystem of so many megabytes at `place`; skips where none can be mounted."""
    place.mkdir()
    size = f"size={megabytes}m,mode=0700"
    argv = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tiny filesystem cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def in_memory(prefix: str) -> Iterator[Path]:
    """A folder in memory where there is one: what syncs tens of thousands of times needs it."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    yield folder
    shutil.rmtree(folder)
