"""Output: tables for terminals, one versioned JSON value for scripts.

Text that comes from hosts (banners, error sentences, names) is stripped of control characters
before it reaches a terminal. `rich` is imported only when a terminal shows a table.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

FORMAT = "1.0"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
ROOM = 30
"""Columns of a terminal that are left to all but the first column of a table."""

_STYLES = {"ok": "green", "running": "green", "ready": "green"}


def document(fields: Mapping[str, Any]) -> None:
    """Print the one JSON value that a `--json` command prints."""
    line({"format": FORMAT, **fields})


def line(fields: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of its own, in whatever encoding stdout has."""
    text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(fields, allow_nan=False)
    print(text, flush=True)


def error(sentence: str, code: int, kind: str, fields: Mapping[str, Any]) -> None:
    """Print what `--json` prints instead of its value when the command failed."""
    extra = {k: v for k, v in fields.items() if v is not None}
    document({"error": sentence, "exit_code": code, "type": kind, **extra})


def iso(epoch: float | None) -> str | None:
    """UTC in ISO 8601; None for None and for a number that is no time."""
    if epoch is None:
        return None
    try:
        return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None


def clean(text: object) -> str:
    """`text` on one line and without what could steer a terminal."""
    return _CONTROL.sub("?", " ".join(str(text).split("\n")))


def on_terminal() -> bool:
    """Whether a person looks at stdout."""
    return sys.stdout.isatty()


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: plain aligned columns, with colours where a terminal takes them."""
    texts = [[clean(cell) for cell in row] for row in rows]
    if on_terminal() and not os.environ.get("NO_COLOR"):
        _rich_table(headers, texts)
        return
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    for row in [list(headers), *texts]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # lazily: slow to import, see the module docstring
    from rich.table import Table
    from rich.text import Text

    # Too long cells are folded: what is cut off is just what somebody needs. First the others,
    # since the first column is what people copy.
    console = Console()
    whole = max((len(row[0]) for row in rows), default=0) < console.width - ROOM
    out = Table(box=None, header_style="bold", pad_edge=False)
    for index, header in enumerate(headers):
        out.add_column(header, overflow="fold", no_wrap=whole and index == 0)
    for row in rows:
        out.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(out)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` are done, on stderr and only where a person looks at it."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console  # lazily: slow to import, see the module docstring
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(clean(what), total=total)
        yield lambda done: bar.update(task, completed=done)
