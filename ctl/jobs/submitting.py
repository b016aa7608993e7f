"""Submitting jobs: everything that can be wrong is found first, then each is one token.

A job's folder is made before its token, by one rename that only one submit can win, so an id is
used once. A group is made or joined before anything of it is submitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from ctl import needing
from ctl.jobs import placing
from ctl.roots import Run
from fsworker.client.submitter import Submitter
from fsworker.errors import FleetError, FormatError, NotRunning, Refused, StorageError, UsageError
from fsworker.protocol import artifacts, federation, fsfolders, jobstate, layout, packing, segment
from fsworker.protocol.fsops import storage_error
from fsworker.protocol.layout import Token
from fsworker.protocol.records.job import Job
from fsworker.protocol.records.round import Group
from fsworker.protocol.segment import Segment

log = logging.getLogger(__name__)

KIND = "job"


def submit(run: Run, jobs: Sequence[Job], *, wait: bool = False) -> list[Token]:
    """Submit jobs, all of one group or of none. Nothing is submitted unless all can be.

    `wait`: for workers that come later, where there are not those that are needed.
    """
    check(run, jobs, wait=wait)
    _check_group(run, jobs, wait=wait)
    shards = placing.choose_shards(run, len(jobs), jobs[0].needs)
    made: list[Job] = []
    try:
        for job in jobs:
            _make_folder(run, job)
            made.append(job)
        _join(run, jobs)
    except (Refused, StorageError, FormatError):
        for job in made:
            _undo(run, job)
        raise
    life = layout.new_incarnation()
    tokens = [
        Token(
            layout.batch_id(layout.job_stream(job.job_id), life, 0), shard, needs=job.needs.digest
        )
        for job, shard in zip(jobs, shards, strict=True)
    ]
    _send_all(run, jobs, tokens, life)
    return tokens


def _send_all(run: Run, jobs: Sequence[Job], tokens: Sequence[Token], life: str) -> None:
    """Put all tokens into inboxes; of a job whose token cannot be, nothing stays."""
    submitter, sent = Submitter(run.store, life), 0
    try:
        for job, token in zip(jobs, tokens, strict=True):
            _send(submitter, job, token)
            sent += 1
    except FleetError as error:
        for job in jobs[sent:]:
            _undo(run, job)
        if not sent:
            raise
        text = f"{error}; {sent} of {len(jobs)} jobs were submitted before"
        raise StorageError(text, path=error.path) from None
    submitter.sync(token.shard for token in tokens)


def send(run: Run, job: Job, token: Token, life: str) -> None:
    """Put the token of a job into an inbox."""
    submitter = Submitter(run.store, life)
    _send(submitter, job, token)
    submitter.sync([token.shard])


def _send(submitter: Submitter, job: Job, token: Token) -> None:
    record = packing.pack([job.job_id, [job.to_json().decode()]])
    stream = layout.job_stream(job.job_id)
    meta: dict[str, Any] = {"stream": stream, "kind": KIND, "created": time.time()}
    if job.after is not None:
        meta["after"] = job.after
    if job.needs:
        meta["needs"] = job.needs.fields()
    submitter.prepare(token, segment.encode(Segment(segment.BATCH, meta, [record])))
    submitter.enqueue(token)


def check(run: Run, jobs: Sequence[Job], *, wait: bool = False) -> None:
    """UsageError for jobs that cannot be, NotRunning for one that follows an unknown one; Refused
    and NotOffered for what no worker can run, unless they `wait` for one."""
    for job in jobs:
        _check_one(run, job)
    if wait:
        return
    if not any(worker.job_slots for worker in run.workers):
        raise Refused(f"no worker of {run.root} has job slots: start it with --job-slots")
    needing.check(run, jobs[0].needs, job=True)


def _check_one(run: Run, job: Job) -> None:
    if (problem := job.problem()) is not None:
        raise UsageError(f"the job cannot be: {problem}")
    if job.federation_group_id is not None:
        try:
            layout.encode(job.federation_group_id)
        except ValueError as error:
            raise UsageError(f"--federation-group cannot be used: {error}") from None
    if job.after is not None and jobstate.read_job(run.store, job.after) is None:
        raise NotRunning(f"there is no job {job.after!r} in {run.root} to follow")


def _check_group(run: Run, jobs: Sequence[Job], *, wait: bool) -> None:
    """Refused for a group that can never run at once, has another size, or is full."""
    first = jobs[0]
    group, size = first.federation_group_id, first.federation_size
    if group is None or size is None:
        return
    slots = sum(worker.job_slots for worker in placing.able(run, first.needs))
    if size > slots and not wait:
        of_them = f" on workers that offer {first.needs}" if first.needs else ""
        raise Refused(
            f"group {group!r} has {size} participants, who must run at once, and {run.root} has "
            f"{slots} job slots{of_them}: start more workers, or give them more with --job-slots"
        )
    if group in federation.all_groups(run.store):
        there = federation.read_group(run.store, group)
        taken = len(federation.members(run.store, group))
        if there.size != size:
            raise Refused(f"group {group!r} has {there.size} participants, not {size}")
        if taken + len(jobs) > size:
            raise Refused(
                f"group {group!r} has {taken} of its {size} participants: "
                f"{len(jobs)} more are too many"
            )
    elif len(jobs) > size:
        raise Refused(f"{len(jobs)} jobs are too many for group {group!r} of {size}")


def _join(run: Run, jobs: Sequence[Job]) -> None:
    group, size = jobs[0].federation_group_id, jobs[0].federation_size
    if group is None or size is None:
        return
    federation.create_group(run.store, Group(group, size, episodes=jobs[0].episodes))
    for job in jobs:
        federation.join(run.store, group, job.job_id)


def _make_folder(run: Run, job: Job) -> None:
    target = layout.jobs.job_dir(job.job_id)
    prepared = artifacts.prepare(run.store, target)
    try:
        run.store.put(f"{prepared}/{layout.jobs.JOB_FILE}", job.to_json())
        ours = artifacts.publish(run.store, prepared, target)
    except (OSError, StorageError) as error:
        _clear(run, prepared, target)
        if isinstance(error, StorageError):
            raise
        raise storage_error(error, "write", run.store.path(target)) from None
    if not ours:
        raise Refused(f"there is a job {job.job_id!r} in {run.root}: take another id")


def _clear(run: Run, prepared: str, target: str) -> None:
    """Leave nothing of a folder that could not be made; only our own rename takes its old name."""
    try:
        there = prepared.rpartition("/")[2] in run.store.scan(layout.jobs.JOBS)
    except OSError:
        there = True
    fsfolders.remove_tree(run.store, prepared if there else target)


def _undo(run: Run, job: Job) -> None:
    """Take back what was made for a job that was not submitted."""
    if job.federation_group_id is not None:
        try:
            federation.leave(run.store, job.federation_group_id, job.job_id)
        except (StorageError, FormatError) as error:
            log.warning("job %s may still have its place in its group: %s", job.job_id, error)
    fsfolders.remove_tree(run.store, layout.jobs.job_dir(job.job_id))
