"""The list of what was given up or set aside, the same for each shelf but for its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ctl import render, roots, shelf
from ctl.session import Session
from ctl.shelf import Item


@dataclass(frozen=True)
class View:
    """A shelf: its folder, the columns of its list, a row of it, and what is said of an empty one.

    `empty` is followed by the run's root.
    """

    folder: str
    head: tuple[str, ...]
    row: Callable[[Item], tuple[str, ...]]
    empty: str

    def show(self, session: Session, root: str | None, as_json: bool) -> None:
        """Print what lies there, oldest first."""
        run = roots.open_run(*roots.find_root(root, session.config))
        found = shelf.items(run, self.folder)
        if as_json:
            render.document({"root": run.root, self.folder: [item.fields() for item in found]})
        elif found:
            render.table(self.head, [self.row(item) for item in found])
        else:
            session.say(f"{self.empty} {run.root}")
