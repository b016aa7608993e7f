"""What was found, told: all of it as a table, or only what is not well as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctl import render
from ctl.doctor.checks import OK, Check, worst
from ctl.session import Session

Found = Mapping[str, Sequence[Check]]


def show(found: Found) -> None:
    """A table of all lines, and how many hosts are ok, warn and fail."""
    rows: list[tuple[Any, ...]] = [
        (host, check.level, check.what, check.words, check.advice)
        for host, checks in found.items()
        for check in checks
    ]
    render.table(("host", "level", "what", "found", "advice"), rows)
    levels = [worst(checks) for checks in found.values()]
    print(", ".join(f"{levels.count(level)} {level}" for level in ("ok", "warn", "fail")))


def tell(session: Session, found: Found) -> None:
    """One note for each line that is not ok."""
    for host, checks in found.items():
        for check in checks:
            if check.level != OK:
                advice = f": {check.advice}" if check.advice else ""
                session.note(f"{check.level} {host} {check.what}: {check.words}{advice}")
