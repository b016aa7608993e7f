"""Whose code differs from that of the others, and whose worker runs what is no longer there. Pure.

Hosts are held against each other, not against the head, which runs no tasks. What a worker loaded
when it started is held against what its host has now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ctl.doctor.checks import OK, WARN, Check
from ctl.drift import words
from ctl.drift.compare import Changes, Difference, Member, changes, compare
from fsworker.inventory.software import digest_of

Facts = Mapping[str, Any]


def judge(
    facts: Mapping[str, Facts], running: Mapping[str, Member] | None = None
) -> dict[str, list[Check]]:
    """The lines about each host; `running`: what workers say of themselves, where there are any."""
    told = {host: one["code"] for host, one in facts.items() if isinstance(one.get("code"), dict)}
    members = [_member(host, code, facts[host]) for host, code in told.items()]
    found = compare(members)
    phrases = words.by_host(found, _details(found, told))
    checks: dict[str, list[Check]] = {}
    for one in members:
        mine = checks.setdefault(one.host, [])
        if one.host in phrases:
            advice = "put the same code and packages there"
            mine.append(Check(WARN, "drift", "; ".join(phrases[one.host]), advice))
        elif len(members) > 1:
            mine.append(Check(OK, "drift", "its code and packages are those of most hosts"))
        mine.extend(_outdated(one, (running or {}).get(one.host)))
    return checks


def _member(host: str, code: Facts, facts: Facts) -> Member:
    # Release and Python have a line of their own, against the head's.
    bundled = bool(facts.get("python", {}).get("bundle"))
    digest = digest_of(code["packages"])
    kind = "bundle" if bundled else "installed"
    return Member(host, packages=digest, functions=code["functions"], kind=kind)


def _details(found: Iterable[Difference], told: Mapping[str, Facts]) -> dict[str, Changes]:
    details: dict[str, Changes] = {}
    for one in found:
        if one.what == "packages":
            usual = told[one.others[0]]["packages"]
            details |= {o.host: changes(told[o.host]["packages"], usual) for o in one.odd}
    return details


def _outdated(now: Member, worker: Member | None) -> Iterable[Check]:
    """What the host's worker loaded and is there no longer."""
    if worker is None:
        return
    old = [n for n, d in worker.functions.items() if n in now.functions and now.functions[n] != d]
    said = [f"function {name}" for name in old]
    said += ["packages"] if worker.packages and worker.packages != now.packages else []
    if said:
        sentence = f"its worker started with other code than is there now: {', '.join(said)}"
        advice = f"ctl restart-host {now.host}, or ctl restart --rolling for all"
        yield Check(WARN, "worker", sentence, advice)
