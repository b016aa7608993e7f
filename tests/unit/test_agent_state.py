"""The two tables of an agent and its peer: each rule of what happens when is a row.

A row begins from a state that is written down whole, lets one thing happen, and states all that is
so then; so a row cannot pass by what another one left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fsworker.agent import AgentClosed, CallStateError, Status, Task, asking, state
from fsworker.agent.asking import PeerState, Sent
from fsworker.agent.state import AgentState, Work

pytestmark = pytest.mark.unit


def task(task_id: str) -> Task:
    return Task("train", task_id, {"m": 1}, {"d": 1})


A, B, C, A_AGAIN = task("a"), task("b"), task("c"), task("a")
NEW = Work(A)
FETCHED = Work(A, Status.FETCHED)
ABORTED = Work(A, Status.FETCHED, aborted=True)
SUBMITTED = Work(A, Status.PROCESSED)
SENT = Work(A, Status.PROCESSED, sent=True)
EMPTY = AgentState()


def with_work(work: Work | None, pending: Task | None = None, **fields: object) -> AgentState:
    return AgentState(work, pending, **fields)  # type: ignore[arg-type]


# -- what comes in


@pytest.mark.parametrize(
    ("before", "came", "after"),
    [
        pytest.param(EMPTY, A, with_work(NEW), id="the first becomes current"),
        pytest.param(with_work(NEW), A_AGAIN, with_work(NEW), id="current again, new: ignored"),
        pytest.param(with_work(FETCHED), A_AGAIN, with_work(FETCHED), id="current again: ignored"),
        pytest.param(with_work(SENT), A_AGAIN, with_work(SENT), id="again while sent: ignored"),
        pytest.param(
            with_work(FETCHED, B), A_AGAIN, with_work(FETCHED, B), id="current again keeps pending"
        ),
        pytest.param(
            with_work(ABORTED, B), task("b"), with_work(ABORTED, B), id="pending again: ignored"
        ),
        pytest.param(
            with_work(ABORTED, B), C, with_work(ABORTED, C), id="another replaces the pending one"
        ),
        pytest.param(with_work(NEW), B, with_work(Work(B)), id="nobody fetched it: replaced"),
        pytest.param(
            with_work(FETCHED), B, with_work(ABORTED, B), id="worked on: aborted, new one pending"
        ),
        pytest.param(
            with_work(SENT),
            B,
            with_work(replace(SENT, received=True), B),
            id="being sent: already received, new one pending",
        ),
        pytest.param(
            with_work(SUBMITTED),
            B,
            with_work(replace(SUBMITTED, aborted=True), B),
            id="submitted and never written: nobody can have it",
        ),
        pytest.param(
            with_work(ABORTED), A_AGAIN, with_work(ABORTED, A_AGAIN), id="aborted, wanted after all"
        ),
        pytest.param(
            with_work(replace(SENT, aborted=True)),
            B,
            with_work(replace(SENT, aborted=True), B),
            id="aborted while sent stays aborted",
        ),
        pytest.param(
            AgentState(lacking=True, submits=1),
            A,
            AgentState(NEW, lacking=True, submits=1),
            id="beside a result that lacks a task",
        ),
    ],
)
def test_receiving(before: AgentState, came: Task, after: AgentState) -> None:
    assert state.receive(before, came) == after


@pytest.mark.parametrize(
    ("before", "task_id", "after"),
    [
        pytest.param(with_work(FETCHED), "a", with_work(ABORTED), id="current: marked"),
        pytest.param(
            with_work(SENT), "a", with_work(replace(SENT, aborted=True)), id="being sent: marked"
        ),
        pytest.param(with_work(FETCHED, B), "b", with_work(FETCHED), id="pending: dropped"),
        pytest.param(with_work(NEW), "a", EMPTY, id="nobody fetched it: dropped"),
        pytest.param(with_work(FETCHED), "x", with_work(FETCHED), id="unknown: nothing"),
        pytest.param(
            with_work(ABORTED, A_AGAIN), "a", with_work(ABORTED), id="the second wish is dropped"
        ),
        pytest.param(EMPTY, "a", EMPTY, id="nothing there: nothing"),
    ],
)
def test_an_abort(before: AgentState, task_id: str, after: AgentState) -> None:
    assert state.abort(before, task_id) == after


# -- get_task


@pytest.mark.parametrize(
    ("before", "after", "given"),
    [
        pytest.param(EMPTY, EMPTY, None, id="nothing: waits"),
        pytest.param(with_work(NEW), with_work(FETCHED), A, id="new: fetched"),
        pytest.param(with_work(ABORTED), with_work(ABORTED), None, id="aborted: waits"),
        pytest.param(
            with_work(ABORTED, B), with_work(ABORTED, B), None, id="until it is submitted"
        ),
    ],
)
def test_fetching(before: AgentState, after: AgentState, given: Task | None) -> None:
    assert state.fetch(before) == (after, given)


@pytest.mark.parametrize("work", [FETCHED, SUBMITTED, SENT])
def test_fetching_twice_is_a_wrong_call(work: Work) -> None:
    with pytest.raises(CallStateError, match="submit its result first"):
        state.fetch(with_work(work))


@pytest.mark.parametrize("before", [EMPTY, with_work(NEW), with_work(FETCHED), with_work(ABORTED)])
def test_fetching_when_it_is_over(before: AgentState) -> None:
    with pytest.raises(AgentClosed, match="the other side said goodbye"):
        state.fetch(state.close(before, "the other side said goodbye"))


def test_an_abort_of_what_nobody_fetched_does_not_block() -> None:
    after = state.abort(with_work(NEW), "a")
    assert state.fetch(state.receive(after, B))[1] is B


# -- submit_result


@pytest.mark.parametrize(
    ("before", "after", "sending"),
    [
        pytest.param(with_work(FETCHED), with_work(SUBMITTED, submits=1), True, id="fetched: sent"),
        pytest.param(with_work(ABORTED), AgentState(submits=1), False, id="aborted: False"),
        pytest.param(
            with_work(ABORTED, B),
            with_work(Work(B), submits=1),
            False,
            id="aborted: False, and the pending one is current",
        ),
        pytest.param(
            EMPTY, AgentState(submits=1, lacking=True), True, id="the first may lack a task"
        ),
        pytest.param(
            AgentState(submits=1), AgentState(submits=2), False, id="no current task: False"
        ),
        pytest.param(
            with_work(FETCHED, over="it was stopped"),
            AgentState(submits=1, over="it was stopped"),
            False,
            id="closed: False",
        ),
        pytest.param(
            with_work(FETCHED, B, over="it was stopped"),
            with_work(Work(B), submits=1, over="it was stopped"),
            False,
            id="closed: False, and the pending one is current",
        ),
        pytest.param(
            AgentState(over="dead"), AgentState(submits=1, over="dead"), False, id="closed, no task"
        ),
    ],
)
def test_submitting(before: AgentState, after: AgentState, sending: bool) -> None:
    assert state.admit(before) == (after, sending)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        pytest.param(with_work(NEW), "before get_task", id="before get_task"),
        pytest.param(with_work(SUBMITTED), "is being submitted", id="a second one"),
        pytest.param(with_work(SENT, B), "is being submitted", id="a second one, later"),
        pytest.param(AgentState(lacking=True), "is being submitted", id="a second one, no task"),
    ],
)
def test_submitting_in_a_wrong_state_is_one_thing(before: AgentState, words: str) -> None:
    with pytest.raises(CallStateError, match=words):
        state.admit(before)


@pytest.mark.parametrize(
    ("before", "verdict"),
    [
        pytest.param(with_work(SUBMITTED), None, id="not written yet: goes on"),
        pytest.param(with_work(SENT), None, id="no answer: goes on"),
        pytest.param(with_work(SENT, answer=True), True, id="acknowledged"),
        pytest.param(with_work(SENT, answer=False), False, id="rejected for good"),
        pytest.param(with_work(replace(SENT, received=True), B), True, id="already received"),
        pytest.param(with_work(replace(SENT, aborted=True)), False, id="aborted"),
        pytest.param(with_work(SENT, over="it was stopped"), False, id="closed"),
        pytest.param(
            with_work(SENT, answer=True, over="bye"), True, id="acknowledged, then closed"
        ),
        pytest.param(AgentState(lacking=True), None, id="without a task: goes on"),
        pytest.param(AgentState(NEW, lacking=True), None, id="a task came meanwhile: goes on"),
        pytest.param(AgentState(lacking=True, answer=True), True, id="without a task: taken"),
        pytest.param(AgentState(lacking=True, over="dead"), False, id="without a task: closed"),
    ],
)
def test_what_becomes_of_a_submit(before: AgentState, verdict: bool | None) -> None:
    assert state.verdict(before) is verdict


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(with_work(SENT, answer=True), EMPTY, id="out of the application's hands"),
        pytest.param(with_work(SENT, B, answer=False), with_work(Work(B)), id="pending is current"),
        pytest.param(
            AgentState(NEW, lacking=True, answer=True),
            with_work(NEW),
            id="what came meanwhile stays",
        ),
        pytest.param(with_work(SENT, B, over="x"), with_work(Work(B), over="x"), id="closed too"),
    ],
)
def test_after_a_submit(before: AgentState, after: AgentState) -> None:
    assert state.conclude(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (with_work(SUBMITTED), with_work(SENT)),
        (with_work(FETCHED), with_work(FETCHED)),
        (AgentState(NEW, lacking=True), AgentState(NEW, lacking=True)),
        (EMPTY, EMPTY),
    ],
)
def test_a_result_that_was_written(before: AgentState, after: AgentState) -> None:
    assert state.sent(before) == after


def test_the_first_reason_to_end_stays() -> None:
    assert state.close(state.close(EMPTY, "first"), "second").over == "first"


# -- the peer


P0 = PeerState()
OPEN = PeerState((Sent("a", "train"),), used=True)
TAKEN = PeerState((Sent("a", "train", "life1"),), used=True)
TWO = PeerState((Sent("a", "train", "life1"), Sent("b", "train")), used=True)
DONE = PeerState(answered=("a",), used=True)


@pytest.mark.parametrize(
    ("before", "task_id", "life", "after", "taken", "delivered"),
    [
        pytest.param(OPEN, "a", "life1", DONE, True, "a", id="the answer"),
        pytest.param(DONE, "a", "life1", DONE, True, None, id="again: taken, not handed out twice"),
        pytest.param(DONE, "x", "life1", DONE, False, None, id="nobody waits for it: refused"),
        pytest.param(
            TWO,
            "a",
            "life1",
            PeerState((Sent("b", "train"),), ("a",), used=True),
            True,
            "a",
            id="of the one before: still welcome",
        ),
        pytest.param(
            TWO,
            "b",
            "life1",
            PeerState(answered=("b",), used=True),
            True,
            "b",
            id="of the newest: those before are over",
        ),
        pytest.param(TAKEN, "a", "life2", DONE, True, "a", id="of a later life"),
        pytest.param(
            TAKEN, "", "life2", DONE, True, "a", id="no task, after a restart: the newest"
        ),
        pytest.param(TAKEN, "", "life1", TAKEN, True, None, id="no task, same life: of no use"),
        pytest.param(OPEN, "", "life2", OPEN, True, None, id="no task, nobody had it: of no use"),
        pytest.param(DONE, "", "life2", DONE, True, None, id="no task, none wanted: of no use"),
    ],
)
def test_a_result_at_the_peer(
    before: PeerState,
    task_id: str,
    life: str,
    after: PeerState,
    taken: bool,
    delivered: str | None,
) -> None:
    then, said, sent = asking.result(before, task_id, life)
    assert (then, said, sent.task_id if sent else None) == (after, taken, delivered)


@pytest.mark.parametrize(
    ("happens", "after"),
    [
        pytest.param(lambda: asking.send(P0, "a", "train"), OPEN, id="the first"),
        pytest.param(
            lambda: asking.send(TAKEN, "b", "train"), TWO, id="a newer one, beside the one before"
        ),
        pytest.param(lambda: asking.send(TAKEN, "a", "train"), OPEN, id="the same anew"),
        pytest.param(lambda: asking.send(DONE, "a", "train"), OPEN, id="an answered one anew"),
        pytest.param(lambda: asking.taken(OPEN, "a", "life1"), TAKEN, id="acknowledged"),
        pytest.param(lambda: asking.taken(OPEN, "x", "life1"), OPEN, id="acknowledged, unknown"),
        pytest.param(lambda: asking.drop(TAKEN, "a"), PeerState(used=True), id="aborted"),
        pytest.param(lambda: asking.drop(P0, "x"), PeerState(used=True), id="aborted, unknown"),
    ],
)
def test_the_tasks_of_a_peer(happens: Callable[[], PeerState], after: PeerState) -> None:
    assert happens() == after


@pytest.mark.parametrize(
    ("before", "life", "asks", "again"),
    [
        pytest.param(TAKEN, "life2", True, "a", id="a new life asks: sent again"),
        pytest.param(TAKEN, "life2", False, None, id="it goes on by itself: not yet"),
        pytest.param(TAKEN, "life1", True, None, id="the same life has it"),
        pytest.param(OPEN, "life2", True, None, id="not acknowledged: it lies there still"),
        pytest.param(TWO, "life2", True, None, id="only the newest is kept before the agent"),
        pytest.param(DONE, "life2", True, None, id="nothing is wanted"),
    ],
)
def test_when_a_task_is_sent_to_a_new_agent(
    before: PeerState, life: str, asks: bool, again: str | None
) -> None:
    found = asking.forgotten(before, life, asks)
    assert (found.task_id if found else None) == again


def test_a_peer_that_was_started_anew_leaves_results_until_it_wants_some() -> None:
    assert not asking.ready(P0)
    assert asking.ready(OPEN) and asking.ready(asking.drop(P0, "a"))


def test_only_the_last_answers_are_remembered() -> None:
    at = P0
    for i in range(asking.REMEMBERED + 5):
        at = asking.result(asking.send(at, str(i), "t"), str(i), "life1")[0]
    assert len(at.answered) == asking.REMEMBERED and at.answered[-1] == str(i)


def test_the_first_reason_to_end_stays_at_the_peer_too() -> None:
    assert asking.close(asking.close(P0, "first"), "second").over == "first"
