"""Which aggregators are at work, by what each says of itself; no process is asked.

Of those that hold the lock there is one, and one file. Where the filesystem has no locks there may
be several, and each has a file of its own: what one says at its end, or while it has nothing to do,
must not hide that another is amid a merge.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from fsworker.errors import FormatError, StorageError
from fsworker.protocol import federation
from fsworker.protocol.federation import RECORD_LIMIT
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import AggregatorBeat

SILENT, SILENT_AT_WORK = 20.0, 900.0
"""Seconds without a beat after which an aggregator counts as silent; the second one for one that
said it would read an upload or merge."""
AT_WORK = ("reading", "merging")
FORGOTTEN = 3600.0
"""Seconds after which the file of one that was killed is removed: so long that it is none that is
slow, whose next beat would be removed instead."""


@dataclass(frozen=True)
class Sign:
    """The last beat of one aggregator, the file that it is in, and its `age` in seconds.

    `at` is when it beat, by the file server's clock (epoch seconds).
    """

    file: str
    beat: AggregatorBeat
    age: float
    at: float = 0.0

    @property
    def left(self) -> float:
        """For how long it may keep silent yet, in seconds; below 0 when that is over."""
        at_work = any(report.state in AT_WORK for report in self.beat.groups.values())
        return (SILENT_AT_WORK if at_work else SILENT) - self.age

    @property
    def alive(self) -> bool:
        """Whether it beat lately and did not say that it stopped."""
        return not self.beat.stopped and self.left >= 0

    @property
    def _order(self) -> tuple[bool, float]:
        return self.alive, self.left if self.alive else -self.age


def beat_file(incarnation: str, *, alone: bool) -> str:
    """Where an aggregator beats. `alone`: it holds the lock."""
    return groups.AGGREGATOR_BEAT if alone else groups.unlocked_beat(incarnation)


def signs(store: Store, clock: Callable[[], float]) -> list[Sign]:
    """Of every aggregator that is or was: first who lives, for the longest without a beat.

    `clock` tells the file server's time (epoch seconds), and is asked once there is a file.
    StorageError; FormatError for a beat that is none.
    """
    found = []
    for file in _files(store):
        sign = _read(store, file, clock)
        if sign is not None:
            found.append(sign)
    return sorted(found, key=lambda sign: sign._order, reverse=True)


def forget_ended(store: Store, *, but: str) -> None:
    """Remove the files, other than `but`, of aggregators without a lock that ended.

    What cannot be read or removed is left to the next.
    """
    clock = partial(store.server_time, groups.FEDERATION)
    with suppress(StorageError):
        for file in _files(store):
            if file in (but, groups.AGGREGATOR_BEAT):
                continue
            with suppress(FormatError):
                sign = _read(store, file, clock)
                if sign is not None and (sign.beat.stopped or sign.age > FORGOTTEN):
                    store.remove_quietly(file)


def _files(store: Store) -> list[str]:
    """Listed, never asked for by name: an absence may be answered from a cache."""
    shared = groups.AGGREGATOR_BEAT.rpartition("/")[2]
    there = federation.names(store, groups.FEDERATION)
    own = [name for name in there if groups.parse_unlocked_beat(name) is not None]
    return [f"{groups.FEDERATION}/{name}" for name in (*sorted(own), shared) if name in there]


def _read(store: Store, file: str, clock: Callable[[], float]) -> Sign | None:
    """None when it was removed since it was listed."""
    path = store.path(file)
    try:
        data, changed = store.read_with_mtime(file, RECORD_LIMIT)
        now = clock()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, "read", path) from None
    return Sign(file, AggregatorBeat.from_json(data, path), max(0.0, now - changed), changed)
