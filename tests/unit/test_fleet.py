from __future__ import annotations

import threading
import time

import pytest

from ctl.fleet import fan_out
from fsworker.errors import DeadlineExceeded, FleetError

pytestmark = pytest.mark.unit


def test_outcomes_come_in_the_order_of_the_hosts():
    def slow_first(host: str) -> str:
        time.sleep(0.1 if host == "a" else 0)
        return host.upper()

    found = fan_out(["a", "b", "c"], slow_first)

    assert [(o.host, o.value, o.error) for o in found] == [
        ("a", "A", None),
        ("b", "B", None),
        ("c", "C", None),
    ]
    assert found[0].seconds > 0.09


def test_no_hosts_no_outcomes():
    assert fan_out([], lambda host: host) == []


def test_a_host_that_is_named_twice_has_two_outcomes():
    assert [o.value for o in fan_out(["a", "a"], lambda host: host)] == ["a", "a"]


def test_an_error_is_the_outcome_of_its_host_alone():
    def ask(host: str) -> str:
        if host == "bad":
            raise FleetError("host bad: no", host="bad")
        return host

    good, bad, last = fan_out(["good", "bad", "last"], ask)

    assert (good.ok, bad.ok, last.ok) == (True, False, True)
    assert isinstance(bad.error, FleetError)


def test_even_an_exit_within_a_thread_is_an_outcome():
    def ask(host: str) -> str:
        raise SystemExit(3)

    (only,) = fan_out(["a"], ask)
    assert isinstance(only.error, SystemExit)


def test_never_more_than_width_at_once():
    lock, now, most = threading.Lock(), [0], [0]

    def ask(host: str) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1

    assert all(o.ok for o in fan_out([f"n{i}" for i in range(20)], ask, width=4))
    assert most[0] == 4


def test_eight_hosts_are_asked_at_once():
    together = threading.Barrier(8)  # none comes through before all are there
    found = fan_out([f"n{i}" for i in range(8)], lambda host: together.wait(120))
    assert all(o.ok for o in found)


def test_a_thread_that_never_returns_is_a_deadline_that_names_its_host():
    release = threading.Event()
    try:
        begun = time.monotonic()
        good, stuck = fan_out(
            ["good", "stuck"], lambda host: host == "good" or release.wait(600), deadline=0.5
        )
        assert time.monotonic() - begun < 100
        assert good.ok
        assert isinstance(stuck.error, DeadlineExceeded)
        assert stuck.error.host == "stuck"
        assert "stuck" in str(stuck.error)
        assert stuck.seconds > 0.4
    finally:
        release.set()


def test_a_host_whose_turn_never_came_has_an_outcome_too():
    release, asked = threading.Event(), []

    def ask(host: str) -> None:
        asked.append(host)
        release.wait(120)

    try:
        found = fan_out(["a", "b", "c"], ask, width=1, deadline=0.3)
        assert [type(o.error) for o in found] == [DeadlineExceeded] * 3
        assert "turn" in str(found[2].error)
    finally:
        release.set()
    for thread in threading.enumerate():
        if thread.name == "fan-out" or thread.name.startswith("Thread-"):
            thread.join(5)
    assert asked == ["a"]  # nobody is asked after the outcomes were returned


def test_stuck_hosts_pass_on_their_places():
    release = threading.Event()
    try:
        hosts = ["stuck1", "stuck2", *[f"n{i}" for i in range(6)]]
        begun = time.monotonic()
        found = fan_out(
            hosts,
            lambda host: not host.startswith("stuck") or release.wait(600),
            width=2,
            each=0.3,
            deadline=300,
        )
        assert time.monotonic() - begun < 100
        assert [o.ok for o in found] == [False, False, *[True] * 6]
    finally:
        release.set()


def test_threads_do_not_pile_up():
    fan_out(["a", "b", "c"], lambda host: host)
    before = threading.active_count()
    for _ in range(50):
        fan_out(["a", "b", "c"], lambda host: host, deadline=10)
    deadline = time.monotonic() + 120
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
