"""What a start on this machine needs here: an interpreter that can be run, folders that are there.

Of other hosts only they themselves know; what they say comes back from the start. Here it can be
said before a run root is made.
"""

from __future__ import annotations

import os
import shutil

from fsworker.errors import UsageError
from fsworker.protocol.records.run import LaunchMeta


def check(meta: LaunchMeta) -> None:
    """UsageError for an interpreter or a folder that the local launcher would not find."""
    if meta.launcher != "local":
        return
    python = meta.python or ""
    if python and shutil.which(python) is None:
        there = os.path.exists(python)
        why = "is no program that you can run" if there else "is not there"
        raise UsageError(f"the interpreter {python} {why}: check --python or --venv", path=python)
    for folder in meta.pythonpath:
        if not os.path.isdir(folder):
            raise UsageError(f"there is no folder {folder}: check --repo", path=folder)
