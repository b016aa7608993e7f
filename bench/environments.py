"""Environments of their own for heavy contenders: made on demand, kept in a cache folder.

Ray, Dask and Celery bring dozens of packages each, whose versions must not fight with ours.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

BASE = ("msgpack>=1.0.5",)


def cache() -> str:
    """Where they are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("SHARDFLEET_BENCH_CACHE") or os.path.join(home, "shardfleet-bench")


def python_with(packages: tuple[str, ...]) -> str:
    """The interpreter of an environment that has these. RuntimeError when it cannot be made."""
    if not packages:
        return sys.executable
    name = f"{packages[0]}-{hashlib.sha256(repr(packages).encode()).hexdigest()[:8]}"
    folder = os.path.join(cache(), name)
    python = os.path.join(folder, "bin", "python")
    if os.path.exists(f"{folder}/complete"):
        return python
    _run(sys.executable, "-m", "venv", "--clear", folder)
    _run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *packages, *BASE)
    with open(f"{folder}/complete", "w"):
        return python


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[:5])} exits {done.returncode}: {done.stderr[-800:]}")
