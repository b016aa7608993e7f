"""An audit of a root from beginning to end: look, read, look again at what seems wrong, add up.

The rules of what is wrong stand in `fsworker.protocol.audit`. Here is their order, who is alive (by
heartbeats, read after the claims), and what the senders of batches have noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ctl import accounts, beats
from ctl.accounts import Account, Submitted
from ctl.bundle import checking
from ctl.roots import Run
from fsworker.errors import FormatError
from fsworker.protocol import audit, audit_garbage, layout, segment
from fsworker.protocol.audit import Finding, Place, Survey
from fsworker.protocol.audit_garbage import Garbage
from fsworker.protocol.audit_repair import HOST
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner
from fsworker.protocol.records.run import Heartbeat

LOOKS = 5
"""How often a batch that is nowhere is looked for before it is held to be lost."""

ProgressOf = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Is told how many files will be read; gives who hears how many were."""


@dataclass
class Row:
    """One sender's batches; `submitted` is None when it left no numbers, or old ones."""

    stream: str
    life: str
    pending: int = 0
    claimed: int = 0
    committed: int = 0
    read: int | None = None
    submitted: int | None = None
    source: str = ""


@dataclass
class Audit:
    """What an audit found. `living`: the hosts that beat, with their incarnations."""

    seen: Survey
    living: dict[str, str]
    damage: list[Finding] = field(default_factory=list)
    garbage: list[Garbage] = field(default_factory=list)
    abandoned: list[Owner] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    preparing: set[str] = field(default_factory=set)
    files: int = 0
    tasks: Counter[str] = field(default_factory=Counter)


def audit_run(run: Run, *, quick: bool, progress: ProgressOf) -> Audit:
    """Audit a root. `quick` looks at names only. Raises OSError when the root does not answer."""
    store = run.store
    before = accounts.submitted(store)
    seen = store.run(audit.survey())
    counters = accounts.of_clients(store, seen.counters)
    found = Audit(seen, living(run), preparing=before.preparing)
    found.damage += store.run(audit.in_two_places(seen))
    found.damage += audit.unserved(seen, run.manifest.shard_count)
    found.damage += checking.inspect(run, seen, quick=quick)
    if not quick:
        _read(store, found, progress)
    _sort_garbage(store, found)
    _add_up(store, found, before, counters)
    found.damage.sort()
    found.garbage.sort()
    return found


def living(run: Run) -> dict[str, str]:
    """The hosts that beat, each with the incarnation that does; what is unreadable has none."""
    limit = max(run.meta.heartbeat_stale if run.meta else 15.0, 5.0)
    found = {}
    for host in beats.beating(run.store, limit):
        rel = layout.status_path(host)
        try:
            beat: Heartbeat = Heartbeat.from_json(run.store.read(rel), rel)
            found[host] = beat.incarnation
        except (FileNotFoundError, FormatError):
            found[host] = ""
    return found


def _read(store: Store, found: Audit, progress: ProgressOf) -> None:
    """Read every data file that counts, every part, and the copies of what was given up."""
    places = list(found.seen.all_places())
    unfinished: list[Place] = []
    with progress(len(places)) as told:
        for number, place in enumerate(places, 1):
            answer = store.run(audit.read_place(place))
            if answer is None and place.state == "committed":
                unfinished.append(place)
            elif isinstance(answer, int):
                found.tasks[place.state] += answer
            _note(found, answer)
            told(number)
    if unfinished:
        found.damage += store.run(audit.without_result(unfinished))
    dead = (n for n in found.seen.set_aside[layout.DEAD] if not n.endswith(".reason.json"))
    for outcome, number in found.seen.parts:
        _note(found, store.run(audit.read_data(outcome.part(number), segment.PART)))
    for name in dead:
        _note(found, store.run(audit.read_data(layout.dead_path(name), segment.BATCH)))


def _note(found: Audit, answer: Finding | int | None) -> None:
    if isinstance(answer, Finding):
        found.damage.append(answer)
    found.files += isinstance(answer, int)


def _sort_garbage(store: Store, found: Audit) -> None:
    candidates = audit_garbage.worthless(found.seen)
    candidates = [g for g in candidates if not _is_prepared(found, g)]
    if candidates:
        proven = all(g.proven for g in candidates)
        later = found.seen if proven else store.run(audit.survey())
        found.garbage = store.run(audit_garbage.still(candidates, later))
    _find_abandoned(store, found)


def _find_abandoned(store: Store, found: Audit) -> None:
    """Owners that no living host claims to be, whose folders are still there at a second look."""
    gone = {o: n for o, n in found.seen.owners.items() if abandoned_words(o, n, found.living)}
    there = store.run(audit.again([layout.CLAIMS] if gone else []))
    for owner, tokens in gone.items():
        words = abandoned_words(owner, tokens, found.living)
        if owner.folder in there:
            found.abandoned.append(owner)
            found.garbage.append(Garbage("owner folder", owner.folder, words))


def abandoned_words(owner: Owner, tokens: int, living: dict[str, str]) -> str:
    """Why nobody seems to own these claims any more; empty when somebody does."""
    holds = f"it holds {tokens} batches" if tokens else "it is empty"
    if owner.host == HOST:
        return f"{holds}; left by a repair"
    beating = living.get(owner.host)
    if beating is None:
        return f"{holds}; its host is silent"
    if beating and beating != owner.incarnation:
        return f"{holds}; its host lives as {beating}"
    return ""


def _is_prepared(found: Audit, garbage: Garbage) -> bool:
    """Whether it is a batch that an interrupted `ctl submit` will submit when it goes on."""
    return (
        garbage.kind == "temporary" and audit_garbage.prepared_by(garbage.path) in found.preparing
    )


def _add_up(store: Store, found: Audit, before: Submitted, counters: list[Account]) -> None:
    """Compare what was submitted with what is there and what was read."""
    numbers = audit.lives(found.seen)
    known = _accounts(store, found, before, counters)
    suspects = [a for a in known if a.missing(numbers.get(a.key, set())) != 0]
    for _ in range(LOOKS - 1):
        if not suspects:
            break
        found_now = audit.lives(store.run(audit.survey()))
        for account in suspects:
            now = found_now.get(account.key, set())
            # For what is missing every look counts; what is too much must be there in each.
            old = numbers.get(account.key, set())
            numbers[account.key] = old & now if account.missing(old) < 0 else old | now
        known = _accounts(store, found, before, counters)
        suspects = [a for a in known if a.missing(numbers.get(a.key, set())) != 0]
    for account in suspects:
        found.damage.append(_unbalanced(account, numbers.get(account.key, set())))
    found.rows = _rows(found.seen, known, numbers)


def _accounts(
    store: Store, found: Audit, before: Submitted, counters: list[Account]
) -> list[Account]:
    """What is known now. Counters that have changed meanwhile are held against nobody."""
    now = set(accounts.of_clients(store, found.seen.counters))
    return [*accounts.of_submissions(store, before), *(c for c in counters if c in now)]


def _unbalanced(account: Account, found: set[int]) -> Finding:
    missing = account.missing(found)
    said = f"{account.submitted} were submitted, {account.read_of(found)} are read"
    words = f"{said}, {len(found)} are here: " + (
        f"{missing} are lost" if missing > 0 else f"{-missing} too many"
    )
    if account.taken is not None and missing > 0:
        gone = (n for n in range(account.submitted) if n not in found | account.taken)
        words += f" (the first has number {next(gone)})"
    kind = "lost" if missing > 0 else "too many"
    stream, life = account.key
    return Finding(kind, layout.outbox_dir(stream), words, f"{stream}-{life}")


def _rows(
    seen: Survey, known: list[Account], numbers: dict[tuple[str, str], set[int]]
) -> list[Row]:
    rows: dict[tuple[str, str], Row] = {}
    for (stream, life), states in audit.count(seen).items():
        name = layout.decode(stream)
        rows[stream, life] = Row(
            name, life, states["pending"], states["claimed"], states["committed"]
        )
    for account in known:
        row = rows.setdefault(account.key, Row(account.stream, account.life))
        row.source = account.source
        if account.settled:
            row.submitted = account.submitted
            row.read = account.read_of(numbers.get(account.key, set()))
    return [rows[key] for key in sorted(rows)]


def to_plain(found: Audit) -> dict[str, Any]:
    """The audit as JSON fields."""
    places = Counter(place.state for place in found.seen.all_places())
    return {
        "live": bool(found.living),
        "batches": {s: places[s] for s in ("pending", "claimed", "committed")},
        "tasks": {s: found.tasks[s] for s in ("pending", "claimed", "committed")},
        "files_read": found.files,
        "damage": [
            {"kind": f.kind, "path": f.path, "batch": f.batch or None, "words": f.words}
            for f in found.damage
        ],
        "garbage": [
            {"kind": g.kind, "path": g.path, "words": g.words, "proven": g.proven}
            for g in found.garbage
        ],
        "ignored": found.seen.ignored,
        "streams": [vars(row) for row in found.rows],
        "dead": _copies(found, layout.DEAD),
        "quarantine": _copies(found, layout.QUARANTINE),
    }


def _copies(found: Audit, folder: str) -> int:
    return sum(not n.endswith(".reason.json") for n in found.seen.set_aside[folder])
