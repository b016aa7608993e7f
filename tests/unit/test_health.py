"""The table of states: what was seen and what was found, and the state that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ctl.health import Beat, Finding, Found, Limits, Observation, State, judge, ready_deadline, skew
from fsworker.protocol.records.run import Heartbeat

pytestmark = pytest.mark.unit

LIMITS = Limits(stale=60, ready=60)
BEAT = Beat("a" * 12, 7, 1, True, False, False, True, None, 1000.0)
SEEN = Observation("n1", launch=1, since_launch=500, beat=BEAT, age=1.0)
UNSEEN = Observation("n1", launch=1, since_launch=500)


def beat(**fields):
    return BEAT._replace(**fields)


def found(
    what: Found, seen: Observation = SEEN, *, silent: bool = True, words: str = ""
) -> Finding:
    return Finding(what, seen.key, seen.launch, silent, words)


LOOKS = [
    ("beats and is ready", SEEN, State.READY),
    ("exactly at the limit is not stale", replace(SEEN, age=60.0), State.READY),
    ("beyond the limit", replace(SEEN, age=60.1), State.STALE),
    ("just launched", Observation("n1", launch=1, since_launch=5), State.STARTING),
    ("no beat for too long", UNSEEN, State.MISSING),
    (
        "a launch that never began",
        replace(UNSEEN, since_launch=1, start_failed=True),
        State.MISSING,
    ),
    ("not ready yet", replace(SEEN, beat=beat(ready=False), since_launch=5), State.STARTING),
    ("never got ready", replace(SEEN, beat=beat(ready=False)), State.STUCK_STARTING),
    (
        "a young life of an old launch",
        replace(SEEN, beat=beat(ready=False), since_birth=59.0),
        State.STARTING,
    ),
    (
        "a life that had its time",
        replace(SEEN, beat=beat(ready=False), since_birth=61.0),
        State.STUCK_STARTING,
    ),
    (
        "a young launch whose beats are older than it",
        replace(SEEN, beat=beat(ready=False), since_launch=5, since_birth=99.0),
        State.STARTING,
    ),
    ("refuses", replace(SEEN, beat=beat(ready=False, refused="no fn")), State.STUCK_STARTING),
    ("draining", replace(SEEN, beat=beat(draining=True)), State.DRAINING),
    ("said that it stopped", replace(SEEN, beat=beat(stopped=True)), State.STOPPED),
    ("stopped by itself long ago", replace(SEEN, beat=beat(stopped=True), age=99.0), State.STALE),
    ("its wrapper is gone", replace(SEEN, beat=beat(wrapped=False)), State.UNWRAPPED),
    ("needs no wrapper", replace(SEEN, beat=beat(wrapped=False), respawn=False), State.READY),
    ("told to stop and still ending", replace(SEEN, stop=True), State.DRAINING),
    ("told to stop and silent", replace(SEEN, stop=True, age=999.0), State.STOPPED),
    ("told to stop and never seen", replace(UNSEEN, stop=True), State.STOPPED),
    ("the beat of the launch before", replace(SEEN, launch=2, since_launch=5), State.STARTING),
    ("it is young, and the new one never came", replace(SEEN, launch=2), State.READY),
    ("it is old as well", replace(SEEN, launch=2, age=99.0), State.MISSING),
    ("a launch that the meta does not know yet", replace(SEEN, launch=0), State.READY),
]


@pytest.mark.parametrize(("name", "seen", "state"), LOOKS, ids=[c[0] for c in LOOKS])
def test_a_look_alone(name, seen, state):
    verdict = judge(seen, None, LIMITS)

    assert (verdict.state, verdict.base) == (state, state)
    assert verdict.healthy == (
        state in (State.READY, State.STARTING, State.DRAINING, State.STOPPED)
    )


STALE = replace(SEEN, age=99.0)
BARE = replace(SEEN, beat=beat(wrapped=False))
SLOW = replace(SEEN, beat=beat(ready=False))

FOUND = [
    (STALE, True, Found.DEAD, State.DEAD),
    (STALE, True, Found.BETWEEN, State.DEAD),
    (STALE, True, Found.ALIVE, State.HUNG),
    (STALE, True, Found.BARE, State.HUNG),
    (STALE, True, Found.STUCK, State.HUNG),
    (STALE, True, Found.UNREACHABLE, State.UNREACHABLE),
    (STALE, True, Found.DENIED, State.DENIED),
    (UNSEEN, True, Found.DEAD, State.DEAD),
    (UNSEEN, True, Found.ALIVE, State.HUNG),
    (BARE, False, Found.BARE, State.UNWRAPPED),
    (BARE, False, Found.ALIVE, State.READY),
    (BARE, False, Found.DEAD, State.DEAD),
    (SLOW, False, Found.ALIVE, State.HUNG),
]


@pytest.mark.parametrize(("seen", "silent", "what", "state"), FOUND)
def test_what_a_probe_makes_of_it(seen, silent, what, state):
    assert judge(seen, found(what, seen, silent=silent), LIMITS).state == state


def test_a_finding_means_nothing_once_the_host_beats_again():
    finding = found(Found.DEAD, STALE)

    assert judge(replace(SEEN, beat=beat(seq=8)), finding, LIMITS).state is State.READY
    again = judge(replace(STALE, beat=beat(seq=8)), finding, LIMITS)
    assert (again.state, again.found) == (State.STALE, None)


@pytest.mark.parametrize(
    "seen",
    [
        replace(STALE, launch=2, start_failed=True),
        replace(STALE, beat=beat(incarnation="b" * 12)),
        BARE,
    ],
    ids=["another launch", "another life", "another kind of suspicion"],
)
def test_a_finding_is_about_one_launch_one_life_and_one_suspicion(seen):
    assert judge(seen, found(Found.DEAD, STALE), LIMITS).found is None


def test_a_failed_start_keeps_what_was_found():
    seen = replace(STALE, launch=2, since_launch=1.0, start_failed=True)

    assert judge(seen, found(Found.DENIED, seen), LIMITS).state is State.DENIED


def test_unreadable_here_is_no_reason_to_call_it_hung():
    seen = replace(STALE, problem="cannot read status/n1.json: Is a directory", blind=True)
    verdict = judge(seen, found(Found.ALIVE, seen), LIMITS)

    assert verdict.state is State.STALE
    assert "Is a directory" in verdict.words
    assert judge(seen, found(Found.DEAD, seen), LIMITS).state is State.DEAD


def test_an_unreadable_status_lets_the_last_good_beat_age():
    bad = replace(SEEN, problem="status/n1.json is not valid JSON: it is empty")

    assert judge(bad, None, LIMITS).state is State.READY
    assert judge(replace(bad, age=61.0), None, LIMITS).reason == "status_bad"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (SEEN, "ok"),
        (STALE, "heartbeat_stale"),
        (UNSEEN, "status_missing"),
        (SLOW, "not_ready"),
        (BARE, "wrapper_dead"),
        (replace(UNSEEN, problem="cut"), "status_bad"),
    ],
)
def test_reasons_are_the_words_that_scripts_know(seen, reason):
    assert judge(seen, None, LIMITS).reason == reason


def test_words_say_what_the_host_said():
    words = "access denied: you have no active jobs on this node"

    assert judge(STALE, found(Found.DENIED, STALE, words=words), LIMITS).words == words
    assert "no fn" in judge(replace(SEEN, beat=beat(refused="no fn")), None, LIMITS).words


def test_many_short_lives_are_shown_as_crash_looping_and_decided_by_what_is():
    looping = replace(STALE, short_lives=3)
    verdict = judge(looping, found(Found.DEAD, looping), LIMITS)

    assert (verdict.state, verdict.base) == (State.CRASH_LOOPING, State.DEAD)
    assert not verdict.healthy
    assert "3 times" in verdict.words
    assert judge(replace(SEEN, short_lives=2), None, LIMITS).state is State.READY
    assert judge(replace(SEEN, short_lives=9, stop=True), None, LIMITS).state is State.DRAINING


def test_a_slow_start_is_given_more_time_after_each_restart_but_not_for_ever():
    waits = [ready_deadline(replace(SEEN, failed_starts=n), LIMITS) for n in (0, 1, 2, 50)]

    assert waits == [60, 120, 240, 60 * 32]


@pytest.mark.parametrize("at", [1000.0 + 7200, 1000.0 - 7200, 99_999_999_999.0])
def test_no_state_depends_on_the_clock_of_a_host(at):
    assert judge(replace(SEEN, beat=beat(heartbeat_at=at)), None, LIMITS).state is State.READY
    assert judge(replace(STALE, beat=beat(heartbeat_at=at)), None, LIMITS).state is State.STALE
    assert skew(at, 1000.0) == at - 1000.0


def test_a_beat_is_the_small_part_of_a_heartbeat():
    record = Heartbeat("n1", 5, "a" * 12, 7, 1000.0, launch=1, ready=True, wrapped=True)

    assert Beat.of(record) == BEAT
