"""Submitting a task file so that it can be interrupted anywhere and run again: no task lost, none
doubled.

Batches are submitted in windows, in four steps: write them beside their places; note that they are
prepared; rename them to their places; note that they are submitted. A run that was interrupted
before the first note writes them again, since no worker has seen one. After it, it only renames:
a batch whose file is no longer beside its place was renamed before, for nothing else removes it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from ctl import needing, streams
from ctl.roots import Run
from ctl.streams import Sent, Submission
from ctl.taskfile import TaskFile
from fsworker.client.allowed import AllowedFunctions
from fsworker.client.outbound import MAX_BATCH_BYTES
from fsworker.client.submitter import Submitter
from fsworker.errors import UsageError
from fsworker.protocol import layout, segment
from fsworker.protocol.records.needs import Needs
from fsworker.protocol.segment import Segment

WINDOW = 64
"""Batches between two notes of the progress."""

BATCH = 256
"""Tasks in a batch at most unless another number is asked for."""

_SPREAD = 16
"""Batches that each worker should get when there are few tasks."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of `ctl submit` asks for; `timeout` is in seconds, `waits` for workers."""

    stream: str
    digest: str
    fn: str
    timeout: float | None
    needs: Needs = field(default_factory=Needs)
    waits: bool = False


def ask(
    run: Run,
    tasks: TaskFile,
    stream: str | None,
    fn: str | None,
    timeout: float | None,
    needs: Needs | None = None,
    *,
    waits: bool = False,
) -> Asked:
    """What is asked for, under its names. UsageError for a function or a name that cannot be.

    Without a name the stream is called after the file and what it holds, so that the same command
    means the same stream.
    """
    name = AllowedFunctions(run.manifest).name_of(fn)
    digest = tasks.digest()
    if stream is None:
        stem = os.path.basename(tasks.path).partition(".")[0][:60]
        needed = f" {needs.digest}" if needs else ""
        mark = hashlib.sha256(f"{digest} {name} {timeout}{needed}".encode()).hexdigest()
        stream = f"{stem or 'tasks'}-{mark[:10]}"
    return Asked(streams.check_name(stream), digest, name, timeout, needs or Needs(), waits)


def begin(run: Run, tasks: TaskFile, asked: Asked, size: int | None) -> Submission:
    """The submission to carry out: the one that was begun before, or a new one.

    Everything that is wrong with a line of the file is found here, before anything is submitted.
    """
    before = streams.read(run.store, Submission, asked.stream)
    if before is not None:
        _check_same(before, asked)
        return before
    if not asked.waits:
        needing.check(run, asked.needs, job=False)
    shards = needing.shards(run, asked.needs)
    at = secrets.randbelow(len(shards))
    if size is None:
        size = max(1, min(BATCH, -(-tasks.count() // (_SPREAD * len(shards)))))
    return Submission(
        asked.stream,
        os.path.abspath(tasks.path),
        asked.digest,
        asked.fn,
        layout.new_incarnation(),
        (*shards[at:], *shards[:at]),
        tasks.cut(size, MAX_BATCH_BYTES),
        asked.timeout,
        time.time(),
        asked.needs,
        asked.waits,
    )


def settle(run: Run, asked: Asked, wanted: Submission) -> Submission:
    """`wanted`, unless another `ctl submit` was quicker. The stream's lock must be held."""
    before = streams.read(run.store, Submission, asked.stream)
    if before is None:
        return wanted
    _check_same(before, asked)
    return before


def carry_out(
    run: Run, tasks: TaskFile, submission: Submission, progress: Callable[[int], None]
) -> None:
    """Submit what is not submitted yet. `progress` hears of the number of tasks submitted."""
    store, stream = run.store, submission.stream
    submitter = Submitter(store, submission.incarnation, withdraw=False)
    if streams.read(store, Submission, stream) is None:
        submitter.open_stream(layout.encode(stream))
        streams.write(store, stream, submission)
    sent = streams.read(store, Sent, stream) or Sent()
    _rename(submitter, submission, sent)
    count = len(submission.ends)
    records = _from(tasks, submission.start(sent.prepared)) if sent.prepared < count else iter(())
    while True:
        if sent.submitted != sent.prepared:
            sent = Sent(sent.prepared, sent.prepared)
            streams.write(store, stream, sent)
        progress(submission.start(sent.submitted))
        if sent.submitted == count:
            return
        end = min(sent.prepared + WINDOW, count)
        _write(submitter, submission, range(sent.prepared, end), records)
        tasks.check_unchanged()
        sent = Sent(end, sent.submitted)
        streams.write(store, stream, sent)
        _rename(submitter, submission, sent)


def _write(
    submitter: Submitter, submission: Submission, numbers: range, records: Iterator[bytes]
) -> None:
    meta = submission.meta()
    for number in numbers:
        batch = list(islice(records, submission.ends[number] - submission.start(number)))
        data = segment.encode(Segment(segment.BATCH, meta, batch))
        submitter.prepare(submission.token(number), data)
    submitter.sync(submission.token(number).shard for number in numbers)


def _rename(submitter: Submitter, submission: Submission, sent: Sent) -> None:
    tokens = [submission.token(number) for number in range(sent.submitted, sent.prepared)]
    for token in tokens:
        submitter.enqueue(token)
    submitter.sync(token.shard for token in tokens)


def _from(tasks: TaskFile, start: int) -> Iterator[bytes]:
    return islice(tasks.records(), start, None)


def _check_same(before: Submission, asked: Asked) -> None:
    for what, then, now in (
        ("other tasks", before.digest, asked.digest),
        (f"the function {before.fn}", before.fn, asked.fn),
        (f"the timeout {before.timeout}", before.timeout, asked.timeout),
        (f"other needs ({before.needs})", before.needs, asked.needs),
    ):
        if then != now:
            raise UsageError(
                f"stream {before.stream!r} was submitted with {what}, from {before.file}: "
                "give --stream another name"
            )
