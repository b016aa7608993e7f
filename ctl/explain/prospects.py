"""What happens next to a host and to a batch: pure, from what was observed.

The sentences follow the rules that the watcher and the workers act by (`ctl/decide.py`, the
ledger): a change there changes a row of the table here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ctl import memory
from ctl.health import Limits, State
from ctl.memory import HostMemory
from ctl.units import human
from fsworker.protocol import offers
from fsworker.protocol.offers import Provider
from fsworker.protocol.records.needs import Needs


@dataclass(frozen=True)
class Watching:
    """What is known of the run's watcher. `where`: pid and host, empty when none is noted."""

    where: str = ""
    surely: bool = False
    """Whether its process is proven to live; one on another machine cannot be asked from here."""

    @property
    def words(self) -> str:
        """Who would act."""
        if not self.where:
            return "no watcher runs"
        return f"the watcher ({self.where})" + ("" if self.surely else " if it still lives")


def of_host(
    state: str, told: HostMemory, limits: Limits, now: float, watching: Watching, restart: str
) -> list[str]:
    """What the watcher does about a host in `state`; `restart` is the command that does it by hand.

    `now` is by the clock that `told` was written by.
    """
    by_hand = f"by hand: {restart}"
    if state in _QUIET:
        return [_QUIET[State(state)]]
    if state == State.STOPPED:
        return [f"nothing until it is started again; {by_hand}"]
    if not watching.where:
        return [f"no watcher runs, so nobody acts on it (ctl watch); {by_hand}"]
    return [f"{watching.words} {_deed(state, told, limits, now)}", by_hand]


def of_member(state: str, watching: Watching, host: str, root: str) -> list[str]:
    """What happens to a worker that attached by itself: nobody starts it, its work returns."""
    if state in _QUIET:
        return [_QUIET[State(state)]]
    by_hand = f"by hand: {for_member(host, root)}"
    if state == State.STOPPED:
        return ["nothing until it attaches again", by_hand]
    if not watching.where:
        return [f"no watcher runs, so nobody returns its work (ctl watch); {by_hand}"]
    return [f"{watching.words} returns its work once it is fenced, and never starts it", by_hand]


def for_member(host: str, root: str) -> str:
    """What to type about a member that is not well."""
    again = f"fsworker attach --root {shlex.quote(root)} --name {shlex.quote(host)}"
    return f"on its machine: {again}; to let it go: ctl drain {shlex.quote(host)}"


_QUIET = {
    State.READY: "it goes on taking work",
    State.STARTING: "it takes work as soon as it is ready",
    State.DRAINING: "it finishes what runs, gives back the rest, and ends",
}

_DEEDS = {
    State.MISSING: "asks the host, and then treats it as dead or hung",
    State.STALE: "asks the host, and then treats it as dead or hung",
    State.STUCK_STARTING: "asks the host, and then treats it as dead or hung",
    State.UNWRAPPED: "restarts it without haste: what runs may finish",
    State.DEAD: "returns its work (deaths + 1) and restarts it",
    State.HUNG: "ends the process, makes sure that it is gone, and restarts it",
    State.UNREACHABLE: "tries again; once fenced, its work is returned; nothing starts twice",
    State.DENIED: "tries again; its work is returned, and it resumes when the host lets us in",
    State.CRASH_LOOPING: "waits longer before each start; a healthy stretch ends that",
    State.STORAGE_SUSPECT: "acts on nobody until the storage answers",
}


def _deed(state: str, told: HostMemory, limits: Limits, now: float) -> str:
    words = _DEEDS.get(State(state), "looks again")
    if told.restarted_at is not None and not memory.restart_due(told, now, limits):
        wait = memory.restart_pause(told, limits) - (now - told.restarted_at)
        words += f", in {human(max(wait, 0.0))} at the earliest ({told.restarts} restarts so far)"
    return words


def of_pending(
    home: Sequence[str], others: Sequence[str], *, deaths: int, most_deaths: int, ahead: int
) -> list[str]:
    """What happens to a waiting batch. `home`, `others`: the live hosts of its shard and beside it.

    `ahead`: how many batches wait in its shard besides.
    """
    if not home and not others:
        return ["no worker of this run lives: it is taken when one does"]
    takers = f"its shard is served by {_some(home)}" if home else "nobody serves its shard"
    steal = f"; {_some(others)} take from it when they have nothing else to do" if others else ""
    told = [f"{takers}{steal}; {ahead} batches wait beside it"]
    if deaths:
        told.append(
            f"{deaths} workers died while they held it: it runs alone, one task at a time, and a "
            f"task that kills {most_deaths} workers is answered with 'worker died'"
        )
    return told


def of_needs(needs: Needs, found: Sequence[Provider], shard: int, *, job: bool) -> list[str]:
    """What a waiting batch waits for that needs something; `found`: who of the run offers what."""
    if not needs:
        return []
    able = [p for p in found if p.serves(needs, job=job)]
    live = [p for p in able if p.live]
    told = [f"it needs {needs}"]
    if live and not any(p.shard == shard for p in live):
        told.append(f"it is forwarded to the shard of {_some([p.host for p in live])}")
    elif not live and able:
        some = _some([p.host for p in able])
        told.append(f"it waits for {some}, which offered that and does not serve now")
    elif not live:
        told.append("it waits for a worker that offers that: none does")
    if not live:
        told += offers.shortage(found, needs, job=job)
    return told


def of_claimed(host: str, state: str, *, current: bool, watching: Watching) -> list[str]:
    """What happens to a batch that an owner on `host` holds; `current`: it is the beating life."""
    if current and state in (State.READY, State.STARTING):
        return [f"{host} executes it and commits its results"]
    if current and state == State.DRAINING:
        return [f"{host} drains: it finishes what runs of it, or gives it back"]
    if not current and state in (State.READY, State.STARTING, State.DRAINING):
        return [f"the life that held it is over: the new one on {host} returns it, deaths + 1"]
    return [
        f"{watching.words}: it is returned once {host} is proven dead (deaths + 1) or fenced "
        "(deaths unchanged); a worker with nothing to do returns it as well",
    ]


def of_committed(stream: str) -> list[str]:
    """What happens to results that nobody has read yet."""
    return [f"they wait for whoever reads the stream {stream}: ctl results, or its client"]


def _some(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:4])
    return shown + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
