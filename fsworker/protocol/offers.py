"""Who of a run offers what: read from its heartbeats, so that clients, workers and ctl agree.

Whoever is of the run counts, as it offered when it was last heard of: a host that is restarted has
not stopped offering. Whether it lives matters only for where a batch is sent. The newest heartbeat
is the clock by which the others are old: all were dated by the file server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fsworker.errors import FormatError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.membership import read_members
from fsworker.protocol.records.member import with_members
from fsworker.protocol.records.needs import Needs, Offer, of_beat
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest, WorkerSpec

STALE = 15.0
"""Seconds behind the newest heartbeat after which a worker is not counted on."""
_BEAT_LIMIT = 1 << 20


@dataclass(frozen=True)
class Provider:
    """One host of a run: its home shard, what it offers (None: not known), whether it lives, and
    how many tasks it executes at once."""

    host: str
    shard: int
    offer: Offer | None = None
    live: bool = False
    slots: int = 0

    def serves(self, needs: Needs, *, job: bool = False) -> bool:
        """Whether it offers all that is needed."""
        return self.offer is not None and not self.offer.lacks(needs, job=job)


def read(store: Store, manifest: Manifest) -> list[Provider]:
    """Every host of the run, and every other that lives. Raises OSError."""
    beats = _beats(store)
    newest = max((mtime for _, mtime in beats.values()), default=0.0)
    workers = {worker.host: worker.shard for worker in _workers(store, manifest)}
    found = []
    for host in dict.fromkeys((*workers, *beats)):
        beat, mtime = beats.get(host, (None, 0.0))
        if beat is None:
            found.append(Provider(host, workers[host]))
            continue
        at_work = beat.ready and not (beat.stopped or beat.draining or beat.refused)
        live = at_work and newest - mtime <= STALE
        if live or host in workers:
            shard = beat.shard if live else workers[host]
            found.append(Provider(host, shard, of_beat(beat), live, beat.slots_total))
    return found


def able(providers: Iterable[Provider], needs: Needs, *, job: bool = False) -> list[Provider]:
    """Those that offer it; only the living ones where any of them lives."""
    found = [p for p in providers if p.serves(needs, job=job)]
    return [p for p in found if p.live] or found


def shortage(
    providers: Sequence[Provider], needs: Needs, *, job: bool = False, most: int = 4
) -> list[str]:
    """What each host lacks for this, those first that come nearest."""
    told = []
    for provider in providers:
        if provider.offer is None:
            told.append((99, f"{provider.host}: not heard of yet"))
            continue
        lacking = provider.offer.lacks(needs, job=job)
        if lacking:
            told.append((len(lacking), f"{provider.host} lacks {', '.join(lacking)}"))
    told.sort(key=lambda pair: pair[0])
    left = len(told) - most
    more = [f"and {left} more host{'s' if left > 1 else ''}"] if left > 0 else []
    return [words for _, words in told[:most]] + more


def refusal(root: str, providers: Sequence[Provider], needs: Needs, *, job: bool = False) -> str:
    """The sentence with which what nobody offers is refused."""
    lacking = "; ".join(shortage(providers, needs, job=job)) or "it has no workers"
    return f"nobody in {root} offers {needs}: {lacking}"


def _workers(store: Store, manifest: Manifest) -> tuple[WorkerSpec, ...]:
    """The hosts of the run as it is now; those of its manifest where no controller keeps a list."""
    try:
        data = store.read(layout.LAUNCH_META)
        meta: LaunchMeta = LaunchMeta.from_json(data, layout.LAUNCH_META)
    except (FileNotFoundError, FormatError):
        return manifest.workers
    return with_members(meta, read_members(store)).workers


def _beats(store: Store) -> dict[str, tuple[Heartbeat, float]]:
    found = {}
    for name in store.scan(layout.STATUS):
        host = layout.parse_status_name(name)
        if host is None:
            continue
        path = f"{layout.STATUS}/{name}"
        try:
            data, mtime = store.read_with_mtime(path, _BEAT_LIMIT)
            beat: Heartbeat = Heartbeat.from_json(data, path)
        except (OSError, FormatError):
            continue  # written anew at this moment, or removed, or damaged: as if it were silent
        if beat.host == host:
            found[host] = beat, mtime
    return found
