"""Whether functions can be imported on this host, tried in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fsworker import bundled
from fsworker.errors import FleetError

WITHIN = 60.0


_SOURCE = "source "
"""Begins the last line of what a process prints that has imported a function."""


@dataclass(frozen=True)
class Tried:
    """What came of it: `why` it cannot be imported, None where it can; the digest of its source."""

    why: str | None
    source: str | None = None


def why_not(
    names: Iterable[str], env: Mapping[str, str] | None = None, python: str | None = None
) -> dict[str, str | None]:
    """Why each function cannot be imported here, by `python` with `env`; None where it can."""
    return {name: one.why for name, one in tried(names, env, python).items()}


def tried(
    names: Iterable[str], env: Mapping[str, str] | None = None, python: str | None = None
) -> dict[str, Tried]:
    """Each function, imported by `python` with `env`."""
    found: dict[str, Tried] = {}
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
            found[name] = Tried(f"its import takes longer than {WITHIN:g} s")
            continue
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            ended = f"its import ended with exit code {done.returncode}"
            found[name] = Tried(lines[-1] if lines else ended)
        else:
            last = done.stdout.rstrip("\n").rpartition("\n")[2]
            found[name] = Tried(None, last.removeprefix(_SOURCE) or None)
    return found


def main() -> int:
    """`python -m fsworker.host.importable NAME`: exit code 0 when the function can be imported."""
    from fsworker import functions  # lazily: whoever asks imports no code of users
    from fsworker.inventory import software

    try:
        found = functions.resolve(sys.argv[1])
    except FleetError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{_SOURCE}{software.source_digest(found) or ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
