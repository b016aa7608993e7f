"""Options of tasks: what is accepted, what a batch says, who goes first, what is repeated."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fsworker.client import Client
from fsworker.client.outbound import Call, Outbound, Outgoing
from fsworker.client.receivers import Strip
from fsworker.client.sizing import Sizer
from fsworker.client.terms import USUAL, Options, Terms, make_options
from fsworker.errors import UsageError
from fsworker.loop.intake import arrange
from fsworker.protocol import layout, turns
from fsworker.protocol.layout import Token
from fsworker.protocol.records.cancel import CancelRequest
from fsworker.slots import insisting
from tests.support.small_worker import SmallWorker, make_run

pytestmark = pytest.mark.unit

INC = "00000000000a"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": 5}, "priority must be a whole number from -4 to 4"),
        ({"priority": True}, "priority"),
        ({"timeout": 0}, "timeout must be"),
        ({"queue_limit": float("inf")}, "queue_limit must be"),
        ({"retries": -1}, "retries must be"),
        ({"retry_delay": "1"}, "retry_delay must be"),
        ({"retry_on": "ValueError"}, "retry_on must be names"),
        ({"retry_on": [ValueError]}, "retry_on must be names"),
        ({"env": [("A", "b")]}, "env must be a map"),
        ({"env": {"FLEET_X": "1"}}, "FLEET_X is set by the fleet"),
        ({"env": {"A=B": "1"}}, "is no name of a variable"),
        ({"env": {"": "1"}}, "is no name of a variable"),
        ({"env": {"A": 1}}, "the value of A must be a text, not 1"),
        ({"env": {"A": "nul\0"}}, "the value of A must be a text"),
        ({"env": {"A": "\ud800"}}, "the value of A must be a text"),
        ({"memory": "lots"}, "memory: 'lots' is not a size"),
        ({"memory": 5}, "memory: 5 cannot be"),
        ({"prio": 1}, "there is no option 'prio': there are env"),
    ],
)
def test_options_that_make_no_sense_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_options(options)


def test_a_batch_says_what_was_asked_for(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    worker = SmallWorker(root, {"tests.fn:first": abs, "tests.fn:second": abs})
    with worker, Client(root, timeout=7.0) as client:
        asking = client.with_options(
            priority=2,
            queue_limit=9,
            retries=3,
            retry_on=["OSError"],
            retry_delay=0.5,
            env={"HF_HOME": "/x", "EMPTY": ""},
            memory="2G",
        )
        assert asking.submit(None, -1).result(120) == 1
        assert list(asking.map("tests.fn:second", [-2, -3])) == [2, 3]
        assert client.submit(None, -4).result(120) == 4
    for meta in worker.metas[:-1]:
        assert meta["retries"] == [3, ["OSError"], 0.5]
        assert meta["timeout"] == 7.0
        assert (meta["env"], meta["memory"]) == ({"HF_HOME": "/x", "EMPTY": ""}, 2 << 30)
        assert 8 < meta["queue_limit"] <= 9
    assert not {"retries", "queue_limit", "env", "memory"} & worker.metas[-1].keys()


def _token(number: int, priority: int = 0) -> Token:
    return Token(f"s-{INC}-{turns.prior(number, priority)}", 0)


def test_a_name_with_a_priority_is_a_name_of_the_grammar() -> None:
    for priority in range(-4, 5):
        token = _token(12, priority)
        name = layout.inbox_path(token).rpartition("/")[2]
        assert layout.parse_inbox_name(0, name) == token
        assert turns.turn_of(token.batch) == (5 - priority, 12)


def test_urgent_batches_are_tried_first_by_owners_thieves_and_sharers() -> None:
    urgent, first, second, late = _token(7, 4), _token(1), _token(2), _token(0, -1)
    tokens = [late, second, urgent, first]
    assert arrange(tokens) == [urgent, first, second, late]
    assert arrange(tokens, newest_first=True) == [urgent, second, first, late]
    assert arrange(tokens, rank=1, sharers=2) == [urgent, first, second, late]
    assert arrange(tokens, rank=0, sharers=2) == [urgent, second, first, late]


def test_a_request_to_cancel_a_stream_means_every_priority_up_to_a_number() -> None:
    request = CancelRequest("s", upto={f"s-{INC}": 5})
    assert request.covers(_token(5, -2).batch) and request.covers(_token(5, 3).batch)
    assert not request.covers(_token(6, 3).batch) and not request.covers(_token(6).batch)


def _call(terms: Terms, since: float | None = None) -> Call:
    call = Call(threading.Condition())
    call.terms, call.record, call.since = terms, b"\x90", since
    return call


def _order(taken: list[Outgoing]) -> list[tuple[int, int]]:
    return [(outgoing.terms.priority, len(outgoing.records)) for outgoing in taken]


def test_the_queue_of_a_client_gives_out_what_is_urgent_first() -> None:
    queue = Outbound(Sizer(64, 1))
    low, usual, high = (Terms("f", Options(priority=p)) for p in (-1, 0, 3))
    for terms in (low, usual, high):
        strip = Strip(terms, 2)
        strip.records = [b"\x90"] * 2
        queue.add_strip(strip)
    queue.add_call(_call(usual))
    queue.add_prior(_call(low))
    queue.add_prior(_call(high))
    assert [lane.priority for lane in queue.lanes()] == [3, 0, -1]
    taken = list(queue.take(lambda lane: 1 if lane == USUAL else 10))
    assert _order(taken) == [(3, 1), (3, 2), (0, 1), (-1, 1), (-1, 2)]
    assert queue.lanes() == [USUAL]
    assert queue.cancel() == 2 and not queue


def test_a_batch_holds_only_tasks_that_have_waited_about_as_long() -> None:
    queue = Outbound(Sizer(64, 1))
    terms = Terms("f", Options(queue_limit=10.0))
    for since in (100.0, 100.1, 105.0):
        queue.add_prior(_call(terms, since))
    assert [(o.since, len(o.records)) for o in queue.take(lambda _: 10)] == [(100.0, 2), (105.0, 1)]
    assert terms.meta(4.0)["queue_limit"] == 6.0
    assert terms.meta(40.0)["queue_limit"] == 0.0


@pytest.mark.parametrize(
    ("rule", "tries", "kind", "pause"),
    [
        ([2, [], 0.5], 0, "ValueError", 0.5),
        ([2, [], 0.5], 1, "pkg.Error", 0.5),
        ([2, [], 0.5], 2, "ValueError", None),
        ([1, ["OSError", "Flaky"], 0], 0, "OSError", 0.0),
        ([1, ["OSError", "Flaky"], 0], 0, "pkg.mod.Flaky", 0.0),
        ([1, ["pkg.mod.Flaky"], 0], 0, "pkg.mod.Flaky", 0.0),
        ([1, ["pkg.mod.Flaky"], 0], 0, "other.Flaky", None),
        ([1, ["OSError"], 0], 0, "ValueError", None),
        ([1, [], 1e9], 0, "ValueError", 3600.0),
        ([1, [], float("nan")], 0, "ValueError", 0.0),
        ("nonsense", 0, "ValueError", None),
        ([1, "OSError", 0], 0, "OSError", None),
    ],
)
def test_a_task_is_tried_again_by_its_rule(
    rule: Any, tries: int, kind: str, pause: float | None
) -> None:
    assert insisting.pause(rule, tries, {"type": kind, "message": ""}) == pause
