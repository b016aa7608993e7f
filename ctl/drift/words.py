"""Differences as people read them, a line for hosts that differ alike. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctl.drift.compare import Changes, Difference, Odd

SHOWN = 3
"""Packages that a line names."""
LINES = 6

Details = Mapping[str, Changes]
"""The packages in which hosts differ, where that could be told."""


def by_host(found: Sequence[Difference], details: Details) -> dict[str, list[str]]:
    """What to say about each host that differs, most important first."""
    told: dict[str, list[str]] = {}
    for one in found:
        for odd in one.odd:
            told.setdefault(odd.host, []).append(_phrase(one, odd, details.get(odd.host, {})))
    return told


def lines(found: Sequence[Difference], details: Details) -> list[str]:
    """A line for each set of hosts that differ in the same way."""
    alike: dict[str, list[str]] = {}
    for host, phrases in by_host(found, details).items():
        alike.setdefault("; ".join(phrases), []).append(host)
    told = [
        f"{_names(hosts)} {'differs' if len(hosts) == 1 else 'differ'}: {what}"
        for what, hosts in alike.items()
    ]
    if len(told) > LINES:
        told[LINES - 1 :] = [f"{len(told) - LINES + 1} hosts more differ: see --json"]
    return told


def _names(hosts: Sequence[str]) -> str:
    if len(hosts) <= SHOWN:
        return ", ".join(hosts)
    return f"{', '.join(hosts[: SHOWN - 1])} and {len(hosts) - SHOWN + 1} more"


def _phrase(one: Difference, odd: Odd, changed: Changes) -> str:
    on = f"on {one.others[0]}" if len(one.others) == 1 else f"on {len(one.others)} others"
    if one.what == "packages":
        return _packages(changed, on)
    if one.what == "function":
        kept = {"older": "older source than", "newer": "newer source than"}
        how = kept.get(odd.age, "another source than")
        return f"function {one.name} ({how} {on})"
    name = "Python" if one.what == "python" else "shardfleet"
    return f"{name} {odd.value} against {one.usual} {on}"


def _packages(changed: Changes, on: str) -> str:
    if not changed:
        return f"other packages than {on}"
    named = [_package(name, *pair) for name, pair in list(changed.items())[:SHOWN]]
    more = len(changed) - len(named)
    noun = "package" if more == 1 else "packages"
    return f"{', '.join(named)}{f' and {more} {noun} more' if more else ''} {on}"


def _package(name: str, there: str | None, usual: str | None) -> str:
    if there is None:
        return f"no {name} against {usual}"
    return f"{name} {there} against {'none' if usual is None else usual}"
