"""fsworker: executes tasks on the hosts of a fleet, and sends tasks to one.

Importing the package imports nothing else: the respawn wrapper runs on the standard library alone,
and commands on a head node must start fast. What users import is looked up when it is first used.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__version__ = "0.1.0"

BUNDLE: str | None = getattr(__spec__.loader, "archive", None) if __spec__ else None
"""The bundle that this package was imported from (`fsworker.bundled`); None: a folder."""
if BUNDLE is not None:
    BUNDLE = os.path.abspath(BUNDLE)
    # Last, so that what the host itself has installed is never covered up.
    sys.path.append(os.path.join(BUNDLE, "vendor"))

_REMOTE = "fsworker.remote"
_LAZY = {
    "AlreadyDelivered": _REMOTE,
    "Blob": "fsworker.blob",
    "Client": "fsworker.client",
    "NoWorkers": "fsworker.errors",
    "Needs": "fsworker.protocol.records.needs",
    "NotOffered": "fsworker.errors",
    "NotSent": _REMOTE,
    "TaskCancelled": _REMOTE,
    "TaskCrashed": _REMOTE,
    "TaskError": _REMOTE,
    "TaskExpired": _REMOTE,
    "TaskOutOfMemory": _REMOTE,
    "TaskTimeout": _REMOTE,
    "WorkerDied": _REMOTE,
    "report": "fsworker.reporting",
}
_MODULES = ("agent", "rewards")
"""Modules that users reach as attributes of the package."""

__all__ = [
    "AlreadyDelivered",
    "Blob",
    "Client",
    "Needs",
    "NoWorkers",
    "NotOffered",
    "NotSent",
    "TaskCancelled",
    "TaskCrashed",
    "TaskError",
    "TaskExpired",
    "TaskOutOfMemory",
    "TaskTimeout",
    "WorkerDied",
    "__version__",
    "agent",
    "report",
    "rewards",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
