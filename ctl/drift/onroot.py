"""What workers say of their code, read from the root alone: beats, and a file beside where needed.

The digests stand in the beats, which whoever looks has read anyway. The lists of packages are read
only of hosts that differ, and of one that does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ctl.beats import EVERY
from ctl.drift import words
from ctl.drift.compare import Changes, Difference, Member, changes, compare
from fsworker.errors import FleetError
from fsworker.inventory.software import digest_of
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.code import Code
from fsworker.protocol.records.run import Heartbeat

MOST_READS = 16
"""Lists of packages that a look reads."""
MOST_TOLD = 100
"""Packages of one host that are told."""
_LARGEST = 4 << 20


@dataclass(frozen=True)
class Drift:
    """Who differs; `details`: in which packages, by host, where that could be read."""

    found: tuple[Difference, ...] = ()
    details: dict[str, Changes] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """A line for each set of hosts that differ in the same way."""
        return words.lines(self.found, self.details)

    def fields(self) -> list[dict[str, Any]]:
        """The differences as JSON objects, packages with their names and versions."""
        return [{**one.fields(), **self._packages(one)} for one in self.found]

    def _packages(self, one: Difference) -> dict[str, Any]:
        if one.what != "packages":
            return {}
        odd = {o.host: self.details[o.host] for o in one.odd if o.host in self.details}
        return {"packages": {h: dict(list(c.items())[:MOST_TOLD]) for h, c in odd.items()}}


def look(store: Store, beats: Mapping[str, Heartbeat | None]) -> Drift:
    """Who differs among the workers that beat."""
    found = compare([member(beat) for beat in beats.values() if beat is not None and runs(beat)])
    details: dict[str, Changes] = {}
    for one in found:
        if one.what == "packages":
            details |= _in_what(store, one)
    return Drift(tuple(found), details)


def members(store: Store) -> dict[str, Member]:
    """What each worker that serves says, by host; of the last beats, however old they are."""
    found = {}
    for name in store.scan(layout.STATUS):
        host = layout.parse_status_name(name)
        try:
            path = layout.status_path(host) if host else name
            beat: Heartbeat = Heartbeat.from_json(store.read(path, _LARGEST), path)
        except (OSError, FleetError):
            continue
        if host == beat.host and runs(beat):
            found[host] = member(beat)
    return found


def runs(beat: Heartbeat) -> bool:
    """Whether what it says is of a worker that serves, and of a release that says it."""
    return bool(beat.code) and not beat.stopped and beat.refused is None


def member(beat: Heartbeat) -> Member:
    """What a beat says of its worker's code; a field of another form counts as not said."""
    functions = beat.code.get("functions")
    told = functions if isinstance(functions, dict) else {}
    return Member(
        beat.host,
        f"{beat.versions.get('shardfleet', '')} ({beat.package_digest})",
        str(beat.versions.get("python", "")),
        str(beat.code.get("packages") or ""),
        {str(name): value for name, value in told.items() if value is None or type(value) is str},
        "bundle" if "bundle" in beat.versions else "installed",
        beat.seq * EVERY,
    )


def _in_what(store: Store, one: Difference) -> dict[str, Changes]:
    usual = next(_lists(store, one.others, one.usual), None)
    if usual is None:
        return {}
    found = {}
    for odd in one.odd[:MOST_READS]:
        for there in _lists(store, (odd.host,), odd.value):
            found[odd.host] = changes(there, usual)
    return found


def _lists(store: Store, hosts: Iterable[str], digest: str | None) -> Iterator[dict[str, str]]:
    """The packages of these hosts, of those whose file is the one that the beat speaks of."""
    for host in list(hosts)[:MOST_READS]:
        path = layout.host_file(host, "code.json")
        try:
            code: Code = Code.from_json(store.read(path, _LARGEST), store.path(path))
        except (OSError, FleetError):
            continue  # it is not written yet, or damaged: that they differ is known anyway
        if digest_of(code.packages) == digest:
            yield code.packages
