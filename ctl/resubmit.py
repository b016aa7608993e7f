"""Sending given-up tasks once more, as a submission of its own whose results can be taken.

Whoever sent them has had its answer, and may be long gone. So they go under new batch ids to a
stream of their own, which `ctl results` reads like that of any task file. They are submitted as
suspects, with one death on them: each is executed alone, so that a task that kills again hits no
neighbour.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctl import needing, shelf, streams
from ctl.roots import Run
from ctl.shelf import Item
from ctl.streams import Sent, Submission
from fsworker.client.submitter import Submitter
from fsworker.protocol import layout, segment
from fsworker.protocol.records.needs import Needs, of_meta
from fsworker.protocol.segment import Segment

_Asked = tuple[str, float | None, Needs]
"""A function, a timeout, and needs."""


@dataclass(frozen=True)
class Retried:
    """A submission of given-up tasks, and the copies that it was made of."""

    stream: str
    tasks: int
    items: tuple[Item, ...]


def resubmit(run: Run, items: Sequence[Item]) -> list[Retried]:
    """Submit the given-up tasks of these copies; a stream for each function, timeout and needs.

    Nothing is submitted when one of the copies cannot be read. Interrupted, the copies are still
    there and some of their tasks may be executed for nobody.
    """
    groups: dict[_Asked, list[tuple[Item, list[bytes]]]] = defaultdict(list)
    for item in items:
        batch = shelf.batch_of(run, item)
        records = [batch.records[i] for i in shelf.given_up(item, batch)]
        groups[_asked(run, batch)].append((item, records))
    return [_submit(run, asked, group) for asked, group in groups.items()]


def _asked(run: Run, batch: Segment) -> _Asked:
    fn, timeout = batch.meta.get("fn"), batch.meta.get("timeout")
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    name = fn if isinstance(fn, str) else run.manifest.reward_fn
    return name, timeout if number else None, of_meta(batch.meta) or Needs()


def _submit(run: Run, asked: _Asked, group: list[tuple[Item, list[bytes]]]) -> Retried:
    fn, timeout, needs = asked
    life = layout.new_incarnation()
    stream, total, ends = f"retry-{life}", 0, []
    for _, records in group:
        total += len(records)
        ends.append(total)
    shards = tuple(needing.shards(run, needs))
    source, now = f"dead/ of {run.root}", time.time()
    submission = Submission(
        stream, source, "", fn, life, shards, tuple(ends), timeout, now, needs, waits=True
    )
    with streams.locked(run.store, stream, "lock"):
        _send(run, submission, [records for _, records in group])
    for item, _ in group:
        shelf.drop(run, item)
    return Retried(stream, total, tuple(item for item, _ in group))


def _send(run: Run, submission: Submission, batches: Sequence[list[bytes]]) -> None:
    submitter = Submitter(run.store, submission.incarnation)
    submitter.open_stream(layout.encode(submission.stream))
    meta = submission.meta()
    for number, records in enumerate(batches):
        token = replace(submission.token(number), deaths=1)
        submitter.prepare(token, segment.encode(Segment(segment.BATCH, meta, records)))
        submitter.enqueue(token)
    submitter.sync(submission.shards)
    # Only now may anybody wait for it: all of it was submitted.
    count = len(batches)
    streams.write(run.store, submission.stream, Sent(count, count))
    streams.write(run.store, submission.stream, submission)
