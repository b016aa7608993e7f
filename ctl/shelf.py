"""What a run has set aside for people: batches that were given up, files that are not themselves.

Workers, clients and `fsck` put a copy and a reason there, and answered for it: nothing waits for
these files. They stay until somebody has looked. What lies there was written by a program that went
wrong, so nothing about it is taken for granted, and names are taken from listings only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ctl import beats
from ctl.roots import Run, unknown
from fsworker.errors import FormatError, UsageError
from fsworker.protocol import layout, segment
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.segment import Segment

REASON = ".reason.json"
_SMALL = 1 << 20


@dataclass(frozen=True)
class Item:
    """A file that was set aside. `age` in seconds, by the file server's clock; None: unknown."""

    name: str
    folder: str
    age: float | None
    reason: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lies."""
        return f"{self.folder}/{self.name}"

    @property
    def batch(self) -> str:
        """The batch that it is, or is a file of."""
        return str(self.reason.get("batch") or self.name)

    @property
    def tasks(self) -> dict[int, str]:
        """The tasks that were given up, by their index, and why."""
        rows = self.reason.get("tasks")
        rows = rows if isinstance(rows, list) else [self.reason]
        return {
            row["task"]: str(row.get("why", ""))
            for row in rows
            if isinstance(row, dict) and type(row.get("task")) is int
        }

    def text(self, key: str) -> str:
        """A field of the reason, for people."""
        value = self.reason.get(key)
        return "-" if value is None else str(value)

    def fields(self) -> dict[str, Any]:
        """The item as JSON fields."""
        age = None if self.age is None else round(self.age, 1)
        return {"name": self.name, "path": self.path, "age_s": age, "reason": self.reason}


def items(run: Run, folder: str) -> list[Item]:
    """What lies in `dead/` or `quarantine/`, oldest first."""
    store = run.store
    try:
        names = set(store.scan(folder))
        now = beats.server_now(store) if names else 0.0
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unknown(error, store.path(folder)) from None
    kept = (n for n in names if not layout.is_foreign(n) and not n.endswith(REASON))
    found = [_item(store, folder, name, now) for name in kept]
    return sorted(found, key=lambda item: (-(item.age or 0.0), item.name))


def choose(run: Run, folder: str, names: Sequence[str], everything: bool) -> list[Item]:
    """The items with these names, or all of them. UsageError for a name that is not there."""
    known = {item.name: item for item in items(run, folder)}
    if everything == bool(names):
        raise UsageError("name what you mean, or give --all")
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {name!r:.200} in {run.store.path(folder)}")
    return list(known.values()) if everything else [known[name] for name in dict.fromkeys(names)]


def read(run: Run, item: Item) -> bytes:
    """The file."""
    try:
        return run.store.read(item.path)
    except OSError as error:
        raise storage_error(error, "read", run.store.path(item.path)) from None


def batch_of(run: Run, item: Item) -> Segment:
    """The batch that a file of `dead/` is a copy of. FormatError when it is damaged."""
    return segment.decode(read(run, item), segment.BATCH, run.store.path(item.path)).widened()


def given_up(item: Item, batch: Segment) -> list[int]:
    """The indices of the tasks that were given up; all of them when the reason names none."""
    count = len(batch.records)
    named = sorted(i for i in item.tasks if 0 <= i < count)
    return named or list(range(count))


def drop(run: Run, item: Item) -> None:
    """Remove a file and its reason, the file last: interrupted, it is listed and dropped again."""
    try:
        run.store.remove(item.path + REASON)
        run.store.remove(item.path)
    except OSError as error:
        raise storage_error(error, "remove", run.store.path(item.path)) from None


def what_is_wrong(data: bytes, path: str) -> str:
    """Why a file is not a data file of any kind; empty when it is one after all."""
    words = ""
    for kind in (segment.BATCH, segment.RESULT, segment.PART):
        try:
            segment.decode(data, kind, path)
            return ""
        except FormatError as error:
            # That it is of another kind is the least that can be said.
            words = str(error) if "of kind" not in str(error) or not words else words
    return words


def _item(store: Store, folder: str, name: str, now: float) -> Item:
    try:
        data, changed = store.read_with_mtime(f"{folder}/{name}{REASON}", _SMALL)
    except OSError:
        return Item(name, folder, None)
    try:
        reason = json.loads(data)
    except (ValueError, RecursionError):
        reason = None
    age = max(0.0, now - changed)
    return Item(name, folder, age, reason if isinstance(reason, dict) else {})
