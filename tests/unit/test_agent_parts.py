"""Parts of an agent: names, messages, who is alive, what is written again, one side's mailbox."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.agent import Task, TaskResult, link, messages, parcels
from fsworker.agent.line import pause_after
from fsworker.agent.link import Limits, Link, News
from fsworker.agent.mail import KEEP_DAMAGED, Mailbox
from fsworker.agent.messages import Invalid, Verdict
from fsworker.agent.parcels import Do, Parcel
from fsworker.errors import NotRunning, StorageError, UsageError
from fsworker.protocol import packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import agents
from fsworker.protocol.layout.agents import Beat, Letter, Life
from fsworker.protocol.segment import DamagedFile, Segment, WrongVersion
from tests.support.roots import make_root

pytestmark = pytest.mark.unit

# -- names

lives = st.builds(
    Life,
    st.sampled_from(agents.SIDES),
    st.integers(0, 10**16),
    st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
)
numbers = st.integers(0, 10**10 - 1)


@given(lives, numbers, st.sampled_from(agents.MOODS), st.sampled_from(agents.KINDS))
def test_every_name_comes_back(life: Life, number: int, mood: str, kind: str) -> None:
    beat, letter = Beat(life, number, mood), Letter(life, number, kind)
    assert agents.parse_beat_name(beat.name) == beat
    assert agents.parse_letter_name(letter.name) == letter
    assert agents.parse_draft_name(f".tmp~77-ab~{letter.name}") == letter
    assert agents.parse_beat_name(letter.name) is None is agents.parse_letter_name(beat.name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".nfs0001",
        "agent~1~0123456789ab",
        "agent~01~0123456789ab.1.new",
        "agent~1~0123456789AB.1.new",
        "agent~1~0123456789ab.01.task",
        "agent~1~0123456789ab.1.unknown",
        "boss~1~0123456789ab.1.task",
        "agent~1~0123456789ab.1.task.reason.json",
        "agent~1~0123456789ab.1.task\n",
    ],
)
def test_other_names_are_passed_over(name: str) -> None:
    assert agents.parse_beat_name(name) is None
    assert agents.parse_letter_name(name) is None
    assert agents.parse_draft_name(name) is None


def test_a_later_life_is_greater() -> None:
    early, late = Life("agent", 9, "ffffffffffff"), Life("agent", 10, "000000000000")
    assert early < late


@pytest.mark.parametrize("agent_id", ["..", "a/b", ".x", "é", "run 5%", "x" * 160])
def test_no_id_leaves_its_folder(agent_id: str) -> None:
    folder, _, name = agents.agent_dir(agent_id).partition("/")
    assert folder == agents.AGENTS and "/" not in name and not name.startswith(".")


# -- messages

NEWER = bytes([segment.MAJOR + 1])


def decoded(data: bytes) -> Segment:
    return messages.read(data, "x")


def test_arrays_travel() -> None:
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.int64(3), "t": (1, 2)}
    task = messages.as_task(decoded(messages.task_bytes("train", "t1", {"e": 1}, weights)))
    assert (task.task_name, task.task_id, task.meta) == ("train", "t1", {"e": 1})
    assert task.data["w"].dtype == np.float32 and (task.data["w"] == weights["w"]).all()
    assert task.data["n"] == 3 and task.data["t"] == (1, 2)
    result = TaskResult({"loss": 0.5}, weights, "EARLY_TERMINATION")
    answer = messages.as_answer(decoded(messages.result_bytes(task, result)))
    assert (answer.task_name, answer.task_id, answer.meta) == ("train", "t1", {"loss": 0.5})
    assert answer.return_code == "EARLY_TERMINATION" and not answer.rejected
    assert (answer.data["w"] == weights["w"]).all()


def test_the_small_ones_come_back() -> None:
    verdict = Verdict("0123456789ab", 7, False, "why not")
    assert messages.as_verdict(decoded(messages.reply_bytes(verdict))) == verdict
    assert messages.as_abort(decoded(messages.abort_bytes("t1"))) == "t1"
    lacking = messages.as_answer(decoded(messages.result_bytes(None, TaskResult())))
    assert (lacking.task_id, lacking.meta, lacking.data) == ("", {}, {})


@pytest.mark.parametrize("meta", [{}, None, [1], "x"])
@pytest.mark.parametrize("data", [{}, None, [1], np.ones(2)])
def test_a_task_needs_meta_and_data(meta: Any, data: Any) -> None:
    for m, d, part in ((meta, {"d": 1}, "meta"), ({"m": 1}, data, "data")):
        with pytest.raises(Invalid, match=f"{part} must be a dict that is not empty"):
            messages.as_task(decoded(messages.task_bytes("train", "t1", m, d)))


def raw(fields: dict[str, Any], *records: bytes) -> Segment:
    return Segment(messages.MESSAGE, fields, records)


ONE = packing.pack({"x": 1})
GOOD = {"task_name": "n", "task_id": "t"}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (raw({**GOOD, "task_id": ""}, ONE, ONE), "task_id is empty"),
        (raw({**GOOD, "task_id": 7}, ONE, ONE), "task_id must be a text"),
        (raw({"task_id": "t"}, ONE, ONE), "task_name must be a text"),
        (raw(GOOD, ONE), "1 records"),
        (raw(GOOD, ONE, ONE, ONE), "3 records"),
        (raw(GOOD, ONE, b"\xc1"), "cannot be decoded"),
    ],
)
def test_a_task_that_makes_no_sense(message: Segment, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        messages.as_task(message)


def test_a_reply_and_a_result_that_make_no_sense() -> None:
    with pytest.raises(Invalid, match="needs a number"):
        messages.as_verdict(raw({"to": "x", "number": "7", "taken": True, "why": ""}))
    with pytest.raises(Invalid, match="meta must be a dict"):
        messages.as_answer(raw({**GOOD, "return_code": "OK"}, packing.pack([1]), ONE))
    with pytest.raises(Invalid, match="return_code must be a text"):
        messages.as_answer(raw(GOOD, ONE, ONE))


def test_damage_and_another_version_are_told_apart() -> None:
    good = messages.task_bytes("train", "t1", {"e": 1}, {"d": 1})
    for bad in (b"", good[:-1], good + b"x", good[:40] + b"\xff" + good[41:], b"{}"):
        with pytest.raises(DamagedFile):
            decoded(bad)
    with pytest.raises(WrongVersion):
        decoded(good[:4] + NEWER + good[5:])


def test_what_cannot_be_sent_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the result cannot be sent: a object"):
        messages.result_bytes(None, TaskResult({}, {"x": object()}))
    with pytest.raises(UsageError, match="must be texts"):
        messages.task_bytes("n", "", {"m": 1}, {"d": 1})
    monkeypatch.setattr(segment, "MAX_BYTES", 1000)
    with pytest.raises(UsageError, match="write it to a file and send its path"):
        messages.task_bytes("n", "t", {"m": 1}, {"d": b"x" * 1000})


@pytest.mark.parametrize(("meta", "code"), [([1], "OK"), ({}, 7), ({}, None)])
def test_a_result_is_checked_where_it_is_made(meta: Any, code: Any) -> None:
    with pytest.raises(TypeError):
        TaskResult(meta, {}, code)


# -- who is alive

LIMITS = Limits(connection=10.0, heartbeat=30.0)
ME, NEXT = Life("peer", 100, "aaaaaaaaaaaa"), Life("peer", 101, "000000000000")
EARLIER = Life("peer", 99, "ffffffffffff")
BEAT = Beat(ME, 5, agents.ASKS)
UP = Link(0.0, BEAT, connected=True)
UNKNOWN = Link(0.0)


@pytest.mark.parametrize(
    ("before", "seen", "now", "after", "news"),
    [
        pytest.param(UNKNOWN, None, 1.0, Link(1.0, silence=1.0), News(), id="nobody yet"),
        pytest.param(
            UNKNOWN, BEAT, 1.0, Link(1.0, BEAT, connected=True), News(connected=True), id="heard"
        ),
        pytest.param(UP, BEAT, 1.0, Link(1.0, BEAT, 1.0, True), News(), id="the same beat"),
        pytest.param(
            UP,
            Beat(ME, 6, agents.ASKS),
            1.0,
            Link(1.0, Beat(ME, 6, agents.ASKS), connected=True),
            News(),
            id="a new beat",
        ),
        pytest.param(
            UP, Beat(ME, 4, agents.ASKS), 1.0, Link(1.0, BEAT, 1.0, True), News(), id="an old look"
        ),
        pytest.param(
            Link(0.0, BEAT, 9.5, True),
            BEAT,
            1.0,
            Link(1.0, BEAT, 10.5),
            News(disconnected=True),
            id="silent for too long: disconnected",
        ),
        pytest.param(
            Link(0.0, BEAT, 10.5), BEAT, 1.0, Link(1.0, BEAT, 11.5), News(), id="said once"
        ),
        pytest.param(
            Link(0.0, BEAT, 25.0),
            Beat(ME, 6, agents.NEW),
            1.0,
            Link(1.0, Beat(ME, 6, agents.NEW), connected=True),
            News(connected=True),
            id="it is back",
        ),
        pytest.param(
            Link(0.0, BEAT, 29.5),
            BEAT,
            1.0,
            Link(1.0, BEAT, 30.5, dead=True),
            News(dead=True),
            id="dead",
        ),
        pytest.param(
            Link(0.0, silence=29.5),
            None,
            1.0,
            Link(1.0, silence=30.5, dead=True),
            News(dead=True),
            id="dead without ever having come",
        ),
        pytest.param(
            UP,
            Beat(NEXT, 0, agents.NEW),
            1.0,
            Link(1.0, Beat(NEXT, 0, agents.NEW), connected=True),
            News(replaced=True),
            id="started anew",
        ),
        pytest.param(
            UP,
            Beat(ME, 6, agents.BYE),
            1.0,
            Link(1.0, Beat(ME, 6, agents.BYE)),
            News(gone=True),
            id="goodbye",
        ),
        pytest.param(
            Link(0.0, Beat(ME, 6, agents.BYE)),
            Beat(EARLIER, 0, agents.NEW),
            1.0,
            Link(1.0, Beat(EARLIER, 0, agents.NEW), connected=True),
            News(connected=True, replaced=True),
            id="after a goodbye everyone is new",
        ),
        pytest.param(
            UP,
            Beat(EARLIER, 9, agents.NEW),
            1.0,
            Link(1.0, BEAT, 1.0, True),
            News(),
            id="one that was replaced long ago",
        ),
        pytest.param(
            UP,
            BEAT,
            10_000.0,
            Link(10_000.0, BEAT, link.MOST, True),
            News(),
            id="we were frozen: that silence was ours",
        ),
    ],
)
def test_the_other_side(
    before: Link, seen: Beat | None, now: float, after: Link, news: News
) -> None:
    assert link.look(before, seen, now, LIMITS) == (after, news)


def test_without_a_limit_nobody_is_ever_dead() -> None:
    at = UP
    for now in range(10_000):
        at, news = link.look(at, BEAT, float(now), Limits(connection=10.0))
        assert not news.dead
    assert not at.connected


# -- what is written again


def written(at: float, missing_since: float | None = None) -> Parcel:
    return Parcel("task", "t1", b"", [3], at, missing_since)


@pytest.mark.parametrize(
    ("parcel", "lying", "heard", "do"),
    [
        pytest.param(Parcel("task", "t1", b""), False, False, Do.WRITE, id="the first time"),
        pytest.param(written(99.0), True, True, Do.WAIT, id="it lies there"),
        pytest.param(written(60.0), True, True, Do.RENEW, id="nobody takes it"),
        pytest.param(written(60.0), True, False, Do.WAIT, id="nobody is there to take it"),
        pytest.param(written(60.0), False, True, Do.WAIT, id="gone: an answer may be coming"),
        pytest.param(written(60.0, 97.0), False, True, Do.WRITE, id="gone, and no answer"),
        pytest.param(written(60.0, 99.0), False, True, Do.WAIT, id="gone for a moment"),
    ],
)
def test_when_a_message_is_written_again(parcel: Parcel, lying: bool, heard: bool, do: Do) -> None:
    assert parcels.due(parcel, lying, 100.0, again=2.0, patience=30.0, heard=heard) is do


def test_looks_are_frequent_at_first_and_cheap_later() -> None:
    assert pause_after(0.0) <= 0.001
    assert pause_after(5.0) == 0.05
    assert pause_after(30.0) == 0.25
    assert pause_after(61.0) == 1.0


# -- a mailbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "root")


def enter(root: Path, side: str) -> Mailbox:
    box = Mailbox(Store(root), "a 1", side)
    box.enter()
    return box


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root / agents.agent_dir("a 1")))


def test_each_side_sees_the_other_and_its_messages_in_order(root: Path) -> None:
    agent, peer = enter(root, "agent"), enter(root, "peer")
    for body in (b"one", b"two"):
        peer.write(agents.TASK, body)
    agent.beat(agent.look(), agents.ASKS)
    sight = agent.look()
    assert [agent.read(x) for x in sight.incoming] == [b"one", b"two"]
    assert sight.other is not None and sight.other.life == peer.life
    agent.done(sight.incoming[0])
    there = peer.look()
    assert there.lying == {1} and not there.incoming
    assert there.other == Beat(agent.life, 1, agents.ASKS)


def test_a_life_is_later_than_all_before_whatever_the_clock_says(root: Path) -> None:
    first = enter(root, "agent")
    ahead = Beat(Life("agent", first.life.era + 5000, "ffffffffffff"), 3, agents.NEW)
    (root / first.folder / ahead.name).touch()
    second = enter(root, "agent")
    assert second.life > ahead.life > first.life
    sight = second.look()
    assert sight.own == sight.mine[0] and len(names(root)) == 1


def test_a_new_life_removes_what_its_predecessors_left_but_their_last_words(root: Path) -> None:
    oldest = enter(root, "agent")
    oldest.write(agents.RESULT, b"too old")
    first, peer = enter(root, "agent"), enter(root, "peer")
    first.write(agents.REPLY, b"reply")
    first.write(agents.RESULT, b"result")
    (root / first.folder / f".tmp~1-ab~{Letter(first.life, 9, agents.RESULT).name}").touch()
    second = enter(root, "agent")
    assert [peer.read(x) for x in peer.look().incoming] == [b"reply", b"result"]
    assert len(names(root)) == 4  # two beats as well
    assert peer.look().other == Beat(second.life, 0, agents.NEW)


def test_a_new_peer_passes_over_an_agent_that_has_ended_but_not_its_result(root: Path) -> None:
    agent = enter(root, "agent")
    agent.write(agents.RESULT, b"result")
    agent.write(agents.REPLY, b"reply")
    agent.beat(agent.look(), agents.BYE)
    peer = enter(root, "peer")
    sight = peer.look()
    assert sight.other is None and [peer.read(x) for x in sight.incoming] == [b"result"]
    assert len(names(root)) == 2


def test_a_goodbye_that_a_killed_agent_has_not_seen_is_for_the_next_one_too(root: Path) -> None:
    enter(root, "agent")
    peer = enter(root, "peer")
    peer.beat(peer.look(), agents.BYE)
    other = enter(root, "agent").look().other
    assert other is not None and other.mood == agents.BYE


def test_clearing_leaves_what_later_lives_wrote(root: Path) -> None:
    agent, peer = enter(root, "agent"), enter(root, "peer")
    agent.write(agents.RESULT, b"")
    last = peer.life
    later = enter(root, "peer")
    agent.clear(last)
    assert names(root) == [Beat(later.life, 0, agents.NEW).name]
    agent.clear(later.life)
    assert os.listdir(root / agents.AGENTS) == []


def test_damaged_messages_are_kept_for_people_but_not_without_bound(root: Path) -> None:
    agent, peer = enter(root, "agent"), enter(root, "peer")
    for _ in range(KEEP_DAMAGED + 2):
        peer.write(agents.TASK, b"rubbish")
    for letter in agent.look().incoming:
        agent.set_aside(letter, "it is rubbish")
    assert not agent.look().incoming and len(names(root)) == 2
    kept = os.listdir(root / "quarantine")
    assert len(kept) == 2 * KEEP_DAMAGED
    assert sum(n.endswith(".reason.json") for n in kept) == KEEP_DAMAGED


def test_a_beat_by_an_old_look_does_no_harm(root: Path) -> None:
    agent = enter(root, "agent")
    sight = agent.look()
    agent.beat(sight, agents.ASKS)
    agent.beat(sight, agents.ASKS)
    assert len(agent.look().mine) == 1
    agent.beat(agent.look(), agents.ASKS)
    assert agent.look().mine[0].number == 3


def test_there_must_be_a_run(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "nothing"):
        with pytest.raises(NotRunning, match="there is no run at"):
            enter(place, "agent")
    os.remove(root / "manifest.json")
    with pytest.raises(NotRunning):
        enter(root, "agent")


def test_a_root_that_takes_no_folder_is_told_in_one_sentence(root: Path) -> None:
    (root / agents.AGENTS).touch()
    with pytest.raises(StorageError, match="cannot use the mailbox"):
        enter(root, "agent")


def test_a_task_says_what_it_is() -> None:
    assert str(Task("train", "t1", {}, {})) == "task 't1' (train)"
