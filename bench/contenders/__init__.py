"""Who is measured: one module a contender, named here and imported only in a process of its own.

To add one, write a module with a class named `Contender` (see `base`) and its line here. `packages`
are installed into an environment of its own when `--peers all` asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A contender's name in tables, its module, and what it needs beside the extra `bench`."""

    name: str
    module: str
    packages: tuple[str, ...] = ()
    ours: bool = False


POOL = "multiprocessing.Pool(2)"
MAP, SUBMIT = "shardfleet map", "shardfleet submit"

ENTRIES = (
    Entry(POOL, "pool"),
    Entry(MAP, "fleet_map", ours=True),
    Entry(SUBMIT, "fleet_submit", ours=True),
    Entry("ProcessPoolExecutor(2)", "executor"),
    Entry("dirq", "dirq_queues"),
    Entry("huey, files", "huey_files"),
    Entry("jug", "jug_files"),
    Entry("Dask distributed", "dask_cluster", ("distributed",)),
    Entry("Ray", "ray_cluster", ("ray",)),
    Entry("Celery, filesystem", "celery_files", ("celery",)),
    Entry("HyperQueue", "hyperqueue_jobs", ("hyperqueue",)),
)
