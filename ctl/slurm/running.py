"""A run on Slurm from its start to its stop: what verbs and the watcher do with its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ctl import roots, statusview, stopping
from ctl.health import State
from ctl.roots import Run
from ctl.slurm import backlog, fleet, sizing
from ctl.slurm.fleet import View
from ctl.slurm.terms import Book
from fsworker.errors import FleetError, UsageError
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import LaunchMeta

POLL = 1.0
FINE = frozenset({"COMPLETED", "CANCELLED"})
"""How a job ends that nobody has to replace."""


def start(store: Store, meta: LaunchMeta, book: Book) -> Book:
    """Submit the workers of a new run; if one is refused, all are cancelled."""
    fleet.write(store, book)
    try:
        return fleet.submit(store, meta, book, book.nodes)
    except BaseException:
        there = fleet.read(store)
        if there is not None:
            fleet.cancel(store, list(there.jobs))
        raise


def await_members(root: str, book: Book, timeout: float, say: Callable[[str], None]) -> int:
    """Wait until all that run are ready; how many are. What still waits in the queue is said."""
    end = time.monotonic() + timeout
    while True:
        ready, seen = _ready(root), fleet.view(book)
        lost = [row for row in seen.rows.values() if row.over]
        if lost:
            raise FleetError(
                f"job {lost[0].id} ended at once ({lost[0].state}, {lost[0].reason}): see "
                f"{root}/ctl/slurm-{lost[0].id}.out"
            )
        begun = len(seen.present) - len(seen.waiting)
        # Without a reason Slurm has not looked at a job yet.
        undecided = any(seen.rows[job.id].reason in ("", "None") for job in seen.waiting)
        if (ready >= begun and not undecided) or time.monotonic() >= end:
            break
        time.sleep(POLL)
    if seen.waiting:
        reason = seen.rows[seen.waiting[0].id].reason
        say(f"{len(seen.waiting)} of {len(book.jobs)} jobs wait in the queue ({reason})")
    return ready


def before_stop(run: Run) -> Run:
    """Cancel what has not begun, since it would join a run that is over; the run without those
    whose jobs have ended, for whom nobody has to wait."""
    book = fleet.read(run.store)
    if book is None:
        return run
    seen = fleet.view(book)
    fleet.cancel(run.store, seen.waiting, pending=True)
    fleet.bury(run.store, seen)
    return roots.open_run(run.root, run.source)


def after_stop(run: Run) -> int:
    """Cancel what is left; how many jobs that were."""
    book = fleet.read(run.store)
    if book is None:
        return 0
    left = fleet.view(book).present
    fleet.cancel(run.store, left)
    fleet.shut_out(run.store, book.jobs)
    fleet.write(run.store, replace(book, nodes=0, least=0, most=0, jobs=()))
    return len(left)


def resize(run: Run, nodes: int | None, auto: tuple[int, int] | None) -> tuple[int, int]:
    """Ask for another size; (jobs submitted, jobs cancelled or told to end).

    With a number, workers that run are drained when it takes that; by the backlog they leave by
    themselves once they are idle. The verb lock must be held.
    """
    book = _book(run)
    if auto:
        terms = replace(book.terms, max_idle=book.terms.max_idle or 120.0)
        book = replace(book, least=auto[0], most=auto[1], terms=terms)
    else:
        book = replace(book, nodes=nodes or 0, least=0, most=0)
    fleet.write(run.store, book)
    seen = fleet.view(book)
    if auto:
        return _reach(run, seen, _auto_target(run, book))
    more, fewer = _reach(run, seen, book.nodes)
    surplus = len(seen.present) - fewer - book.nodes
    return more, fewer + _drain(run, seen, max(0, surplus))


def step(run: Run) -> tuple[int, int]:
    """What is due now and then: follow the backlog, or replace workers that died, up to the cap."""
    book = _book(run)
    seen = fleet.view(book)
    if book.most:
        return _reach(run, seen, _auto_target(run, book))
    died = [r for r in seen.rows.values() if r.over and r.state not in FINE]
    fill = min(len(died), book.resubmit - book.replaced)
    if fill <= 0:
        return 0, 0
    fleet.write(run.store, replace(book, replaced=book.replaced + fill))
    seen = View(replace(book, replaced=book.replaced + fill), seen.rows)
    return _reach(run, seen, len(seen.present) + fill)


def _drain(run: Run, seen: View, count: int) -> int:
    """Tell the workers of the youngest jobs that run to finish and end; how many were told."""
    members = {member.host for member in run.members}
    running = [j.member for j in seen.present if j not in seen.waiting and j.member in members]
    chosen = running[-count:] if count else []
    meta = run.everybody
    if meta is not None:
        stopping.write_intents(run.store, meta, chosen)
    return len(chosen)


def _auto_target(run: Run, book: Book) -> int:
    return sizing.wanted(backlog.count(run, book), book.parallel, book.least, book.most)


def _reach(run: Run, seen: View, target: int) -> tuple[int, int]:
    present, waiting = len(seen.present), seen.waiting
    more, fewer = sizing.change(present, len(waiting), target)
    if fewer:
        fleet.cancel(run.store, waiting[-fewer:], pending=True)
    book = fleet.tidy(run.store, seen)
    fleet.submit(run.store, run.need_meta(), book, more)
    return more, fewer


def _book(run: Run) -> Book:
    book = fleet.read(run.store)
    if book is None:
        raise UsageError(f"{run.root} is no run of Slurm: scale it by hosts (--add, --remove)")
    return book


def _ready(root: str) -> int:
    hosts = statusview.look(roots.open_run(root), 15.0).hosts
    return sum(h.state == State.READY for h in hosts)
