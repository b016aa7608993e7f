"""Taking all results of a submission into a file, over any number of interrupted attempts.

The order makes it safe: open the partial file; note on the run root where results go; then, again
and again, keep what has come and only after that forget it there. When everything is kept, write
the file, clear the stream, note that it is complete, remove the partial file. Each step may be
repeated.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from ctl import spool, streams
from ctl.roots import Run
from ctl.spool import Spool
from ctl.streams import Sent, Submission, Taken
from fsworker.client.delivery import Delivered, Delivery, Want
from fsworker.client.liveness import Liveness
from fsworker.client.pace import Pace
from fsworker.client.routing import Routes, Shortage
from fsworker.errors import DeadlineExceeded, FleetError, UsageError
from fsworker.protocol import layout

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Batches that are kept by one fsync at most, and so held in memory."""


def find(run: Run, stream: str | None) -> Submission:
    """The submission whose results are meant: of this stream, or of the only one."""
    known = streams.names(run.store)
    if stream is None:
        if not known:
            raise UsageError(f"nothing was submitted to {run.root} yet: use ctl submit")
        if len(known) == 1:
            stream = known[0]
        else:
            have = ", ".join(known)
            raise UsageError(f"name the stream of the run at {run.root}: it has {have}")
    submission = streams.read(run.store, Submission, streams.check_name(stream))
    if submission is None:
        have = f"there are {', '.join(known)}" if known else "there is none yet: use it first"
        raise UsageError(f"nothing was submitted to stream {stream!r} by `ctl submit`: {have}")
    return submission


def gather(
    run: Run,
    submission: Submission,
    out: str | None,
    *,
    timeout: float | None,
    no_worker_timeout: float | None,
    progress: Callable[[int], None],
) -> Taken:
    """Wait for all results and write them to `out`, or else to a file on the run root.

    Times in seconds.
    Raises DeadlineExceeded, NoWorkers, StorageError; what came until then is kept.
    """
    wanted = _destination(run, submission, out)
    out = wanted.out
    taken = streams.read(run.store, Taken, submission.stream)
    if taken is not None:
        _check_same(taken, wanted, submission)
        if taken.complete:
            return _complete(taken)
    kept = Spool(out, submission)
    try:
        if taken is None:
            taken = wanted
            streams.write(run.store, submission.stream, taken)
        gathering = _Gathering(run, submission, kept, progress)
        gathering.wait(timeout, no_worker_timeout)
        kept.finish()
        gathering.clear()
        _remove_stream(run, submission)
        taken = replace(taken, complete=True, failed=kept.failed)
        streams.write(run.store, submission.stream, taken)
        kept.remove()
    finally:
        kept.close()
    return taken


class _Gathering:
    def __init__(
        self, run: Run, submission: Submission, kept: Spool, progress: Callable[[int], None]
    ) -> None:
        self._run, self._submission = run, submission
        self._kept, self._progress = kept, progress
        stream = layout.encode(submission.stream)
        self._delivery = Delivery(run.store, stream, self._judge)
        self._all_sent = False

    def wait(self, timeout: float | None, no_worker_timeout: float | None) -> None:
        """Return when every batch is kept."""
        end = None if timeout is None else time.monotonic() + timeout
        liveness, pace = Liveness(self._run.store, no_worker_timeout), Pace()
        shortage = self._shortage(no_worker_timeout)
        self._progress(self._kept.tasks)
        while not self._kept.complete:
            if self._take():
                pace.reset()
                liveness.heard()
                self._progress(self._kept.tasks)
                continue
            self._check_submitted()
            if end is not None and time.monotonic() >= end:
                raise DeadlineExceeded(f"{self._so_far()}: run this again to go on")
            if (reason := liveness.check()) is not None:
                raise reason
            if (reason := shortage()) is not None:
                raise reason
            time.sleep(pace.next())

    def _shortage(self, limit: float | None) -> Callable[[], FleetError | None]:
        """Says when no worker has lived for so long that offers what the tasks need."""
        needs = self._submission.needs
        if not needs or self._submission.waits:
            return lambda: None
        routes = Routes(self._run.store, self._run.manifest)
        watch, names = Shortage(routes, limit), [routes.learn(needs)]
        return lambda: next((error for _, error in watch.check(names)), None)

    def clear(self) -> None:
        """Remove what is left in the stream of what is kept."""
        self._delivery.clear()

    def _take(self) -> bool:
        """Keep, then forget, what has come; whether anything has."""
        came = False
        waiting: list[Delivered] = []
        try:
            for delivered in self._delivery.poll(early=False):
                came = True
                self._keep(delivered)
                waiting.append(delivered)
                if len(waiting) == AT_ONCE:
                    self._settle(waiting)
        except OSError as error:
            log.info("cannot read results now: %s", error)  # liveness says so if it lasts
        self._settle(waiting)
        return came

    def _keep(self, delivered: Delivered) -> None:
        number = self._submission.number(delivered.batch)
        assert number is not None, "judge lets nothing else through"
        rows = list(delivered.singles())
        if delivered.lost is not None:
            wanted = self._submission.ends[number] - self._submission.start(number)
            rows = spool.lost_rows(delivered.lost, wanted)
        self._kept.keep(number, rows)

    def _settle(self, waiting: list[Delivered]) -> None:
        if waiting:
            self._kept.sync()
            for delivered in waiting:
                self._delivery.forget(delivered)
            waiting.clear()

    def _judge(self, batch: str) -> Want:
        number = self._submission.number(batch)
        if number is None:
            return Want.LEAVE
        return Want.DROP if number in self._kept else Want.TAKE

    def _check_submitted(self) -> None:
        """Say so when what is waited for was never submitted, and nobody is at it."""
        if self._all_sent:
            return
        store, submission = self._run.store, self._submission
        sent = streams.read(store, Sent, submission.stream) or Sent()
        self._all_sent = sent.submitted == len(submission.ends)
        if self._all_sent or len(self._kept) < sent.submitted:
            return
        if streams.is_locked(store, submission.stream, "lock"):
            return
        raise FleetError(
            f"{self._so_far()}, and only {submission.start(sent.submitted)} tasks were submitted: "
            f"run `ctl submit --tasks {submission.file} --stream {submission.stream}` to the end"
        )

    def _so_far(self) -> str:
        submission = self._submission
        return (
            f"{self._kept.tasks} of {submission.tasks} results of stream {submission.stream!r} "
            f"are kept in {self._kept.path}"
        )


def _remove_stream(run: Run, submission: Submission) -> None:
    """Remove the stream's folder, which is empty unless something of no worth is left in it."""
    try:
        run.store.rmdir(layout.outbox_dir(layout.encode(submission.stream)))
    except OSError as error:
        log.debug("the folder of stream %s stays: %s", submission.stream, error)


def _destination(run: Run, submission: Submission, out: str | None) -> Taken:
    if out is None:
        return Taken(run.store.path(streams.results_path(submission.stream)), "")
    return Taken(spool.place_of(out, submission.file), socket.gethostname())


def _check_same(taken: Taken, wanted: Taken, submission: Submission) -> None:
    if (taken.out, taken.machine) == (wanted.out, wanted.machine):
        if not taken.complete:
            spool.check_there(taken.out + ".partial")
        return
    text = f"results of stream {submission.stream!r} {'were' if taken.complete else 'are'} taken "
    if taken.machine:
        raise UsageError(f"{text}to {taken.out} on {taken.machine}: give that file with -o")
    raise UsageError(f"{text}for stdout: leave -o out; they are kept in {taken.out}")


def _complete(taken: Taken) -> Taken:
    if not os.path.exists(taken.out):
        raise UsageError(
            f"the results were written to {taken.out}, which is gone, and are no longer in the run",
            path=taken.out,
        )
    partial = taken.out + ".partial"
    if os.path.exists(partial):
        os.unlink(partial)
    return taken
