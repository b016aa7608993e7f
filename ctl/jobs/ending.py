"""Cancelling jobs, and submitting again those that did not succeed.

A job that runs is cancelled by its worker. One that waits is taken by this command as a worker
would take it, and committed as cancelled: the same moves, so it cannot be run by anybody else, and
a command that dies in the middle leaves it to be returned like the claim of any dead worker.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ctl.jobs import placing, submitting
from ctl.jobs.board import PENDING, RUNNING, Board, Row, row
from ctl.roots import Run
from fsworker.errors import FleetError, Refused, StorageError
from fsworker.jobs.finish import finish
from fsworker.protocol import (
    federation,
    fsfolders,
    jobstate,
    layout,
    ledger,
    packing,
    requests,
    segment,
)
from fsworker.protocol.fsops import storage_error
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.ledger import Move
from fsworker.protocol.records.cancel import CancelRequest
from fsworker.protocol.records.job import CANCELLED, SUCCESS, Result, utc_now
from fsworker.protocol.segment import Segment

log = logging.getLogger(__name__)

HOST = "(ctl)"
"""The owner of claims of this command; no host can be called so."""
WHY = "cancelled before it began"


@dataclass(frozen=True)
class Cancelled:
    """What became of a request to cancel: `how` is `at once`, `asked` or `over`."""

    job: str
    how: str
    request: str = ""


def cancel(run: Run, job: str) -> Cancelled:
    """Cancel a job: at once when it waits, else its worker is asked to."""
    for _ in range(3):
        now = row(run, Board.look(run), job)
        if now.status == PENDING and now.token is not None:
            if _take_and_end(run, now, now.token):
                return Cancelled(job, "at once")
            continue  # somebody claimed it meanwhile
        if now.status == RUNNING and now.token is not None:
            batch = now.token.batch
            try:
                return Cancelled(
                    job, "asked", requests.ask(run.store, batch, CancelRequest(job, batch))
                )
            except OSError as error:
                raise storage_error(error, "write", run.store.path(layout.CANCEL)) from None
        return Cancelled(job, "over")
    raise StorageError(f"job {job} moves between workers: try again")


def _take_and_end(run: Run, now: Row, token: Token) -> bool:
    """Claim a waiting job and commit it as cancelled; False when somebody else has it."""
    store, owner = run.store, Owner(HOST, layout.new_incarnation())
    try:
        store.run(ledger.enlist(owner))
        claimed = store.run(ledger.claim(owner, token))
        if claimed is None:
            store.rmdir(owner.folder)
            return False
        _write_result(run, now.job_id, owner, claimed)
        moved = store.run(ledger.commit(owner, claimed))
        store.rmdir(owner.folder)
    except OSError as error:
        raise storage_error(error, "cancel a job in", run.root) from None
    if moved is not Move.DONE:
        return False
    _leave_group(run, now)
    finish(store, now.job_id)
    return True


def _write_result(run: Run, job: str, owner: Owner, token: Token) -> None:
    store, attempt = run.store, Attempt(token.attempt, owner.incarnation)
    at = utc_now()
    result = Result(
        job, "", CANCELLED, at, at, 0.0, 0, error=WHY, attempt=token.attempt,
        incarnation=owner.incarnation,
    )  # fmt: skip
    folder = layout.jobs.attempt_dir(job, attempt)
    fsfolders.make_folders(store, folder)
    store.put(f"{folder}/{layout.jobs.RESULT_FILE}", result.to_json())
    why = {"type": "JobCancelled", "message": WHY, "short": f"JobCancelled: {WHY}", "traceback": ""}
    record = packing.pack([0, job, "cancelled", why, 0.0])
    meta: dict[str, Any] = {
        "batch": token.batch,
        "attempt": token.attempt,
        "host": HOST,
        "incarnation": owner.incarnation,
        "elapsed": 0.0,
    }
    data = segment.encode(Segment(segment.RESULT, meta, [record]))
    store.run(ledger.prepare_result(owner, token, data))


def _leave_group(run: Run, now: Row) -> None:
    """Give its place back, if nothing of it is in the group yet."""
    group = now.job.federation_group_id if now.job else None
    if group is None or now.episode:
        return
    try:
        federation.leave(run.store, group, now.job_id)
    except FleetError as error:
        log.warning("job %s may still have its place in group %s: %s", now.job_id, group, error)


def retry(run: Run, job: str) -> Token:
    """Submit a job again that did not succeed: it goes on after its last finished episode.

    Refused for one that succeeded, waits or runs. The caller holds the verb lock.
    """
    now = row(run, Board.look(run), job)
    if now.status in (SUCCESS, PENDING, RUNNING):
        raise Refused(f"job {job} is {now.status}: there is nothing to try again")
    if now.job is None:
        raise Refused(f"job {job} cannot be tried again: {now.problem}")
    group = now.job.federation_group_id
    if group is not None:
        federation.join(run.store, group, job)
    folder = jobstate.look(run.store, job)
    number = folder.commit.number + 1 if folder.commit else 1
    last = max((a.number for a, _ in jobstate.attempts(run.store, job)), default=0)
    life = layout.new_incarnation()
    needs = now.job.needs
    (shard,) = placing.choose_shards(run, 1, needs)
    batch = layout.batch_id(layout.job_stream(job), life, number)
    token = Token(batch, shard, attempt=last, needs=needs.digest)
    run.store.remove_quietly(layout.jobs.job_result(job))  # of the time before
    submitting.send(run, now.job, token, life)
    return token
