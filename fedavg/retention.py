"""What is removed once a round is published, so that a group that runs for weeks fills no disk.

Uploads and models of old rounds go; plans and `merge.json` stay, a few kilobytes a round: they are
the chain that `fedavg verify` walks. As long as their folders are there nobody can publish a round
again under its old name; when many are old, `archive` puts their records into one file. What an
aggregator that was killed left half made goes as well.
"""

from __future__ import annotations

import logging

from fsworker.errors import FormatError, StorageError
from fsworker.protocol import archive, artifacts, federation, fsfolders, rounds
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups, jobs
from fsworker.protocol.records.round import Retired

log = logging.getLogger(__name__)

LEFTOVER_AGE = 600.0
"""Seconds without a change after which a half-made folder counts as left over, where it could be
that of another aggregator at work."""


def retire(store: Store, group: str, newest: int, keep: int, since: int = 0) -> int:
    """Remove what rounds before the last `keep` ones left, once `newest` is merged.

    Models of rounds below `since` are gone already, and their folders, which stay, are not looked
    into. Gives the first round that is kept, which is the next `since`.
    """
    uploads = _numbers(store, groups.uploads_dir(group))
    for number in rounds.retired(newest, keep, uploads):
        folder = groups.round_uploads_dir(group, number)
        for name in federation.names(store, folder) if _is_own(store, folder) else ():
            fsfolders.remove_tree(store, f"{folder}/{name}", first=artifacts.DONE)
        fsfolders.remove_tree(store, folder)
    refused = _numbers(store, groups.refusals_dir(group))
    for number in rounds.retired(newest, keep, refused):
        fsfolders.remove_tree(store, groups.refused_dir(group, number))
    models = map(jobs.parse_before_name, federation.names(store, groups.globals_dir(group)))
    here = [number for number in models if number is not None and number >= since]
    # What a round started from stays as long as its uploads do, so that it can be merged again.
    old = rounds.retired(newest, keep, here)
    if old:
        _note(store, group, newest - keep + 1)
    for number in old:
        _strip(store, groups.global_dir(group, number))
    _archive(store, group, newest, keep)
    return newest - keep + 1


def _note(store: Store, group: str, before: int) -> None:
    """Write down which models go, before they do: a group may be told to keep more later.

    Where there is no room for it they go all the same, for they make room; so they do where it
    cannot be read, and the next round writes it down for them.
    """
    path = groups.retired_file(group)
    try:
        found = federation.read_record(store, path, Retired)
    except FormatError as error:
        log.warning("%s: writing it anew", error)
        found = None
    except StorageError as error:
        log.warning("%s", error)
        return  # it may say more than is known here, and must not say less then
    if found is None or found.before < before:
        try:
            store.publish(path, Retired(before).to_json())
        except OSError as error:
            log.warning("%s", storage_error(error, "write", store.path(path)))


def _archive(store: Store, group: str, newest: int, keep: int) -> None:
    """Put the records of old rounds together; then remove the folders of those that are."""
    there = archive.archived(store, group)
    for first in archive.due(newest, keep, there):
        if archive.make(store, group, first):
            there.append(first)
            log.info("%s: the records of rounds %d to %d are in %s", group, first,
                     first + archive.SPAN - 1, groups.archive_file(group, first))  # fmt: skip
    numbers = map(groups.parse_four, federation.names(store, groups.rounds_dir(group)))
    episodes = map(jobs.parse_before_name, federation.names(store, groups.globals_dir(group)))
    closed, models = list(filter(None, numbers)), list(filter(None, episodes))
    for first in there:
        over = [n for n in closed if archive.covers(first, n)]
        gone = [n for n in models if archive.covers(first, n - 1)]
        # The file is whole and readable before anything goes that it stands for.
        if (over or gone) and archive.read(store, group, first):
            for episode in gone:
                folder = groups.global_dir(group, episode)
                fsfolders.remove_tree(store, folder, first=groups.MERGE_FILE)
            for number in over:
                folder = groups.round_dir(group, number)
                fsfolders.remove_tree(store, folder, first=groups.PLAN_FILE)


def remove_leftovers(store: Store, group: str, *, alone: bool, now: float | None = None) -> None:
    """Remove what aggregators that were killed left half made.

    `alone`: this process holds the lock, so nobody else makes rounds and models; even if that is
    not true no harm is done, since who misses his folder makes another. All else goes when it is
    old, `now` by the file server's clock: it may be of a command at work.
    """
    own = (groups.globals_dir(group), groups.rounds_dir(group))
    for folder in (*own, groups.group_dir(group), groups.members_dir(group)):
        for name in federation.names(store, folder):
            path, temporary = f"{folder}/{name}", name.startswith((".tmp~", ".probe~"))
            if temporary and ((alone and folder in own) or _old(store, path, now)):
                log.info("removing %s, which was begun and not ended", store.path(path))
                artifacts.clear_away(store, path)


def _old(store: Store, path: str, now: float | None) -> bool:
    try:
        return now is not None and now - fsfolders.last_change(store, path) > LEFTOVER_AGE
    except OSError:
        return False


def _is_own(store: Store, folder: str) -> bool:
    """Whether this is a folder of the run, and no link that leads out of it."""
    try:
        return fsfolders.is_folder(store, folder)
    except OSError:
        return False


def _strip(store: Store, folder: str) -> None:
    """Remove all of a model but its record."""
    try:
        there = fsfolders.entries(store, folder)
    except OSError:
        return  # the next time
    for entry in reversed(there):
        path = f"{folder}/{entry.name}"
        if entry.kind == "folder":
            fsfolders.remove_tree(store, path)
        elif entry.name != groups.MERGE_FILE:
            store.remove_quietly(path)


def _numbers(store: Store, folder: str) -> list[int]:
    found = (jobs.parse_after_name(name) for name in federation.names(store, folder))
    return [number for number in found if number is not None]
