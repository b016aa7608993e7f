"""What ends a run whose program was killed: a process that waits for the end of a pipe.

`subprocess.run` kills its child with SIGKILL when it is interrupted itself, and so does who is in a
hurry; wrappers outlive all that and respawn their workers for ever.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

DISMISSED = "dismissed"
_CODE = f"""
import json, shutil, subprocess, sys
asked = json.loads(sys.stdin.readline())
if sys.stdin.read() != {DISMISSED!r}:
    null = subprocess.DEVNULL
    subprocess.run(asked["stop"], env=asked["env"], stdin=null, stdout=null, stderr=null)
    if asked["folder"]:
        shutil.rmtree(asked["folder"], ignore_errors=True)
"""


class Guard:
    """Runs `stop`, and removes `folder` if one is given, unless it is dismissed before we end."""

    def __init__(self, stop: Sequence[str], env: Mapping[str, str], folder: str | None) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath)},  # it is nobody's leftover
            start_new_session=True,  # a Ctrl-C is for everybody else
            text=True,
        )
        assert self._child.stdin
        self._child.stdin.write(json.dumps({"stop": stop, "env": env, "folder": folder}) + "\n")
        self._child.stdin.flush()

    def dismiss(self) -> None:
        """All is stopped."""
        self._child.communicate(DISMISSED)
