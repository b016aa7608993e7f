"""Where jobs go: to workers that offer what they need, those with free job slots first."""

from __future__ import annotations

from collections import Counter

from ctl.beats import HEARTBEAT_LIMIT
from ctl.jobs.board import Board
from ctl.needing import providers
from ctl.roots import Run
from fsworker.errors import FormatError
from fsworker.protocol import layout, offers
from fsworker.protocol.records.needs import Needs
from fsworker.protocol.records.run import Heartbeat, WorkerSpec


def able(run: Run, needs: Needs) -> list[WorkerSpec]:
    """The workers with job slots that offer what is needed."""
    workers = [worker for worker in run.workers if worker.job_slots]
    if not needs:
        return workers
    serving = {p.host for p in offers.able(providers(run), needs, job=True)}
    return [worker for worker in workers if worker.host in serving]


def choose_shards(run: Run, count: int, needs: Needs) -> list[int]:
    """Where jobs go: to workers with free job slots in turn, then to all that have job slots.

    Where nobody offers what they need, they wait in any shards.
    """
    busy = _busy(run)
    waiting = Counter(job.shard for job in Board.look(run).pending.values())
    free: Counter[int] = Counter()
    for worker in able(run, needs) or able(run, Needs()):
        free[worker.shard] += worker.job_slots - busy.get(worker.host, 0)
    if not free:
        free.update(dict.fromkeys(range(run.manifest.shard_count), 0))
    free.subtract(waiting)
    chosen = []
    for _ in range(count):
        shard = max(sorted(free), key=lambda s: free[s])
        free[shard] -= 1
        chosen.append(shard)
    return chosen


def _busy(run: Run) -> dict[str, int]:
    found = {}
    for worker in run.workers:
        path = layout.status_path(worker.host)
        try:
            beat: Heartbeat = Heartbeat.from_json(run.store.read(path, HEARTBEAT_LIMIT), path)
        except (OSError, FormatError):
            continue
        found[worker.host] = beat.jobs_busy
    return found
