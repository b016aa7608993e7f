"""What the soak found, and whether that is what was promised."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import soak_processes
import soak_task
from report import eventually, median
from soak_record import UNKNOWN, Kind

if TYPE_CHECKING:
    from soak import Soak

SAMPLED = ("client", "worker", "zygote", "wrapper", "watcher")
SLACK_MIB = 24
"""MiB by which the median of the last third may exceed that of the first."""


@dataclass
class Found:
    """What was counted."""

    kills: Counter[str] = field(default_factory=Counter)
    idle_kills: int = 0
    rows: Counter[Kind] = field(default_factory=Counter)
    numbers: dict[Kind, list[int]] = field(
        default_factory=lambda: {Kind.CRASHED: [], Kind.LOST: []}
    )
    slots: list[tuple[int, int]] = field(default_factory=list)
    """The slots that were killed: pid, and when in ns."""
    victims: set[int] = field(default_factory=set)
    """The tasks that these were at."""
    wrong: int = 0
    twice: int = 0
    again: int = 0
    hung: bool = False
    client_waits: list[float] = field(default_factory=list)
    audits: int = 0
    damage: list[str] = field(default_factory=list)
    left_batches: int = 0
    garbage: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    quarantine: int = 0
    not_ready: list[str] = field(default_factory=list)
    left_processes: list[str] = field(default_factory=list)
    stop_said: str = ""
    executions: Counter[int] = field(default_factory=Counter)

    def crashed_for_nothing(self) -> int:
        """Tasks that were told to have crashed, and were in no slot that was killed."""
        return len([n for n in self.numbers[Kind.CRASHED] if n not in {*self.victims, UNKNOWN}])

    def lost(self) -> int:
        """Tasks that were executed and not answered, but for those known to have crashed.

        What a later life is told of a crash does not say which task that was.
        """
        lost = self.numbers[Kind.LOST]
        crashed = sum(n in self.victims for n in lost)
        return len(lost) - min(crashed, self.numbers[Kind.CRASHED].count(UNKNOWN))

    def note_audit(self, done: subprocess.CompletedProcess[str], when: str) -> dict[str, Any]:
        """Keep what `ctl fsck --json` says is wrong."""
        self.audits += 1
        try:
            audit: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            self.damage.append(f"{when}: fsck exits {done.returncode}: {done.stderr[-500:]}")
            return {}
        self.damage += [f"{when}: {d['kind']} {d['path']}: {d['words']}" for d in audit["damage"]]
        return audit


def settle(soak: Soak) -> None:
    """Look at the run alive and stopped, by every verb that can accuse it."""
    found, run = soak.found, soak.run
    try:
        eventually(lambda: run.ctl("status").returncode == 0, 120, "all ready", pause=1)
    except TimeoutError:
        found.not_ready.append(run.ctl("status").stdout)
    found.note_audit(run.ctl("fsck", "--json"), "at the end")
    stopped = run.ctl("stop", "--grace", "20")
    found.stop_said = "" if stopped.returncode == 0 else stopped.stdout + stopped.stderr
    found.left_processes = _left(soak.token)
    audit = found.note_audit(run.ctl("fsck", "--json"), "stopped")
    if audit:
        found.left_batches = sum(audit["batches"].values())
        found.garbage.update(g["kind"] for g in audit["garbage"])
        found.dead, found.quarantine = audit["dead"], audit["quarantine"]
    found.executions = soak_task.executions(soak.traces)
    found.victims = soak_task.last_of(soak.traces, found.slots)


def _left(token: str) -> list[str]:
    """Who is there though nobody should be; who is about to end may do so."""
    end = time.monotonic() + 3
    while (pids := soak_processes.members(token)) and time.monotonic() < end:
        time.sleep(0.05)
    return [f"{pid} {soak_processes.command(pid)}" for pid in pids]


def tables(soak: Soak) -> None:
    """Print what happened."""
    found, out = soak.found, soak.out
    out.table(
        f"Kills, seed {soak.args.seed}; seconds from a kill to the next commit of its host",
        ("kind", "kills", "median s", "max s", "never"),
        [_kills_row(soak, kind) for kind in soak_processes.KINDS],
    )
    tasks, seconds = soak.progress.done, soak.samples[-1]["at"]
    executed = sum(found.executions.values())
    more = executed - len(found.executions)
    rows = [
        ("tasks answered", tasks),
        ("seconds", seconds),
        ("tasks a second", tasks / seconds),
        ("executions", executed),
        ("executed more than once, share", more / tasks if tasks else None),
        ("batches committed", len(soak.commits.of_batch)),
        ("client lives", soak.client.life),
        ("answers by futures", found.rows[Kind.FUTURE]),
        ("answers recovered by a later life", found.rows[Kind.RECOVERED]),
        ("of these, known already to the life that died", found.again),
        ("never sent by the life that died, sent later", found.rows[Kind.AGAIN]),
        ("crashed with the slot that was killed under them", found.rows[Kind.CRASHED]),
        ("audits", found.audits),
        *((f"garbage: {kind}", count) for kind, count in sorted(found.garbage.items())),
    ]
    out.table("The soak", ("what", "count"), rows)
    head = ("minute", "answered", "tasks/s", *SAMPLED)
    out.table("Over time; resident memory in MiB, medians", head, _over_time(soak.samples))
    out.figures["samples"] = soak.samples
    out.figures["seed"] = soak.args.seed
    out.figures["answered"] = tasks
    out.figures["executions"] = executed
    out.figures["kills"] = dict(found.kills)
    for title, lines in (
        ("Damage", found.damage),
        ("Not ready", found.not_ready),
        ("Processes that are left", found.left_processes),
        ("What stop said", [found.stop_said] if found.stop_said else []),
    ):
        if lines:
            out.table(title, ("what",), [(line,) for line in lines[:20]])


def _kills_row(soak: Soak, kind: str) -> tuple[object, ...]:
    if kind == "client":
        times, never = soak.found.client_waits, None
    else:
        waits = [w for w in soak.commits.waits if w.killed.kind == kind]
        times = [w.seconds for w in waits if w.seconds is not None]
        never = len(waits) - len(times)
    return kind, soak.found.kills[kind], median(times), max(times, default=None), never


def _over_time(samples: list[dict[str, Any]], rows: int = 10) -> list[tuple[object, ...]]:
    found, size = [], max(1, -(-len(samples) // rows))
    for at in range(0, len(samples) - 1, size):
        part = samples[at : at + size + 1]
        first, last = part[0], part[-1]
        rate = (last["done"] - first["done"]) / max(last["at"] - first["at"], 1e-6)
        found.append((last["at"] / 60, last["done"], rate, *(_usual(part, k) for k in SAMPLED)))
    return found


def _usual(samples: list[dict[str, Any]], kind: str) -> float | None:
    """The median of those samples in which there was such a process."""
    values = [s[kind] for s in samples if s[kind]]
    return statistics.median(values) if values else None


def _growth(samples: list[dict[str, Any]], kind: str) -> float | None:
    """How far the last third of the run lies above its first.

    The end is left out: what clients had queued when they died goes out there at once, and the
    client holds a future for each.
    """
    end = 0.9 * max((s["done"] for s in samples), default=0)
    samples = [s for s in samples if s["done"] < end]
    third = len(samples) // 3
    first, last = _usual(samples[1 : third + 1], kind), _usual(samples[-third:], kind)
    return None if first is None or last is None or not third else last - first


def targets(soak: Soak) -> None:
    """What was promised."""
    found, none = soak.found, {"at_most": 0}
    add, answered = soak.out.target, soak.progress
    add("tasks without an answer", float(len(answered.gaps())), **none)
    add("tasks with two answers", float(found.twice), **none)
    add("wrong answers", float(found.wrong), **none)
    add("errors instead of answers", float(found.rows[Kind.FAILED]), **none)
    add("crashed without a kill", float(found.crashed_for_nothing()), **none)
    add("executed, and the result lost", float(found.lost()), **none)
    unseen = sum(n not in found.executions for n in range(answered.mark))
    add("answered without an execution", float(unseen), **none)
    twice = float(len(soak.commits.twice())) if soak.commits.complete else None
    add("batches committed twice", twice, **none)
    add("the client gave up", float(soak.client.failures + found.hung), **none)
    add("things wrong by ctl fsck", float(len(found.damage)), **none)
    add("batches left on the root", float(found.left_batches), **none)
    add("copies in dead/", float(found.dead), **none)
    add("files in quarantine/", float(found.quarantine), **none)
    add("hosts not ready again in 120 s", float(len(found.not_ready)), **none)
    left = len(found.left_processes) + bool(found.stop_said)
    add("processes left after stop", float(left), **none)
    for kind in ("client", "worker", "watcher"):
        growth = _growth(soak.samples, kind)
        add(f"memory of the {kind}, last third - first", growth, at_most=SLACK_MIB, unit=" MiB")
