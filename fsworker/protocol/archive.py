"""Old rounds of a group, SPAN of them in one file, so that no folder grows without bound.

While a round is young it is two folders: its plan, its model. Of an old one the records alone
count: they are the chain that `fedavg verify` walks. Once SPAN rounds from `first` on are all old,
their records are put into one file, byte for byte, and then the folders go. What such a file holds
follows from the folders alone, and they never change: whoever makes it makes the same, so it may be
made twice, by two, or by one that was killed amid it. Rounds that are in a file are over: a folder
with such a number is a leftover, of the removal or of an aggregator that slept for weeks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fsworker.errors import FormatError
from fsworker.protocol import federation, fsfolders
from fsworker.protocol.federation import RECORD_LIMIT, Global
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Archive, Merge, OldRound, Plan, Times, sha256

SPAN = 50
"""Rounds of a file."""
FILE_LIMIT = 1 << 30
"""Bytes that a file may have: records of wide groups and of models of many shards are long."""


@dataclass(frozen=True)
class Old:
    """A round from a file: `published` is when its model was there (epoch seconds)."""

    plan: Plan
    model: Global
    times: Times | None
    published: float


def archived(store: Store, group: str) -> list[int]:
    """The first rounds of the files that there are."""
    found = map(groups.parse_archive_name, federation.names(store, groups.archive_dir(group)))
    return sorted(first for first in found if first is not None)


def covers(first: int, number: int) -> bool:
    """Whether a round belongs into the file of `first`."""
    return first <= number < first + SPAN


def due(newest: int, keep: int, there: list[int]) -> Iterator[int]:
    """The files that can be made once round `newest` is merged: all their models are retired."""
    for first in range(1, newest - keep - SPAN + 1, SPAN):
        if first not in there:
            yield first


def make(store: Store, group: str, first: int) -> bool:
    """Make the file of the rounds from `first` on; False where a record of them is missing."""
    rounds = []
    for number in range(first, first + SPAN):
        found = _collect(store, group, number)
        if found is None:
            return False
        rounds.append(found)
    path = groups.archive_file(group, first)
    try:
        fsfolders.make_folders(store, groups.archive_dir(group))
        store.publish(path, Archive(group, first, tuple(rounds)).to_json())
    except OSError as error:
        raise storage_error(error, "write", store.path(path)) from None
    return True


def read(store: Store, group: str, first: int) -> dict[int, Old]:
    """The rounds of a file by their numbers. FormatError when it is damaged; {} without one."""
    rel = groups.archive_file(group, first)
    path = store.path(rel)
    try:
        found: Archive = Archive.from_json(store.read(rel, FILE_LIMIT), path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error(error, "read", path) from None
    if len(found.rounds) != SPAN or (found.group, found.first) != (group, first):
        raise FormatError(f"{path} does not hold the {SPAN} rounds from {first} on", path=path)
    return {first + i: _old(group, first + i, old, path) for i, old in enumerate(found.rounds)}


def _collect(store: Store, group: str, number: int) -> OldRound | None:
    folder, model = groups.round_dir(group, number), groups.global_dir(group, number + 1)
    read = partial(federation.read_bytes, store)
    plan, times = read(f"{folder}/{groups.PLAN_FILE}"), read(f"{folder}/{groups.TIMES_FILE}")
    record = f"{model}/{groups.MERGE_FILE}"
    try:
        merge, published = store.read_with_mtime(record, RECORD_LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, "read", store.path(record)) from None
    if plan is None:
        return None
    return OldRound(plan.decode(), merge.decode(), times.decode() if times else None, published)


def _old(group: str, number: int, old: OldRound, path: str) -> Old:
    where, merge = f"{path}, round {number}", old.merge.encode()
    times = Times.from_json(old.times.encode(), where) if old.times is not None else None
    folder, record = groups.global_dir(group, number + 1), Merge.from_json(merge, where)
    model = Global(number + 1, folder, record, sha256(merge))
    return Old(Plan.from_json(old.plan.encode(), where), model, times, old.published)
