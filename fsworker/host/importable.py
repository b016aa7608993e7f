"""Whether functions can be imported on this host, tried in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping

from fsworker import bundled
from fsworker.errors import FleetError

WITHIN = 60.0


def why_not(
    names: Iterable[str], env: Mapping[str, str] | None = None, python: str | None = None
) -> dict[str, str | None]:
    """Why each function cannot be imported here, by `python` with `env`; None where it can."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            done = subprocess.run(
                [*bundled.command("fsworker.host.importable", python), name],
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
        found[name] = said if done.returncode else None
    return found


def main() -> int:
    """`python -m fsworker.host.importable NAME`: exit code 0 when the function can be imported."""
    from fsworker import functions  # lazily: whoever asks imports no code of users

    try:
        functions.resolve(sys.argv[1])
    except FleetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
