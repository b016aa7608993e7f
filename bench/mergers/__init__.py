"""Who merges: one function a contender, each run in a process of its own (`run.py`).

To add one, write a function in `run.py`, and its line here. `packages` are installed into an
environment of its own; the standard ones need what this environment has.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCH = ("torch==2.13.0", "numpy>=1.26")


@dataclass(frozen=True)
class Entry:
    """A contender's name in tables, its function, and what else its environment needs."""

    name: str
    function: str
    packages: tuple[str, ...] = ()


LIMIT, OVERLAPPED = "read all, write one (limit)", "the same, stored meanwhile"
OURS, DIGEST = "fedavg merge", "fedavg merge, with digest"
PLAIN = "fedavg merge, without numba"
LOAD_ALL, NVFLARE, FLOWER = "load all and average", "NVFlare 2.9", "Flower 1.42"
MMAP = "running mean over mmap"

ENTRIES = (
    Entry(LIMIT, "limit"),
    Entry(OVERLAPPED, "limit_stored_meanwhile"),
    Entry(OURS, "ours"),
    Entry(DIGEST, "ours_with_digest"),
    Entry(PLAIN, "ours_without_numba"),
    Entry(MMAP, "running_mean"),
    Entry(LOAD_ALL, "load_all"),
    Entry(NVFLARE, "nvflare", ("nvflare==2.9.0", *TORCH)),
    Entry(FLOWER, "flower", ("flwr==1.42.0", *TORCH)),
)
