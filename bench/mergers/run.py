"""One merge by one contender, in this process: `run.py FUNCTION OUT COUNTS FILE...`.

Prints one JSON line: seconds from opening the inputs to the output on disk, seconds of CPU, and
what memory the process took beyond what it held before (MiB). Runs in foreign environments too, so
it imports nothing of the project but in the functions that need it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Merge = Callable[[str, list[int], list[str]], None]

CHUNK = 1 << 20
PAUSE = 0.02
"""Seconds between two calls to store what was written."""


def main() -> None:
    """Run the contender that was named."""
    name, out, counts, files = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:]
    merge = CONTENDERS[name]()  # imports what it needs
    make_room(out + ".room", os.path.getsize(files[0]))
    idle = resident()
    cpu, began = time.process_time(), time.perf_counter()
    merge(out, counts, files)
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "idle": idle, "grown": peak - idle}))


def make_room(path: str, size: int) -> None:
    """Have as much memory at hand for the page cache as the output takes.

    A virtual machine gives memory that is free for some seconds back to its host, and getting it
    again takes longer than to write it: who imports for long would pay for that, the limit not.
    """
    with open(path, "wb") as file:
        for _ in range(0, size, CHUNK):
            file.write(bytes(CHUNK))
    os.unlink(path)


def resident() -> float:
    """MiB that this process has in memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def save(value: Any, out: str) -> None:
    """Write as torch does, and have it on disk."""
    import torch

    torch.save(value, out)
    fd = os.open(out, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)


def limit(store_meanwhile: bool = False) -> Merge:
    """Read every byte of the inputs and write as much as one of them, fsynced: two threads.

    With `store_meanwhile` a third has the disk store what was written while the rest is read, as in
    a merge of ours; else it has all of it to store at the end, as after a plain script.
    """

    def merge(out: str, counts: list[int], files: list[str]) -> None:
        inputs = [os.open(path, os.O_RDONLY) for path in files]
        output = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        places = iter(range(0, os.path.getsize(files[0]), CHUNK))
        lock = threading.Lock()

        def work() -> None:
            buffer = memoryview(bytearray(CHUNK))
            while True:
                with lock:
                    place = next(places, None)
                if place is None:
                    return
                got = 0
                for fd in inputs:
                    got = os.preadv(fd, [buffer], place)
                os.pwrite(output, buffer[:got], place)

        def store() -> None:
            while not all_read.wait(PAUSE):
                os.fdatasync(output)

        all_read = threading.Event()
        threads = [threading.Thread(target=work) for _ in range(2)]
        storing = [threading.Thread(target=store)] if store_meanwhile else []
        for thread in (*threads, *storing):
            thread.start()
        for thread in threads:
            thread.join()
        all_read.set()
        for thread in storing:
            thread.join()
        os.fsync(output)
        for fd in (*inputs, output):
            os.close(fd)

    return merge


def _ours(digests: bool, rule: str = "fedavg", numba: bool = True) -> Merge:
    from fedavg.checkpoint import open_checkpoint
    from fedavg.engine import compiled
    from fedavg.merging import Contribution, merge
    from fedavg.strategies import rule as rule_named

    of = rule_named(rule)
    if numba:
        compiled.loops()  # an import, and so in nobody's time
    else:
        compiled.WORTH = 1 << 60

    def run(out: str, counts: list[int], files: list[str]) -> None:
        opened = [open_checkpoint(path) for path in files]
        pairs = enumerate(zip(opened, counts, strict=True))
        inputs = [Contribution(f"{i:03}", checkpoint, count) for i, (checkpoint, count) in pairs]
        base = opened[0] if of.kind.needs_base else None
        merge(of, inputs, out, base=base, state_out=out + ".state", digests=digests)
        for checkpoint in opened:
            checkpoint.close()

    return run


def running_mean() -> Merge:
    """Add up one file after the other, mapped into memory, in float32."""
    import torch

    def merge(out: str, counts: list[int], files: list[str]) -> None:
        total: dict[str, Any] = {}
        types: dict[str, Any] = {}
        for path, count in zip(files, counts, strict=True):
            share = count / sum(counts)
            for key, value in torch.load(path, mmap=True, weights_only=True).items():
                types[key] = value.dtype
                if key in total:
                    total[key].add_(value, alpha=share)
                else:
                    total[key] = value.to(torch.float32, copy=True).mul_(share)
        save({key: value.to(types[key]) for key, value in total.items()}, out)

    return merge


def load_all() -> Merge:
    """What a script does: load every model, then average key by key."""
    import torch

    def merge(out: str, counts: list[int], files: list[str]) -> None:
        models = [torch.load(path, weights_only=True) for path in files]
        shares = [count / sum(counts) for count in counts]
        average = {}
        for key, first in models[0].items():
            rows = torch.stack([m[key].float() * s for m, s in zip(models, shares, strict=True)])
            average[key] = rows.sum(0).to(first.dtype)
        save(average, out)

    return merge


def nvflare() -> Merge:
    """NVFlare's own helper, which its aggregators use, on dicts of tensors, one file at a time."""
    import torch
    from nvflare.app_common.aggregators.weighted_aggregation_helper import (
        WeightedAggregationHelper,
    )

    def merge(out: str, counts: list[int], files: list[str]) -> None:
        helper = WeightedAggregationHelper()
        for path, count in zip(files, counts, strict=True):
            helper.add(torch.load(path, weights_only=True), count, path, 0)
        save(helper.get_result(), out)

    return merge


def flower() -> Merge:
    """Flower's own function, which its FedAvg uses, on arrays of numpy (which has no bfloat16)."""
    import torch
    from flwr.server.strategy.aggregate import aggregate

    def merge(out: str, counts: list[int], files: list[str]) -> None:
        models = [torch.load(path, weights_only=True) for path in files]
        types = {key: value.dtype for key, value in models[0].items()}

        def arrays(model: dict[str, Any]) -> list[Any]:
            wide = (v.float() if v.dtype == torch.bfloat16 else v for v in model.values())
            return [value.numpy() for value in wide]

        results = [(arrays(m), count) for m, count in zip(models, counts, strict=True)]
        pairs = zip(types.items(), aggregate(results), strict=True)
        save({key: torch.from_numpy(value).to(dtype) for (key, dtype), value in pairs}, out)

    return merge


CONTENDERS: dict[str, Callable[[], Merge]] = {
    "limit": limit,
    "limit_stored_meanwhile": lambda: limit(True),
    "ours": lambda: _ours(False),
    "ours_with_digest": lambda: _ours(True),
    "ours_without_numba": lambda: _ours(False, numba=False),
    "ours_fedadam": lambda: _ours(False, "fedadam"),
    "ours_median": lambda: _ours(False, "median"),
    "ours_krum": lambda: _ours(False, "krum"),
    "running_mean": running_mean,
    "load_all": load_all,
    "nvflare": nvflare,
    "flower": flower,
}

if __name__ == "__main__":
    main()
