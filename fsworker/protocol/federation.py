"""A group as its participants and its controller use it: make, join, change, read.

Everything here is a small record. Who merges them is `fedavg`; who trains, a job. A group has
exactly `size` places, each a folder that the first one takes by a rename, so that of two jobs that
come for the last place at once one is refused, with no lock.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fsworker.errors import FormatError, NotRunning, Refused, UsageError
from fsworker.protocol import artifacts, fsfolders
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout import groups, jobs
from fsworker.protocol.records.round import (
    Group,
    Member,
    Merge,
    Refusal,
    sha256,
    terms_problem,
)

R = TypeVar("R")

RECORD_LIMIT = artifacts.RECORD_LIMIT
_ABSENT = (FileNotFoundError, NotADirectoryError)
_FIXED = ("group", "size")


@dataclass(frozen=True)
class Global:
    """A published global model: its folder, its record, and the digest of that record."""

    episode: int
    folder: str
    merge: Merge
    record_digest: str


def names(store: Store, folder: str) -> list[str]:
    """The names in a folder of the root, none when it is not there. StorageError otherwise."""
    try:
        return store.scan(folder)
    except _ABSENT:
        return []
    except OSError as error:
        raise storage_error(error, "list", store.path(folder)) from None


def read_record(store: Store, rel: str, kind: type[R]) -> R | None:
    """The record of class `kind` in a file; None when there is no file."""
    data = read_bytes(store, rel)
    if data is None:
        return None
    decoded: R = kind.from_json(data, store.path(rel))  # type: ignore[attr-defined]
    return decoded


def read_bytes(store: Store, rel: str) -> bytes | None:
    """The bytes of a record, which may have RECORD_LIMIT bytes; None when there is no file."""
    path = store.path(rel)
    try:
        return store.read(rel, RECORD_LIMIT)
    except _ABSENT:
        return None
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EISDIR):
            raise FormatError(f"{path}: {error.strerror}", path=path) from None
        raise storage_error(error, "read", path) from None


def check_name(group: str) -> str:
    """`group`, when it can be the id of one. UsageError says why not."""
    try:
        groups.group_dir(group)
    except ValueError as error:
        raise UsageError(f"no group can have that id: {error}") from None
    return group


def all_groups(store: Store) -> list[str]:
    """The ids of all groups of a run."""
    found = (groups.parse_group_name(name) for name in names(store, groups.FEDERATION))
    return sorted(group for group in found if group is not None)


def create_group(store: Store, record: Group) -> Group:
    """Make a group, or adopt the one that has the id: what it is now. UsageError for none.

    Refused when the group that is there has another size. One that does not know its last episode
    learns it. StorageError, and nothing is left, where there is no room.
    """
    check_name(record.group)
    if (problem := record.problem() or terms_problem(record)) is not None:
        raise UsageError(f"group {record.group!r:.80} cannot be made: {problem}")
    there = read_record(store, groups.group_file(record.group), Group)
    if there is None:
        target = groups.group_dir(record.group)
        if _publish_with(store, target, groups.GROUP_FILE, record.to_json()):
            return record
        there = read_group(store, record.group)
    if there.size != record.size:
        raise Refused(
            f"group {record.group!r} has {there.size} participants, not {record.size}: "
            "take another group id"
        )
    if there.episodes is None and record.episodes is not None:
        return edit_group(store, record.group, episodes=record.episodes)
    return there


def _publish_with(store: Store, target: str, name: str, data: bytes) -> bool:
    """Publish a folder with one file in it. False when it was there; StorageError, nothing left."""
    prepared = artifacts.prepare(store, target)
    try:
        store.put(f"{prepared}/{name}", data)
    except OSError as error:
        artifacts.discard(store, prepared)
        raise storage_error(error, "write", store.path(f"{target}/{name}")) from None
    return artifacts.publish(store, prepared, target)


def read_group(store: Store, group: str) -> Group:
    """What a group is. NotRunning when there is none; FormatError when its file is damaged.

    UsageError for what cannot be the id of one.
    """
    found = read_record(store, groups.group_file(check_name(group)), Group)
    if found is None:
        raise NotRunning(
            f"there is no group {group!r:.80} in {store.root}",
            path=store.path(groups.group_file(group)),
        )
    if found.group != group:
        path = store.path(groups.group_file(group))
        raise FormatError(
            f"{path}: field 'group' is {found.group!r:.80}, and this is the folder of group "
            f"{group!r}: write {group!r} there",
            path=path,
        )
    return found


def edit_group(store: Store, group: str, **changes: Any) -> Group:
    """Change fields of a group while it runs: what it is then. UsageError for what cannot be."""
    if fixed := [name for name in changes if name in _FIXED]:
        raise UsageError(f"{fixed[0]} of a group cannot be changed")
    changed = replace(read_group(store, group), **changes)
    if (problem := changed.problem() or terms_problem(changed)) is not None:
        raise UsageError(f"group {group!r} cannot be changed: {problem}")
    path = groups.group_file(group)
    try:
        store.publish(path, changed.to_json())
    except OSError as error:
        raise storage_error(error, "write", store.path(path)) from None
    return changed


def members(store: Store, group: str) -> dict[int, str]:
    """The jobs of a group by their places."""
    places = (groups.parse_four(name) for name in names(store, groups.members_dir(group)))
    found = {}
    for place in sorted(p for p in places if p is not None):
        path = f"{groups.member_dir(group, place)}/{groups.MEMBER_FILE}"
        member = read_record(store, path, Member)
        if member is not None:
            found[place] = member.job
    return found


def join(store: Store, group: str, job: str) -> int:
    """Take a place for a job, or find the one that it has. Refused when the group is full."""
    size = read_group(store, group).size
    taken = members(store, group)
    for place in range(1, size + 1):
        if place not in taken:
            target = groups.member_dir(group, place)
            if job in taken.values():
                break
            _publish_with(store, target, groups.MEMBER_FILE, Member(job).to_json())
            taken = members(store, group)
            if list(taken.values()).count(job) > 1:
                leave(store, group, job, but=_first_place(taken, job))
            if job in taken.values():
                break
    first = _first_place(taken, job)
    if first is not None:
        return first
    raise Refused(
        f"group {group!r} has its {size} participants already, {job!r} is one too many: "
        "take another group id"
    )


def _first_place(taken: dict[int, str], job: str) -> int | None:
    """The lowest place of a job: it may have joined from two processes at once."""
    return min((place for place, name in taken.items() if name == job), default=None)


def leave(store: Store, group: str, job: str, *, but: int | None = None) -> None:
    """Give places back: of a job that was refused or cancelled before its first upload."""
    for place, name in members(store, group).items():
        if name == job and place != but:
            fsfolders.remove_tree(store, groups.member_dir(group, place), first=groups.MEMBER_FILE)


def read_global(store: Store, group: str, episode: int) -> Global | None:
    """The global model that an episode starts from; None when it is not published.

    Lists the folder of all of them, since asking for one by name may be answered from a cache.
    FormatError when its record is damaged. The files are verified by `artifacts.verify_files`.
    """
    if jobs.before_name(episode) not in names(store, groups.globals_dir(group)):
        return None
    return _read_global(store, group, episode)


def newest_global(store: Store, group: str) -> Global | None:
    """The latest global model that is published; None when there is none."""
    found = (jobs.parse_before_name(name) for name in names(store, groups.globals_dir(group)))
    for episode in sorted((e for e in found if e is not None), reverse=True):
        if (model := _read_global(store, group, episode)) is not None:
            return model
    return None


def _read_global(store: Store, group: str, episode: int) -> Global | None:
    folder = groups.global_dir(group, episode)
    data = read_bytes(store, f"{folder}/{groups.MERGE_FILE}")
    if data is None:
        return None
    path = store.path(f"{folder}/{groups.MERGE_FILE}")
    return Global(episode, folder, Merge.from_json(data, path), sha256(data))


def read_refusal(store: Store, group: str, episode: int, job: str) -> Refusal | None:
    """Why a participant's upload after an episode was refused; None when it was not."""
    return read_record(store, groups.refusal_file(group, episode, job), Refusal)
