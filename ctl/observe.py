"""What a watcher sees of a run root in one look: small, and free of judgement.

A look is made every few seconds for weeks, so it is one listing of three folders and one read of
each heartbeat, and what comes out is a few numbers a host. Whatever lies where a heartbeat should
be (nothing, half a file, a folder, another host's file) becomes a `problem` of that host and never
an exception: one bad file must not blind the watcher for all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import isfinite
from typing import Any

from ctl import renewal
from ctl.health import Beat
from fsworker.errors import FormatError, NotRunning
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.launches import numbers, with_numbers
from fsworker.protocol.membership import read_members
from fsworker.protocol.records import coding
from fsworker.protocol.records.member import Member, with_members
from fsworker.protocol.records.run import Heartbeat, LaunchMeta

STATUS_LIMIT = 1 << 20
SMALL = 1 << 16


@dataclass(frozen=True, slots=True)
class Reading:
    """One host's status file: its beat and when it was written, or what is wrong with it.

    `blind`: the reading failed here, which says nothing about the host.
    """

    beat: Beat | None = None
    mtime: float | None = None
    problem: str | None = None
    blind: bool = False


_KINDS = (str, int, int, bool, bool, bool, bool)
"""The types of `Beat`'s fields, up to `refused`."""

_ABSENT = (None, None, 0, False, False, False, False, None, None)
"""What stands for a field that a heartbeat leaves out; None where it must not."""


@dataclass(frozen=True, slots=True)
class Report:
    """One look. `now` is the file server's time; `meta` is None when it is as it was before."""

    now: float
    readings: Mapping[str, Reading]
    stops: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    meta: str | None = None
    meta_mtime: float = 0.0
    watch_stop: bool = False
    aggregated: bool = False
    """Whether the run has an aggregator of its own, which is to be kept alive."""
    renewed: int = 0
    """The day of the last pass that kept the run from a purge; see `ctl.renewal`."""

    def to_plain(self) -> dict[str, Any]:
        """The report as JSON values, short ones: it crosses a pipe at every sweep."""
        return {
            "now": self.now,
            "readings": {
                h: [r.beat, r.mtime, r.problem, r.blind] for h, r in self.readings.items()
            },
            "stops": self.stops,
            "owners": self.owners,
            "meta": self.meta,
            "meta_mtime": self.meta_mtime,
            "watch_stop": self.watch_stop,
            "aggregated": self.aggregated,
            "renewed": self.renewed,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Report:
        """The report that `to_plain` was made of."""
        readings = {
            host: Reading(Beat(*beat) if beat else None, mtime, problem, blind)
            for host, (beat, mtime, problem, blind) in plain["readings"].items()
        }
        owners = {host: tuple(names) for host, names in plain["owners"].items()}
        return cls(**{**plain, "readings": readings, "owners": owners})


def _has_aggregator(store: Store, names: Collection[str]) -> bool:
    """Whether the controller started one; costs a listing only where it ever did."""
    folder, _, name = layout.groups.AGGREGATOR_IDENTITY.rpartition("/")
    return folder.rpartition("/")[2] in names and name in store.scan(folder)


class Observer:
    """Looks at one root again and again; remembers only what it has already told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: tuple[bytes, tuple[Member, ...], dict[str, int]] = (b"", (), {})
        self._meta: LaunchMeta | None = None

    def look(self) -> Report:
        """One look. Raises OSError when the root does not answer, NotRunning when it is gone."""
        store = self._store
        try:
            now = store.server_time(layout.STATUS)
            names = set(store.scan(layout.CTL))
            statuses = set(store.scan(layout.STATUS))
            owners = _owners(store.scan(layout.CLAIMS))
            meta, mtime = self._read_meta(names)
        except FileNotFoundError:
            self._check_root()
            raise
        assert self._meta is not None
        hosts = [w.host for w in self._meta.workers]
        every = dict.fromkeys([*hosts, *owners])
        return Report(
            now,
            {host: read_status(store, host, statuses) for host in every},
            read_stops(store, hosts, names),
            owners,
            meta,
            mtime,
            layout.WATCH_STOP.rpartition("/")[2] in names,
            _has_aggregator(store, names),
            renewal.day_of(names),
        )

    def _read_meta(self, names: Collection[str]) -> tuple[str | None, float]:
        """The run as everybody sees it, as text if it changed, and when its meta was written."""
        data, mtime = self._store.read_with_mtime(layout.LAUNCH_META)
        members, numbered = read_members(self._store, names), numbers(names)
        if (data, members, numbered) == self._told:
            return None, mtime
        meta: LaunchMeta = LaunchMeta.from_json(data, self._store.path(layout.LAUNCH_META))
        self._meta = with_members(with_numbers(meta, numbered), members)
        self._told = (data, members, numbered)
        return self._meta.to_json().decode(), mtime

    def _check_root(self) -> None:
        """Raise NotRunning if the run is not there any more, rather than one file of it."""
        root = self._store.root
        try:
            names = self._store.scan("")
        except FileNotFoundError:
            raise NotRunning(f"the run root {root} is gone", path=root) from None
        if layout.MANIFEST not in names:
            raise NotRunning(f"{root} holds no run any more", path=root)


def read_status(store: Store, host: str, names: Iterable[str]) -> Reading:
    """A host's heartbeat, whatever lies in its place. `names`: a fresh listing of `status/`."""
    rel = _status_path(host)
    if rel.rpartition("/")[2] not in names:
        return Reading()
    try:
        data, mtime = store.read_with_mtime(rel, STATUS_LIMIT)
    except FileNotFoundError:
        return Reading()  # replaced between the listing and the look
    except OSError as error:
        return Reading(problem=f"cannot read {rel}: {error.strerror or error}", blind=True)
    try:
        named, beat = _parse(data, rel)
    except FormatError as error:
        return Reading(mtime=mtime, problem=str(error))
    if named != host:
        return Reading(mtime=mtime, problem=f"{rel} names another host: {named!r:.80}")
    return Reading(beat, mtime)


def _parse(data: bytes, rel: str) -> tuple[str, Beat]:
    """Whose beat it is, and the beat.

    Whatever is not plainly good goes to the strict decoder, which says what is wrong with it. To
    send a hundred good ones there at every sweep would cost more than everything else together.
    """
    raw = coding.load_object(data, rel)
    named, values = raw.get("host"), list(map(raw.get, Beat._fields, _ABSENT))
    *plain, refused, at = values
    good = all(type(v) is kind for v, kind in zip(plain, _KINDS, strict=False))
    if good and type(named) is str and refused is None and type(at) is float and isfinite(at):
        return named, Beat(*values)
    beat = coding.from_object(Heartbeat, raw, rel)
    return beat.host, Beat.of(beat)


_status_path = lru_cache(maxsize=4096)(layout.status_path)
_stop_path = lru_cache(maxsize=4096)(partial(layout.host_file, suffix="stop"))


def read_stops(store: Store, hosts: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """The stop intents that lie in `ctl/`, by host. One that cannot be read covers everything."""
    found = {}
    for host in hosts:
        rel = _stop_path(host)
        if rel.rpartition("/")[2] not in names:
            continue
        try:
            found[host] = store.read(rel, SMALL).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError:
            found[host] = ""  # it says stop, and how far cannot be told: start nothing
    return found


def _owners(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The incarnations that hold claims, by host."""
    found: dict[str, list[str]] = {}
    for owner in filter(None, map(layout.parse_owner, names)):
        found.setdefault(owner.host, []).append(owner.incarnation)
    return {host: tuple(sorted(lives)) for host, lives in found.items()}
