"""What a watcher does about what it sees: tables over states, times and memories."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from ctl import memory as mem
from ctl.ages import Ages, WatchClock
from ctl.decide import BETWEEN_LIMIT, REVOKE_AGAIN, Do, decide, learn, silent_together
from ctl.health import Beat, Finding, Found, Limits, Observation, State, judge
from ctl.memory import HostMemory, notice, restart_due, try_due

pytestmark = pytest.mark.unit

LIMITS = Limits(stale=60, ready=60, cooldown=30, fence=60, healthy=30)
NOW = 10_000.0
LIFE = "a" * 12
BEAT = Beat(LIFE, 7, 1, True, False, False, True, None, 1000.0)
SEEN = Observation("n1", launch=1, since_launch=500, beat=BEAT, age=1.0)
STALE = replace(SEEN, age=99.0)
BARE = replace(SEEN, beat=BEAT._replace(wrapped=False))
SLOW = replace(SEEN, beat=BEAT._replace(ready=False))


def finding(what, seen=STALE, *, silent=True, **fields):
    return Finding(what, seen.key, seen.launch, silent, **fields)


def step(seen=STALE, found=None, past=None, now=NOW, busy=(), limits=LIMITS):
    """(what is done, the memory after it) of one host."""
    findings = {seen.host: found} if found else {}
    decision = decide([seen], findings, {seen.host: past or HostMemory()}, busy, now, limits)
    return list(decision.actions), decision.memory[seen.host]


def dos(actions):
    return [a.do for a in actions]


@pytest.mark.parametrize(
    "seen",
    [
        SEEN,
        Observation("n1", launch=1, since_launch=5),
        replace(SEEN, beat=BEAT._replace(draining=True)),
        replace(SEEN, beat=BEAT._replace(stopped=True)),
        replace(STALE, stop=True),
        replace(STALE, allowed=False),
        replace(SLOW, beat=SLOW.beat._replace(refused="no such function")),
    ],
    ids=["ready", "starting", "draining", "stopped", "told to stop", "not allowed", "refuses"],
)
def test_nothing_is_done(seen):
    assert step(seen)[0] == []


@pytest.mark.parametrize(
    ("seen", "silent"),
    [(STALE, True), (replace(SEEN, beat=None, age=None), True), (BARE, False), (SLOW, False)],
    ids=["stale", "missing", "unwrapped", "stuck starting"],
)
def test_a_suspect_is_probed_and_nothing_else(seen, silent):
    actions, _ = step(seen)

    assert [(a.do, a.silent) for a in actions] == [(Do.PROBE, silent)]


def test_nothing_is_decided_about_a_host_that_is_being_worked_on():
    assert step(busy={"n1"})[0] == []


def test_dead_returns_its_claims_with_a_death_and_starts_again():
    seen = replace(STALE, owners=(LIFE, "b" * 12))
    actions, after = step(seen, finding(Found.DEAD))

    assert dos(actions) == [Do.REVOKE, Do.RESTART]
    assert (actions[0].owners, actions[0].died) == ((LIFE, "b" * 12), True)
    assert (after.restarts, after.restarted_at) == (1, NOW)


def test_dead_within_the_cooldown_waits_and_then_starts():
    past = HostMemory(launch=1, restarted_at=NOW - 29)

    assert step(found=finding(Found.DEAD), past=past)[0] == []
    later, _ = step(found=finding(Found.DEAD), past=past, now=NOW + 1)
    assert dos(later) == [Do.RESTART]


@pytest.mark.parametrize(
    ("restarts", "wait"), [(0, 30), (1, 30), (2, 60), (3, 120), (6, 900), (60, 900)]
)
def test_each_restart_that_did_not_help_doubles_the_pause_up_to_a_cap(restarts, wait):
    host = HostMemory(restarts=restarts, restarted_at=NOW)

    assert not restart_due(host, NOW + wait - 1, LIMITS)
    assert restart_due(host, NOW + wait, LIMITS)


def test_the_pause_that_follows_is_said():
    past = HostMemory(restarts=2, restarted_at=NOW - 60)
    first, _ = step(found=finding(Found.DEAD))
    third, _ = step(found=finding(Found.DEAD), past=past)

    assert first[0].reason == "dead"
    assert "restart 3 in a row, the next not within 120 s" in third[0].reason


def test_a_healthy_stretch_resets_the_pause():
    past = HostMemory(
        launch=1,
        launched_at=NOW - 99,
        incarnation=LIFE,
        born_launch=1,
        born_at=NOW - 99,
        ready_at=NOW - 30,
        restarts=5,
        short_lives=4,
        failed_starts=2,
        restarted_at=NOW - 99,
    )
    after = notice(past, BEAT, 1, NOW, LIMITS, fresh=True)

    assert (after.restarts, after.short_lives, after.failed_starts) == (0, 0, 0)
    assert notice(past, BEAT, 1, NOW - 1, LIMITS, fresh=True).restarts == 5


def test_alive_but_silent_is_ended_and_started_only_when_nothing_is_left():
    actions, after = step(found=finding(Found.ALIVE))
    assert dos(actions) == [Do.STOP]
    assert after.restarted_at == NOW
    assert step(found=finding(Found.ALIVE), past=after, now=NOW + 5)[0] == []

    owed = replace(after, owed="hung")
    actions, after = step(replace(STALE, owners=(LIFE,)), past=owed, now=NOW + 6)
    assert dos(actions) == [Do.REVOKE, Do.RESTART]
    assert actions[0].died
    assert after.owed == ""


def test_a_debt_is_void_when_somebody_stopped_the_host_meanwhile():
    actions, after = step(replace(STALE, stop=True), past=HostMemory(owed="hung"))

    assert (actions, after.owed) == ([], "")


def test_unwrapped_is_stopped_gracefully_once_its_wrapper_is_proven_gone():
    actions, _ = step(BARE, finding(Found.BARE, BARE, silent=False))
    assert [(a.do, a.silent) for a in actions] == [(Do.STOP, False)]

    assert step(BARE, finding(Found.ALIVE, BARE, silent=False))[0] == []


def test_what_cannot_be_ended_is_fenced_and_never_doubled():
    found = finding(Found.STUCK, words="worker pid 7 (stuck)")
    seen = replace(STALE, owners=(LIFE,))
    past = learn(HostMemory(), found, NOW)

    actions, after = step(seen, found, past)
    assert Do.RESTART not in dos(actions) and Do.STOP not in dos(actions)
    actions, _ = step(seen, found, after, now=NOW + 61)
    assert actions[0].do is Do.REVOKE and not actions[0].died
    assert Do.RESTART not in dos(actions)


@pytest.mark.parametrize("what", [Found.UNREACHABLE, Found.DENIED])
def test_out_of_reach_is_asked_ever_less_often_and_fenced_after_a_while(what):
    found, seen = finding(what), replace(STALE, owners=(LIFE,))
    past, probes, revokes, restarts = HostMemory(), [], [], 0
    past = learn(past, found, NOW)
    for t in range(1, 1200):
        actions, past = step(seen, found, past, now=NOW + t)
        restarts += Do.RESTART in dos(actions) or Do.STOP in dos(actions)
        if Do.REVOKE in dos(actions):
            revokes.append((t, actions[0].died))
        if Do.PROBE in dos(actions):
            probes.append(t)
            past = learn(past, found, NOW + t)

    assert restarts == 0
    assert revokes[0] == (60, False)
    assert not any(died for _, died in revokes)
    gaps = [b - a for a, b in pairwise(probes)]
    assert probes[0] == 10 and gaps == sorted(gaps) and gaps[-1] == 300


def test_reached_again_and_dead_it_is_started_once():
    past = learn(HostMemory(), finding(Found.UNREACHABLE), NOW)
    dead = finding(Found.DEAD)
    past = learn(past, dead, NOW + 100)
    actions, past = step(found=dead, past=past, now=NOW + 100)
    assert dos(actions) == [Do.RESTART]

    launched = Observation("n1", launch=2, since_launch=1, beat=BEAT, age=200.0)
    assert step(launched, dead, past, now=NOW + 101)[0] == []


def test_between_two_lives_only_the_dead_life_is_revoked():
    seen = replace(STALE, owners=(LIFE, "b" * 12))
    found = finding(Found.BETWEEN, incarnation=LIFE)
    past = learn(HostMemory(), found, NOW)
    actions, past = step(seen, found, past)

    assert dos(actions) == [Do.REVOKE]
    assert (actions[0].owners, actions[0].died) == ((LIFE,), True)


def test_a_wrapper_that_never_starts_its_worker_again_is_replaced():
    found = finding(Found.BETWEEN, incarnation=LIFE)
    past = learn(HostMemory(), found, NOW)

    assert Do.STOP not in dos(step(STALE, found, past, now=NOW + BETWEEN_LIMIT)[0])
    assert Do.STOP in dos(step(STALE, found, past, now=NOW + BETWEEN_LIMIT + 1)[0])


def test_a_wrapper_whose_workers_die_before_they_beat_is_crash_looping_and_left_alone():
    past = HostMemory(launch=1)
    for i in range(5):
        found = finding(Found.BETWEEN, incarnation=f"{i:012x}")
        past = learn(past, found, NOW + 60 * i)
        actions, past = step(STALE, found, past, now=NOW + 60 * i)
        assert Do.STOP not in dos(actions) and Do.RESTART not in dos(actions)

    looping = replace(STALE, short_lives=past.short_lives)
    assert judge(looping, found, LIMITS).state is State.CRASH_LOOPING


def test_a_probe_that_settled_nothing_is_not_repeated_at_once():
    host = learn(HostMemory(), finding(Found.UNREACHABLE), NOW)

    assert not try_due(host, NOW + 9)
    assert try_due(host, NOW + 10)


def test_a_host_whose_status_cannot_be_read_here_is_asked_again_now_and_then():
    seen = replace(STALE, problem="Is a directory", blind=True)
    found = finding(Found.ALIVE, seen)
    past = learn(HostMemory(), found, NOW)

    assert step(seen, found, past, now=NOW + 59)[0] == []
    assert dos(step(seen, found, past, now=NOW + 60)[0]) == [Do.PROBE]


def test_claims_of_a_life_that_was_replaced_are_returned_without_blame():
    seen = replace(SEEN, owners=("b" * 12, LIFE))
    past = HostMemory(launch=1, ready_at=NOW - 60)
    actions, past = step(seen, past=past, now=NOW - 30)
    assert actions == []
    actions, after = step(seen, past=past)

    assert [(a.do, a.owners, a.died) for a in actions] == [(Do.REVOKE, ("b" * 12,), False)]
    assert step(seen, past=after, now=NOW + REVOKE_AGAIN - 1)[0] == []
    assert step(seen, past=replace(past, ready_at=NOW - 29))[0] == []
    assert step(replace(seen, owners=(LIFE,)), past=past)[0] == []


def test_a_life_that_has_not_beaten_yet_is_not_taken_for_one_that_was_replaced():
    """Its folder is there before its first beat; the last beat of its predecessor is fresh."""
    newborn, long_ago = "b" * 12, NOW - 1000
    seen = replace(SEEN, owners=(newborn, LIFE))
    past = HostMemory(launch=1, ready_at=long_ago)
    actions, past = step(seen, past=past)
    assert actions == []
    # It beats, and later another one is born: each has its own time.
    _, past = step(replace(SEEN, owners=(LIFE,)), past=past, now=NOW + 1)
    actions, past = step(replace(SEEN, owners=(LIFE, "c" * 12)), past=past, now=NOW + 60)
    assert actions == []
    assert past.replaced_at == NOW + 60


@pytest.mark.parametrize("change", [{"stop": True}, {"allowed": False}])
def test_claims_of_a_host_that_is_left_alone_do_not_rot(change):
    seen = replace(STALE, owners=(LIFE,), **change)

    assert step(replace(seen, age=119.0))[0] == []
    actions, _ = step(replace(seen, age=121.0))
    assert [(a.do, a.died) for a in actions] == [(Do.REVOKE, False)]


def fleet(ages, **change):
    return [replace(SEEN, host=f"n{i}", age=a, **change) for i, a in enumerate(ages)]


@pytest.mark.parametrize(
    ("ages", "suspected"),
    [
        ([70, 71, 72, 1], 3),
        ([70, 71, 72], 3),
        ([70, 71, 1], 0),
        ([70, 71, 72, 1, 1, 1], 0),
        ([70, 110, 150, 1], 0),
        ([700, 701, 702, 1], 0),
        ([1, 1, 1, 1], 0),
    ],
    ids=["most", "all", "two", "half", "one after the other", "for too long", "none"],
)
def test_when_the_storage_is_suspected(ages, suspected):
    seen = fleet(ages)
    verdicts = [judge(o, None, LIMITS) for o in seen]

    assert len(silent_together(seen, verdicts, LIMITS)) == suspected


def test_while_the_storage_is_suspected_hosts_are_asked_and_nobody_is_acted_upon():
    seen = fleet([70, 71, 72, 1], owners=("b" * 12, LIFE))
    alive = {o.host: finding(Found.ALIVE, o) for o in seen[:3]}
    past = {o.host: HostMemory(launch=1, ready_at=NOW - 99) for o in seen}

    first = decide(seen, {}, past, (), NOW, LIMITS)
    assert {a.do for a in first.actions} == {Do.PROBE} and len(first.actions) == 3
    second = decide(seen, alive, first.memory, (), NOW + 1, LIMITS)
    assert second.actions == ()
    assert [v.state for v in second.verdicts[:3]] == [State.STORAGE_SUSPECT] * 3
    assert "3 of 4" in second.suspicion


def test_hosts_that_are_proven_dead_explain_their_silence():
    seen = fleet([70, 71, 72, 1])
    dead = {o.host: finding(Found.DEAD, o) for o in seen[:3]}
    decision = decide(seen, dead, {}, (), NOW, LIMITS)

    assert [a.do for a in decision.actions] == [Do.RESTART] * 3
    assert not decision.suspects


def test_three_short_lives_of_one_launch_count_and_a_long_one_clears_them():
    past = HostMemory()
    for i in range(4):
        past = notice(
            past, BEAT._replace(incarnation=f"{i:012x}"), 1, NOW + 5 * i, LIMITS, fresh=True
        )
    assert past.short_lives == 3

    past = notice(past, BEAT._replace(incarnation=f"{3:012x}"), 1, NOW + 99, LIMITS, fresh=True)
    assert past.short_lives == 0


def test_a_restart_that_somebody_asked_for_is_no_short_life():
    past = notice(HostMemory(), BEAT, 1, NOW, LIMITS, fresh=True)
    asked = BEAT._replace(incarnation="b" * 12, launch=2)

    assert notice(past, asked, 2, NOW + 5, LIMITS, fresh=True).short_lives == 0


def test_only_a_repeated_restart_says_that_starts_are_slow():
    first = HostMemory(launch=1, launched_at=NOW, restarts=1)
    again = replace(first, restarts=2)

    assert notice(first, None, 2, NOW, LIMITS, fresh=False).failed_starts == 0
    assert notice(again, None, 2, NOW, LIMITS, fresh=False).failed_starts == 1


def test_memory_survives_on_disk_and_its_future_is_now():
    memory = {"n1": HostMemory(3, NOW, LIFE, restarts=2, restarted_at=NOW + 500, owed="hung")}
    read = mem.decode(mem.encode(memory), NOW + 100)

    assert read == {"n1": replace(memory["n1"], restarted_at=NOW + 100)}


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b'{"hosts": 3}', b'{"hosts": {"n1": 3}}', b"\0" * 50, b"[" * 5000],
)
def test_damaged_memory_is_forgotten(data):
    assert mem.decode(data, NOW) == {}


def test_fields_of_the_wrong_type_are_left_out_of_memory():
    text = {"hosts": {"n1": {"launch": "3", "restarts": 2, "restarted_at": True, "new": 1}}}

    assert mem.decode(json.dumps(text).encode(), NOW) == {"n1": HostMemory(restarts=2)}


def test_status_is_told_what_the_watcher_found_out():
    denied = HostMemory(state="denied", words="no job of yours")
    stale = mem.informed(judge(STALE, None, LIMITS), denied)

    assert (stale.state, stale.words) == (State.DENIED, "no job of yours")
    assert mem.informed(judge(SEEN, None, LIMITS), denied).state is State.READY
    assert mem.informed(judge(STALE, None, LIMITS), HostMemory(state="odd")).state is State.STALE


def test_the_clock_of_a_watcher_that_was_frozen_moves_by_two_sweeps_at_most():
    clock = WatchClock(10.0, 100.0, 5000.0)

    assert clock.tick(110.0) == 5010.0
    assert clock.tick(110.0 + 3600) == 5030.0
    assert clock.tick(100.0) == 5030.0


def test_ages_count_from_when_the_beat_was_seen_to_change():
    ages = Ages()

    assert ages.age("n1", (LIFE, 1), 100.0) == 0.0
    assert ages.age("n1", (LIFE, 1), 130.0) == 30.0
    assert ages.age("n1", (LIFE, 2), 131.0) == 0.0
    assert ages.age("n1", ("b" * 12, 2), 140.0) == 0.0
    ages.restart(150.0)
    assert ages.age("n1", ("b" * 12, 2), 151.0) == 1.0
    ages.keep([])
    assert ages.age("n1", ("b" * 12, 2), 160.0) == 0.0
