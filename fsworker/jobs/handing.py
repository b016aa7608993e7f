"""Episodes as folders that are published once: what a job's attempt leaves for others.

What an attempt trained becomes an episode of the job by one rename; so does an upload to a group.
The first attempt to finish an episode wins, and whoever comes later goes on from what is there.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from dataclasses import dataclass

from fsworker.errors import FleetError, StorageError
from fsworker.jobs import summary
from fsworker.jobs.pickled import Unreadable
from fsworker.jobs.summary import Found, Summary
from fsworker.protocol import artifacts, federation, fsfolders, jobstate, layout
from fsworker.protocol.artifacts import Damaged, Latest
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.records.artifact import Done, FileDigest
from fsworker.protocol.records.job import Job

log = logging.getLogger("fsworker.jobs.handing")

_PREPARED = re.compile(
    r"\.tmp~(?:(?P<seq>\d{1,9})\.(?P<number>\d{1,9})\.)?[^~.]*~(?P<name>[^~]*)", re.ASCII
)
"""A folder that is being filled, with its attempt's rank if it is an episode's."""


Rank = tuple[int, int]
"""Where an attempt stands among all at its job: how often that was submitted before, its number."""


class Lost(FleetError):
    """A checkpoint went before it was published."""


class NoWeights(FleetError):
    """What a job is to start from cannot be had."""


@dataclass(frozen=True)
class Weights:
    """What a process starts from: a path on this host, and the digest of the global model if it
    is one; `known` is what the checkpoint says about itself."""

    path: str | None = None
    base: str | None = None
    known: Summary | None = None


def top_of(files: tuple[FileDigest, ...]) -> str:
    """The name of a checkpoint in its folder: a file, or the folder that all its files are in."""
    return min(files).name.partition("/")[0]


def latest(store: Store, job: str) -> Latest:
    """The last verified episode of a job; those that cannot be used are named in the log."""
    found = artifacts.latest_verified(store, layout.jobs.job_dir(job))
    for folder, why in found.bad:
        log.warning("%s is left as it is: %s", folder, why)
    return found


def tidy(store: Store, job: str, rank: Rank) -> None:
    """Remove what killed attempts up to this one had prepared and not published.

    One that lives on although it was given up may lose what it prepares: it does not count. It
    takes nothing from those that came after it.
    """
    folder = layout.jobs.job_dir(job)
    for name in federation.names(store, folder):
        found = _PREPARED.fullmatch(name)
        if found is None or not layout.jobs.parse_after_name(found["name"]):
            continue
        if found["seq"] is None or (int(found["seq"]), int(found["number"])) <= rank:
            artifacts.clear_away(store, f"{folder}/{name}")


def inspect(store: Store, folder: str, wanted: str) -> tuple[Found, Summary] | None:
    """The checkpoint that a process left in a folder and what it says; None when there is none.

    Unreadable, naming it, for one that is cut short or no checkpoint.
    """
    try:
        found = summary.find(fsfolders.entries(store, folder), wanted)
    except FileNotFoundError:
        return None
    if found is None:
        return None
    path = store.path(f"{folder}/{found.name}")
    try:
        return found, summary.read(path, found.index)
    except Unreadable as error:
        raise Unreadable(f"checkpoint {path}: {error}") from None
    except OSError as error:
        raise storage_error(error, "read", path) from None


def publish(store: Store, folder: str, found: Found, done: Done, rank: Rank) -> Done:
    """Make the checkpoint in an attempt's folder an episode of its job; what is the episode then.

    `done` lacks the digests. Who comes second gets the record of the first. What is there and is
    damaged is set aside, or the job could never get beyond it. Lost when there is nothing any more
    that could be published at another try.
    """
    target = layout.jobs.episode_dir(done.job, done.episode)
    if target.rpartition("/")[2] in jobstate.look(store, done.job).names:
        try:
            return artifacts.verify(store, target, full=True)
        except Damaged as error:
            _set_aside(store, target, done, str(error))
    prepared = artifacts.prepare(store, target, "{}.{}.".format(*rank))
    try:
        store.rename(f"{folder}/{found.name}", f"{prepared}/{found.name}")
        files = artifacts.digest_files(store, prepared)
        full = Done(**{**vars(done), "files": files})
        artifacts.write_done(store, prepared, full)
        if artifacts.publish(store, prepared, target):
            return full
    except (OSError, StorageError) as error:
        _move_back(store, f"{prepared}/{found.name}", f"{folder}/{found.name}")
        artifacts.discard(store, prepared)
        if _is_gone(store, folder, found.name):
            raise Lost(
                f"checkpoint {store.path(folder)}/{found.name} is not there any more"
            ) from error
        if isinstance(error, StorageError):
            raise
        raise storage_error(error, "publish", store.path(target)) from None
    log.warning("%s is there already: going on from it", target)
    return artifacts.verify(store, target, full=False)


def _move_back(store: Store, path: str, where: str) -> None:
    """Have a checkpoint where it was, so that it can be published at the next try."""
    try:
        store.rename(path, where)
    except OSError as error:
        log.warning("%s is not back in its place: %s", where, error)


def _is_gone(store: Store, folder: str, name: str) -> bool:
    """Whether two looks show no such file; nothing is proven where there is no looking."""
    for _ in range(2):
        try:
            if name in store.scan(folder):
                return False
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _set_aside(store: Store, target: str, done: Done, why: str) -> None:
    """Move a damaged episode to `quarantine/` with the reason. A failure is an error of publish."""
    name = f"{layout.encode(done.job)}~{target.rpartition('/')[2]}.{secrets.token_hex(3)}"
    aside = f"{layout.QUARANTINE}/{name}"
    log.error("%s is set aside as %s: %s", target, aside, why)
    reason = {"job": done.job, "episode": done.episode, "from": target, "why": why, "batch": None}
    try:
        store.rename(target, aside)
        store.publish(f"{aside}.reason.json", json.dumps(reason).encode() + b"\n")
    except OSError as error:
        raise storage_error(error, "set aside", store.path(target)) from None


def upload(store: Store, group: str, episode: int, job: str) -> None:
    """Give a group what an episode left, by a copy. Damaged when it is not as it was."""
    source = layout.jobs.episode_dir(job, episode)
    target = layout.groups.upload_dir(group, episode, job)
    done = artifacts.read_done(store, source)
    prepared = artifacts.prepare(store, target)
    try:
        for file in done.files:
            folder = os.path.dirname(file.name)
            if folder:
                fsfolders.make_folders(store, f"{prepared}/{folder}")
            copied = fsfolders.copy(store, f"{source}/{file.name}", f"{prepared}/{file.name}")
            if copied != (file.size, file.sha256):
                artifacts.discard(store, prepared)
                path = store.path(f"{source}/{file.name}")
                raise Damaged(f"{path} has other content than its digest says", path=path)
        artifacts.write_done(store, prepared, done)
        artifacts.publish(store, prepared, target)
    except OSError as error:
        raise storage_error(error, "upload to", store.path(target)) from None


def is_uploaded(store: Store, group: str, episode: int, job: str) -> bool:
    """Whether a job's upload after an episode is there."""
    folder = layout.groups.round_uploads_dir(group, episode)
    return layout.encode(job) in federation.names(store, folder)


def global_weights(store: Store, group: str, episode: int) -> Weights | None:
    """The verified global model that an episode starts from; None while or since there is none."""
    found = federation.read_global(store, group, episode)
    if found is None:
        return None
    there = set(federation.names(store, found.folder))
    if not any(file.name.partition("/")[0] in there for file in found.merge.files):
        return None  # retired: its record alone stays
    artifacts.verify_files(store, found.folder, found.merge.files, full=True)
    path = store.path(f"{found.folder}/{top_of(found.merge.files)}")
    return Weights(path, found.merge.digest)


def episode_weights(store: Store, done: Done) -> Weights:
    """What a finished episode left, to start from."""
    folder, name = layout.jobs.episode_dir(done.job, done.episode), top_of(done.files)
    try:
        inspected = inspect(store, folder, name)
    except Unreadable:
        inspected = None
    return Weights(store.path(f"{folder}/{name}"), None, inspected[1] if inspected else None)


def first_weights(store: Store, job: Job, chained: str | None) -> Weights:
    """What the first episode starts from; `chained` is the last checkpoint of the job before.

    NoWeights when they are not there or cannot be read.
    """
    given = store.path(chained) if chained else job.weights
    if given is None:
        return Weights()
    path = given if os.path.isabs(given) or job.cwd is None else os.path.join(job.cwd, given)
    try:
        if os.path.isdir(path):
            return Weights(path)
        with open(path, "rb") as file:
            if not file.read(1):
                raise NoWeights(f"the weights {path} are an empty file", path=path)
        return Weights(path, None, summary.read(path))
    except OSError as error:
        raise NoWeights(f"the weights {path} cannot be read: {error.strerror}", path=path) from None
    except Unreadable as error:
        raise NoWeights(f"the weights {path} cannot be read: {error}", path=path) from None


def attempt_turn_dir(job: str, attempt: Attempt, episode: int) -> str:
    """Where a process of an attempt saves its checkpoint."""
    return f"{layout.jobs.attempt_dir(job, attempt)}/ep_{layout.jobs.four(episode)}"
