"""An agent and its peer as their users call them: the rules through a real root, in a process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from fsworker.agent import (
    Agent,
    AgentClosed,
    Answer,
    CallStateError,
    Peer,
    Status,
    Task,
    TaskResult,
    messages,
)
from fsworker.agent.mail import Mailbox
from fsworker.agent.messages import Verdict
from fsworker.errors import NotRunning, UsageError
from fsworker.protocol import segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import agents
from fsworker.protocol.layout.agents import Letter
from tests.support.roots import make_root
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit

T = TypeVar("T")
NEWER = bytes([segment.MAJOR + 1])
GOOD: tuple[dict[str, Any], dict[str, Any]] = ({"m": 1}, {"d": 1})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "root")


@pytest.fixture
def agent(root: Path) -> Iterator[Agent]:
    with Agent("a", resend_interval=0.1, root=root) as agent:
        yield agent


@pytest.fixture
def peer(root: Path) -> Iterator[Peer]:
    with Peer("a", resend_interval=0.1, root=root) as peer:
        yield peer
        peer.bye(0.2) if not peer.over else None


def fetched(agent: Agent, task_id: str) -> Task:
    task = agent.get_task(30)
    assert task is not None and (task.task_id, task.status) == (task_id, Status.FETCHED)
    return task


def answered(peer: Peer, task_id: str) -> Answer:
    answer = peer.get_result(30)
    assert answer is not None and answer.task_id == task_id
    return answer


class Aside:
    """A call in a thread of its own, whose value is asked for later."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.value: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._call()
        except Exception as error:
            self.value = error

    @property
    def waiting(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> object:
        self._thread.join(30)
        assert not self.waiting
        return self.value


class ByHand:
    """A peer that does only what the test says."""

    def __init__(self, root: Path) -> None:
        self.box = Mailbox(Store(root), "a", agents.PEER)
        self.box.enter()

    def task(self, task_id: str, meta: object = GOOD[0], data: object = GOOD[1]) -> None:
        self.box.write(agents.TASK, messages.task_bytes("train", task_id, meta, data))

    def abort(self, task_id: str) -> None:
        self.box.write(agents.ABORT, messages.abort_bytes(task_id))

    def comes(self, kind: str) -> Letter:
        def look() -> list[Letter]:
            return [x for x in self.box.look().incoming if x.kind == kind]

        return wait_until(look, what=f"a {kind}")[0]

    def verdict(self) -> Verdict:
        letter = self.comes(agents.REPLY)
        verdict = messages.as_verdict(messages.read(self.box.read(letter), "x"))
        self.box.done(letter)
        return verdict

    def reply(self, letter: Letter, taken: bool) -> None:
        verdict = Verdict(letter.life.incarnation, letter.number, taken, "")
        self.box.write(agents.REPLY, messages.reply_bytes(verdict))


# -- a life


def test_starting_and_stopping_twice_warns(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("a", root=root)
    agent.stop()
    agent.start()
    agent.start()
    agent.stop()
    agent.stop()
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warned == [
        "agent a was not started: there is nothing to stop",
        "agent a is started already",
        "agent a is stopped already: there is nothing to stop",
    ]
    with pytest.raises(CallStateError, match="was stopped"):
        agent.start()


@pytest.mark.parametrize("side", [Agent, Peer])
def test_a_start_that_fails_may_be_tried_again(side: Any, tmp_path: Path) -> None:
    late = side("a", root=tmp_path / "late")
    with pytest.raises(NotRunning):
        late.start()
    make_root(tmp_path / "late")
    with late:
        assert not late.over
    assert late.over == "it was stopped"


@pytest.mark.parametrize(
    "fields",
    [
        {"submit_result_timeout": 0},
        {"connection_timeout": -1},
        {"connection_timeout": None},
        {"heartbeat_timeout": float("nan")},
        {"resend_interval": "2"},
        {"resend_interval": True},
        {"agent_id": ""},
        {"agent_id": 7},
    ],
)
def test_what_cannot_be_is_refused_at_once(root: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(fields))):
        Agent(**{"agent_id": "a", "root": root, **fields})


def test_before_the_start_nothing_can_be_asked(root: Path) -> None:
    agent, peer = Agent("a", root=root), Peer("a", root=root)
    for call in (agent.get_task, lambda: agent.submit_result(TaskResult()), peer.get_result):
        with pytest.raises(CallStateError, match="before start"):
            call()
    with pytest.raises(CallStateError, match="before start"):
        peer.send_task("train", "t", *GOOD)


@pytest.mark.parametrize("timeout", ["1", b"1", True, [1]])
def test_a_timeout_must_be_a_number(agent: Agent, timeout: Any) -> None:
    with pytest.raises(TypeError, match="must be a number of seconds"):
        agent.get_task(timeout)


@pytest.mark.parametrize("timeout", [0, -1, 0.0, float("nan")])
def test_a_timeout_must_be_above_nothing(agent: Agent, timeout: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        agent.get_task(timeout)


def test_no_task_in_time_is_none(agent: Agent) -> None:
    assert agent.get_task(0.01) is None


def test_the_environment_says_where_and_who(root: Path) -> None:
    peer = Peer("job 1", root=root)
    assert peer.environment == {"FLEET_RUN_ROOT": str(root), "FLEET_AGENT": "job 1"}
    agent = Agent.from_env(peer.environment, resend_interval=1)
    assert (agent.agent_id, agent.root) == ("job 1", str(root))
    assert Agent.from_env({"FLEET_ROOT": "r", "FLEET_JOB": "j"}).agent_id == "j"
    with pytest.raises(UsageError, match="which run"):
        Agent.from_env({"FLEET_AGENT": "a"})
    with pytest.raises(UsageError, match="which agent"):
        Agent.from_env({"FLEET_RUN_ROOT": "r"})


# -- tasks and results


def test_arrays_go_there_and_back(agent: Agent, peer: Peer) -> None:
    weights = np.linspace(0, 1, 1000, dtype=np.float32).reshape(10, 100)
    peer.send_task("train", "t1", {"episode": 1}, {"w": weights})
    task = fetched(agent, "t1")
    assert (task.task_name, task.meta) == ("train", {"episode": 1})
    assert agent.submit_result(TaskResult({"loss": 0.1}, {"w": task.data["w"] * 2}))
    assert task.status is Status.PROCESSED
    answer = answered(peer, "t1")
    assert answer.return_code == "OK" and answer.meta == {"loss": 0.1}
    assert answer.data["w"].dtype == np.float32 and (answer.data["w"] == weights * 2).all()
    assert peer.outstanding == () and agent.connected and peer.connected


def test_results_come_until_none_is_outstanding(agent: Agent, peer: Peer) -> None:
    peer.send_task("train", "t1", *GOOD)
    fetched(agent, "t1")
    done = Aside(lambda: agent.submit_result(TaskResult(return_code="EARLY_TERMINATION")))
    codes = [answer.return_code for answer in peer.results()]
    assert codes == ["EARLY_TERMINATION"] and done.result() is True


def test_an_invalid_task_is_rejected(agent: Agent, peer: Peer) -> None:
    peer.send_task("train", "t1", {}, {"d": 1})
    answer = answered(peer, "t1")
    assert answer.rejected and answer.return_code == "REJECTED" and "meta must be" in answer.why
    assert agent.get_task(0.01) is None


def test_calls_in_a_wrong_state_change_nothing(agent: Agent, peer: Peer) -> None:
    peer.send_task("train", "t1", *GOOD)
    wait_until(lambda: agent._state.current, what="the task")
    with pytest.raises(CallStateError, match="before get_task"):
        agent.submit_result(TaskResult())
    fetched(agent, "t1")
    with pytest.raises(CallStateError, match="submit its result first"):
        agent.get_task(1)
    with pytest.raises(TypeError, match="must be a TaskResult"):
        agent.submit_result({"d": 1})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be sent"):
        agent.submit_result(TaskResult({}, {"x": object()}))
    assert agent.submit_result(TaskResult()) and answered(peer, "t1")


def test_a_second_submit_is_a_wrong_call(agent: Agent, root: Path) -> None:
    hand = ByHand(root)
    hand.task("t1")
    fetched(agent, "t1")
    first = Aside(lambda: agent.submit_result(TaskResult()))
    letter = hand.comes(agents.RESULT)
    with pytest.raises(CallStateError, match="is being submitted"):
        agent.submit_result(TaskResult())
    hand.reply(letter, True)
    assert first.result() is True
    assert agent.submit_result(TaskResult()) is False  # there is no current task any more


def test_a_result_is_sent_again_until_it_is_acknowledged(agent: Agent, root: Path) -> None:
    hand = ByHand(root)
    hand.task("t1")
    fetched(agent, "t1")
    submit = Aside(lambda: agent.submit_result(TaskResult()))
    seen = []
    for _ in range(3):
        letter = hand.comes(agents.RESULT)
        seen.append(letter.number)
        hand.box.done(letter)
        assert submit.waiting
    hand.reply(hand.comes(agents.RESULT), True)
    assert submit.result() is True and len(set(seen)) == 3


def test_a_result_that_a_living_peer_does_not_take_is_written_anew(root: Path) -> None:
    with Agent("a", 0.5, resend_interval=0.1, root=root) as agent:
        hand = ByHand(root)
        hand.task("t1")
        fetched(agent, "t1")
        submit = Aside(lambda: agent.submit_result(TaskResult()))
        first = hand.comes(agents.RESULT)
        hand.box.beat(hand.box.look(), agents.ASKS)
        wait_until(lambda: hand.comes(agents.RESULT).number > first.number, what="a new one")
        assert first not in hand.box.look().incoming
        hand.reply(first, True)  # it may be answered under any of its numbers
        assert submit.result() is True


def test_a_result_that_is_rejected_for_good(agent: Agent, root: Path) -> None:
    hand = ByHand(root)
    hand.task("t1")
    fetched(agent, "t1")
    submit = Aside(lambda: agent.submit_result(TaskResult()))
    hand.reply(hand.comes(agents.RESULT), False)
    assert submit.result() is False
    hand.task("t2")
    fetched(agent, "t2")


def test_a_new_task_while_a_result_is_sent_means_that_it_was_received(
    agent: Agent, root: Path
) -> None:
    hand = ByHand(root)
    hand.task("t1")
    task = fetched(agent, "t1")
    submit = Aside(lambda: agent.submit_result(TaskResult()))
    hand.comes(agents.RESULT)
    hand.task("t2")
    assert submit.result() is True and not task.aborted
    fetched(agent, "t2")


def test_the_same_task_again_is_acknowledged_and_ignored(agent: Agent, root: Path) -> None:
    hand = ByHand(root)
    for _ in range(2):
        hand.task("t1")
        assert hand.verdict().taken
    task = fetched(agent, "t1")
    hand.task("t1")
    assert hand.verdict().taken and not task.aborted


# -- aborts


def test_an_aborted_task_and_the_one_that_waits(agent: Agent, peer: Peer) -> None:
    peer.send_task("train", "t1", *GOOD)
    task = fetched(agent, "t1")
    peer.abort("t1")
    wait_until(lambda: task.aborted, what="the abort")
    assert agent.get_task(0.01) is None  # until the application is done with it
    peer.send_task("train", "t2", *GOOD)
    assert agent.submit_result(TaskResult()) is False
    fetched(agent, "t2")
    assert agent.submit_result(TaskResult()) and answered(peer, "t2")


def test_another_task_aborts_the_one_that_is_worked_on(agent: Agent, peer: Peer) -> None:
    peer.send_task("train", "t1", *GOOD)
    task = fetched(agent, "t1")
    peer.send_task("train", "t2", *GOOD)
    wait_until(lambda: task.aborted, what="the abort")
    assert agent.submit_result(TaskResult()) is False
    fetched(agent, "t2")
    assert agent.submit_result(TaskResult()) and answered(peer, "t2")
    assert peer.outstanding == ()


def test_an_abort_of_what_nobody_fetched_does_not_block(agent: Agent, root: Path) -> None:
    hand = ByHand(root)
    hand.task("t1")
    hand.abort("t1")
    assert [hand.verdict().taken for _ in range(2)] == [True, True]
    assert agent.get_task(0.01) is None
    hand.task("t2")
    fetched(agent, "t2")


def test_a_task_that_was_aborted_may_be_sent_again(agent: Agent, peer: Peer) -> None:
    peer.send_task("train", "t1", *GOOD)
    task = fetched(agent, "t1")
    peer.abort("t1")
    wait_until(lambda: task.aborted, what="the abort")
    peer.send_task("train", "t1", *GOOD)
    assert agent.submit_result(TaskResult()) is False
    fetched(agent, "t1")
    assert agent.submit_result(TaskResult()) and answered(peer, "t1")


# -- ends


def test_goodbye_ends_the_agent_and_leaves_nothing(agent: Agent, root: Path) -> None:
    with Peer("a", root=root) as peer:
        peer.send_task("train", "t1", *GOOD)
        fetched(agent, "t1")
    with pytest.raises(AgentClosed, match="said goodbye"):
        agent.get_task(30)
    assert agent.submit_result(TaskResult()) is False
    wait_until(lambda: not os.listdir(root / agents.AGENTS), what="the mailbox is removed")
    with pytest.raises(AgentClosed):
        peer.send_task("train", "t2", *GOOD)


def test_an_agent_that_is_started_after_the_goodbye_is_done_at_once(root: Path) -> None:
    Mailbox(Store(root), "a", agents.AGENT).enter()  # and then it was killed
    with Peer("a", root=root) as peer:
        wait_until(lambda: peer.connected, what="connected")
        peer.bye(0.1)
    with Agent("a", root=root) as agent, pytest.raises(AgentClosed, match="said goodbye"):
        agent.get_task(30)
    assert os.listdir(root / agents.AGENTS) == []


def test_nothing_is_left_for_an_agent_that_is_known_to_have_ended(root: Path) -> None:
    Mailbox(Store(root), "a", agents.AGENT).enter()
    with Peer("a", root=root) as peer:
        peer.send_task("train", "t1", *GOOD)
        peer.bye(agent_ended=True)
    assert os.listdir(root / agents.AGENTS) == []


def test_that_it_has_ended_may_be_said_after_the_goodbye(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    box = Mailbox(Store(root), "a", agents.AGENT)
    box.enter()
    peer = Peer("a", root=root)
    peer.start()
    wait_until(lambda: peer.connected, what="connected")
    peer.bye(0.1)
    assert len(os.listdir(root / box.folder)) == 2
    peer.bye(agent_ended=True)
    assert os.listdir(root / agents.AGENTS) == [] and "nothing to stop" not in caplog.text


def test_stopping_ends_who_waits(root: Path) -> None:
    agent = Agent("a", root=root)
    agent.start()
    waits = Aside(agent.get_task)
    agent.stop()
    assert isinstance(waits.result(), AgentClosed)
    assert agent.submit_result(TaskResult()) is False


def test_stopping_ends_a_submit(root: Path) -> None:
    agent, hand = Agent("a", root=root), ByHand(root)
    agent.start()
    hand.task("t1")
    fetched(agent, "t1")
    submit = Aside(lambda: agent.submit_result(TaskResult()))
    hand.comes(agents.RESULT)
    agent.stop()
    assert submit.result() is False


def test_silence_is_told_once_and_then_it_is_dead(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ByHand(root)  # which beats but once
    with Agent("a", connection_timeout=0.2, heartbeat_timeout=0.6, root=root) as agent:
        with pytest.raises(AgentClosed, match="the other side is dead: no message for"):
            agent.get_task(60)
        assert not agent.connected
        assert agent.submit_result(TaskResult()) is False
    said = [r.getMessage().partition(": ")[2] for r in caplog.records]
    told = [words for words in said if "connected" in words]
    assert told == ["connected", "disconnected: no message for 0.2 s"]


def test_the_goodbye_of_an_agent_is_told_to_who_waits_for_it_and_a_new_one_goes_on(
    root: Path, peer: Peer
) -> None:
    with Agent("a", root=root) as agent:
        peer.send_task("train", "t1", *GOOD)
        fetched(agent, "t1")
    with pytest.raises(AgentClosed, match="agent a said goodbye"):
        peer.get_result(30)
    with Agent("a", root=root) as agent:
        fetched(agent, "t1")
        assert agent.submit_result(TaskResult()) and answered(peer, "t1")


# -- started anew


def test_the_first_submit_after_a_restart_may_lack_a_task(root: Path, peer: Peer) -> None:
    with Agent("a", root=root) as agent:
        peer.send_task("train", "t1", *GOOD)
        fetched(agent, "t1")
    with Agent("a", root=root) as agent:
        assert agent.submit_result(TaskResult({"from": "checkpoint"})) is True
        answer = answered(peer, "t1")
        assert answer.meta == {"from": "checkpoint"} and answer.task_name == "train"
        assert agent.submit_result(TaskResult()) is False
        peer.send_task("train", "t2", *GOOD)
        fetched(agent, "t2")


def test_a_new_peer_that_wants_the_same_gets_what_was_computed(root: Path, agent: Agent) -> None:
    first = Peer("a", root=root)
    first.start()
    first.send_task("train", "t1", *GOOD)
    fetched(agent, "t1")
    first.stop()
    submit = Aside(lambda: agent.submit_result(TaskResult({"by": "one"})))
    with Peer("a", root=root) as second:
        wait_until(lambda: second.connected, what="connected")
        assert submit.waiting
        second.send_task("train", "t1", *GOOD)
        assert answered(second, "t1").meta == {"by": "one"} and submit.result() is True


def test_a_new_peer_that_wants_something_else_refuses_it(root: Path, agent: Agent) -> None:
    first = Peer("a", root=root)
    first.start()
    first.send_task("train", "t1", *GOOD)
    fetched(agent, "t1")
    first.stop()
    submit = Aside(lambda: agent.submit_result(TaskResult()))
    with Peer("a", root=root) as second:
        second.send_task("train", "t2", *GOOD)
        submit.result()  # False, or True where the new task came first
        fetched(agent, "t2")
        assert agent.submit_result(TaskResult()) and answered(second, "t2")


@pytest.mark.parametrize("side", [Agent, Peer])
def test_who_has_a_successor_is_closed(side: Any, root: Path) -> None:
    with side("a", root=root) as first, side("a", root=root) as second:
        wait_until(lambda: first.over, what="it notices")
        assert first.over == f"another life of the {side.__name__.lower()} has taken its place"
        assert not second.over
    assert os.listdir(root / agents.AGENTS) == []


def test_who_is_cleared_away_does_not_come_back(root: Path, agent: Agent) -> None:
    folder = root / agents.agent_dir("a")
    wait_until(lambda: os.listdir(folder), what="its beat")
    for _ in range(200):  # it may be renamed meanwhile
        for name in os.listdir(folder):
            (folder / name).unlink(missing_ok=True)
    wait_until(lambda: agent.over, what="it notices")
    assert os.listdir(folder) == []


# -- damage


def test_a_damaged_message_is_set_aside_and_the_task_comes_again(
    root: Path, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    hand = ByHand(root)
    hand.box.write(agents.TASK, b"rubbish")
    (root / hand.box.folder / Letter(hand.box.life, 99, agents.ABORT).name).mkdir()
    wait_until(lambda: len(os.listdir(root / "quarantine")) == 4, what="both are set aside")
    assert sum("is set aside" in r.getMessage() for r in caplog.records) == 2
    hand.task("t1")
    fetched(agent, "t1")


def test_a_message_of_a_newer_version_is_refused(root: Path, agent: Agent) -> None:
    hand = ByHand(root)
    good = messages.task_bytes("train", "t1", *GOOD)
    hand.box.write(agents.TASK, good[:4] + NEWER + good[5:])
    verdict = hand.verdict()
    assert not verdict.taken and f"version {NEWER[0]}" in verdict.why


def test_a_full_disk_is_told_once_and_waited_out(
    root: Path, agent: Agent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = ByHand(root)
    hand.task("t1")
    fetched(agent, "t1")
    box = agent._line._mailbox

    def full(kind: str, data: bytes, *, durable: bool = True) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(box, "write", full)
        submit = Aside(lambda: agent.submit_result(TaskResult()))
        wait_until(lambda: "No space left" in caplog.text, what="it is told")
        assert submit.waiting
    hand.reply(hand.comes(agents.RESULT), True)
    assert submit.result() is True
    assert sum("cannot be used" in r.getMessage() for r in caplog.records) == 1
