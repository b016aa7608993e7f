"""Whether functions can be imported on this host, tried in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping

WITHIN = 60.0
_CODE = "import sys; from fsworker import functions; functions.resolve(sys.argv[1])"


def why_not(
    names: Iterable[str], env: Mapping[str, str] | None = None, python: str | None = None
) -> dict[str, str | None]:
    """Why each function cannot be imported here, by `python` with `env`; None where it can."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            done = subprocess.run(
                [python or sys.executable, "-c", _CODE, name],
                check=False,
                env={**os.environ, **(env or {})},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=WITHIN,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            found[name] = f"its import takes longer than {WITHIN:g} s"
            continue
        lines = done.stderr.strip().splitlines()
        said = lines[-1] if lines else f"its import ended with exit code {done.returncode}"
        found[name] = said.removeprefix("fsworker.errors.Refused: ") if done.returncode else None
    return found
