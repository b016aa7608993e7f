"""Which workers a live run is to have: pure, from the launch meta and what was asked for.

The number of shards of a run never changes, since clients send to all of them. So a host that joins
gets one that exists, the one with the fewest workers, and what a host that leaves served is served
by those that stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ctl.hosts import names_of
from fsworker.errors import UsageError
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec


@dataclass(frozen=True)
class Scale:
    """What changes. `meta` is the launch meta with those that join, each with a new launch, and
    still with those that leave: they go only once they are proven gone."""

    meta: LaunchMeta
    joining: tuple[str, ...]
    leaving: tuple[str, ...]


def parse_additions(texts: Iterable[str]) -> dict[str, int | None]:
    """The hosts of `HOST[:SHARD]` texts, where HOST may be a set."""
    found: dict[str, int | None] = {}
    for text in texts:
        stem, colon, shard = text.rpartition(":")
        given = colon and shard.isascii() and shard.isdigit() and (":" not in stem or "]" in stem)
        for name in names_of(stem if given else text, "--add"):
            if name in found:
                raise UsageError(f"--add names host {name!r} twice", host=name)
            found[name] = int(shard) if given else None
    return found


def plan(
    meta: LaunchMeta,
    down: Collection[str],
    *,
    exactly: Sequence[str] | None = None,
    add: dict[str, int | None] | None = None,
    remove: Sequence[str] = (),
    concurrency: int | None = None,
) -> Scale:
    """What to change. `exactly`: the hosts that the run is to have; `down`: those that a stop
    intent keeps down, which join again when they are wanted."""
    known = {worker.host.lower(): worker for worker in meta.workers}
    wanted = dict(add or {}) if exactly is None else dict.fromkeys(exactly)
    if exactly is not None:
        keep = {name.lower() for name in exactly}
        remove = [worker.host for key, worker in known.items() if key not in keep]
    leaving = tuple(_known(known, name).host for name in dict.fromkeys(remove))
    _check_apart(wanted, leaving)
    workers = [w for w in meta.workers if w.host not in leaving]
    joining = []
    for name, shard in wanted.items():
        worker = known.get(name.lower())
        if worker is None:
            worker = _new(meta, workers, name, shard, concurrency)
            workers.append(worker)
        elif shard not in (None, worker.shard):
            raise UsageError(
                f"host {worker.host!r} serves shard {worker.shard}, not {shard}: "
                "remove it first, then add it with the other shard",
                host=worker.host,
            )
        elif worker.host not in down:
            continue
        joining.append(worker.host)
    if not workers:
        raise UsageError("no host would be left in the run: use ctl stop to end it")
    going = [w for w in meta.workers if w.host in leaving]
    launches = {**meta.launches, **{h: meta.launches.get(h, 0) + 1 for h in joining}}
    changed = replace(meta, workers=(*workers, *going), launches=launches)
    return Scale(changed, tuple(joining), leaving)


def without(meta: LaunchMeta, hosts: Collection[str]) -> LaunchMeta:
    """The launch meta without these hosts; their launches stay counted."""
    return replace(meta, workers=tuple(w for w in meta.workers if w.host not in hosts))


def least_served(meta: LaunchMeta, workers: Iterable[WorkerSpec]) -> int:
    """The shard with the fewest workers, of several the lowest."""
    served = Counter(worker.shard for worker in workers)
    return min(range(meta.shard_count), key=lambda shard: (served[shard], shard))


def _new(
    meta: LaunchMeta,
    workers: Sequence[WorkerSpec],
    name: str,
    shard: int | None,
    concurrency: int | None,
) -> WorkerSpec:
    if shard is None:
        shard = least_served(meta, workers)
    elif shard >= meta.shard_count:
        raise UsageError(
            f"host {name!r}: there is no shard {shard}, the run has {meta.shard_count} "
            f"(0 to {meta.shard_count - 1}), and their number never changes",
            host=name,
        )
    kinds = Counter(replace(w, host=name, shard=shard) for w in meta.workers)
    usual = kinds.most_common(1)[0][0]
    return usual if concurrency is None else replace(usual, concurrency=concurrency)


def _known(known: dict[str, WorkerSpec], name: str) -> WorkerSpec:
    worker = known.get(name.lower())
    if worker is None:
        some = ", ".join(w.host for w in list(known.values())[:8])
        raise UsageError(f"host {name!r} is not of this run, which has {some}", host=name)
    return worker


def _check_apart(wanted: Iterable[str], leaving: Collection[str]) -> None:
    going = {name.lower() for name in leaving}
    for name in wanted:
        if name.lower() in going:
            raise UsageError(f"host {name!r} is both added and removed", host=name)
