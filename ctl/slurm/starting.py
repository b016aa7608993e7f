"""What `start` does for a run on Slurm: submit its workers, and wait for those that begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctl import render
from ctl.planning import Plan
from ctl.session import Session
from ctl.slurm import queue, running
from ctl.slurm.options import book_of
from fsworker.protocol.fsops import Store


def submit(session: Session, plan: Plan, store: Store, options: Mapping[str, Any]) -> None:
    """Submit the workers of a plan. A job that ends at once is an error; one that waits is not."""
    queue.require()
    concurrency = session.config.pick("concurrency", options["concurrency"])
    book = book_of(options, concurrency, session.config.pick("job_slots", options["job_slots"]))
    book = running.start(store, plan.meta, book)
    if not session.json:
        render.line({"ok": True, "phase": "submitted", "jobs": [job.id for job in book.jobs]})
    ready = running.await_members(plan.root, book, plan.meta.ready_timeout, session.note)
    session.note(f"{ready} of {len(book.jobs)} workers are ready")
