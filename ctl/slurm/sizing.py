"""How many workers a backlog asks for: pure."""

from __future__ import annotations


def wanted(backlog: int, batches_a_worker: int, least: int, most: int) -> int:
    """Workers for so many batches that wait or run, `batches_a_worker` for each, within bounds."""
    enough = -(-max(backlog, 0) // max(batches_a_worker, 1))
    return max(least, min(most, enough))


def change(present: int, waiting: int, target: int) -> tuple[int, int]:
    """(jobs to submit, jobs to cancel) to come from `present` jobs to `target`.

    `waiting` of the present ones have not begun; only those are ever cancelled: a worker that runs
    leaves by itself once it is idle.
    """
    return max(0, target - present), max(0, min(waiting, present - target))
