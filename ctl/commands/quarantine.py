"""`ctl quarantine`: files that are not what they claim to be."""

from __future__ import annotations

from typing import Any

import click

from ctl import render, roots, shelf, units
from ctl.params import verb
from ctl.session import Session
from ctl.shelf import Item
from ctl.shelfview import View
from fsworker.protocol import layout

_HEAD = 256
"""Bytes of a file that are shown."""
_ROW = 16


@click.group()
def command() -> None:
    """Show files that were set aside because they are damaged.

    Whoever sent or waits for what was in them has been told. The files are kept as evidence, until
    the run is cleaned up.
    """


@verb(command, "list")
def list_(session: Session, root: str | None, as_json: bool) -> None:
    """List the files, oldest first."""
    VIEW.show(session, root, as_json)


@verb(command, "show", click.argument("name"))
def show(session: Session, name: str, root: str | None, as_json: bool) -> None:
    """Show why a file was set aside, and how it begins."""
    run = roots.open_run(*roots.find_root(root, session.config))
    (item,) = shelf.choose(run, layout.QUARANTINE, [name], False)
    data = shelf.read(run, item)
    fields: dict[str, Any] = {
        **item.fields(),
        "bytes": len(data),
        "wrong": shelf.what_is_wrong(data, item.path) or None,
        "head_hex": data[:_HEAD].hex(),
    }
    if as_json:
        render.document(fields)
        return
    session.say(f"file {run.store.path(item.path)}, {len(data)} bytes")
    session.say(f"batch {item.batch}, set aside by {item.text('host')}, was {item.text('from')}")
    session.say(render.clean(f"reason: {item.text('why')}"))
    session.say(f"now: {fields['wrong'] or 'it reads as a good data file'}")
    for at in range(0, min(len(data), _HEAD), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(c) if 32 <= c < 127 else "." for c in row)
        session.say(f"  {at:04x}  {row.hex(' '):<{3 * _ROW}} {text}")


def _row(item: Item) -> tuple[str, ...]:
    return units.human(item.age), item.name, item.text("host"), item.text("why")


VIEW = View(
    layout.QUARANTINE, ("age", "file", "set aside by", "reason"), _row, "nothing was set aside in"
)
