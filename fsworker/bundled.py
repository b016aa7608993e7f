"""How this package starts its own processes, and lets others import it: installed, or as a bundle.

A bundle is one file that holds this package and what it needs (`ctl bundle`), for hosts on which
nothing can be installed. A process that runs from one must start every further process from the
same file, since nothing else there can be imported. Everybody who starts one asks here.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import fsworker

FACTS = "bundle.json"
"""What a bundle says of itself: `release`, `digest`, `package_digest`; the `python` whose bytecode
it has, and the `packages` of others with their versions."""


def archive() -> str | None:
    """The bundle that this process runs from, as an absolute path; None where it is installed."""
    return fsworker.BUNDLE


def facts() -> dict[str, Any]:
    """What the bundle says of itself; nothing where there is none."""
    bundle = archive()
    if bundle is None:
        return {}
    spec = fsworker.__spec__
    assert spec is not None and spec.loader is not None
    told: dict[str, Any] = json.loads(spec.loader.get_data(os.path.join(bundle, FACTS)))  # type: ignore[attr-defined]  # what zipimport's loader has
    return told


def version() -> str:
    """The release, and which bundle of it."""
    digest = facts().get("digest")
    return f"{fsworker.__version__} (bundle {digest})" if digest else fsworker.__version__


def command(module: str = "fsworker", python: str | None = None) -> list[str]:
    """The begin of a command line that runs a module of this package, by `python` [this one]."""
    program, bundle = python or sys.executable, archive()
    if bundle is None:
        return [program, "-m", module]
    return [program, bundle] if module == "fsworker" else [program, bundle, "-m", module]


def library() -> str | None:
    """What must be on a PYTHONPATH to import this package; None where it is installed."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(fsworker.__file__)))
    return None if os.path.basename(home) in ("site-packages", "dist-packages") else home
