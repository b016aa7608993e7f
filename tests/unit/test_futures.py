"""Futures that share a condition: as good as those that own one, for whoever waits."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, as_completed, wait
from typing import Any

import pytest

from fsworker.client.futures import TaskFuture

pytestmark = pytest.mark.unit


@pytest.fixture
def pair() -> tuple[TaskFuture, TaskFuture]:
    shared = threading.Condition()
    return TaskFuture(shared), TaskFuture(shared)


def later(what: Any, *args: Any) -> threading.Timer:
    timer = threading.Timer(0.05, what, args)
    timer.start()
    return timer


def test_it_has_every_field_that_the_standard_one_has(pair: tuple[TaskFuture, TaskFuture]) -> None:
    assert vars(pair[0]).keys() == vars(Future()).keys()


def test_who_waits_is_woken_by_its_own_future_alone(pair: tuple[TaskFuture, TaskFuture]) -> None:
    first, second = pair
    first.set_result(1)
    assert (first.result(), first.exception()) == (1, None)
    with pytest.raises(TimeoutError):
        second.result(0.01)
    assert second._done_callbacks == []
    timer = later(second.set_result, 2)
    assert second.result(120) == 2
    timer.join()


def test_an_exception_and_a_cancellation_end_the_wait(pair: tuple[TaskFuture, TaskFuture]) -> None:
    first, second = pair
    timers = [later(first.set_exception, KeyError("x")), later(second.cancel)]
    with pytest.raises(KeyError):
        first.result(120)
    assert isinstance(first.exception(), KeyError)
    with pytest.raises(CancelledError):
        second.result(120)
    with pytest.raises(CancelledError):
        second.exception()
    for timer in timers:
        timer.join()


def test_the_standard_ways_to_wait_for_many_work() -> None:
    shared = threading.Condition()
    many = [TaskFuture(shared) for _ in range(50)]
    for future in many[:10]:
        future.set_result(None)
    rest = [later(future.set_result, None) for future in many[10:]]
    assert set(as_completed(many, timeout=120)) == set(many)
    assert wait(many, timeout=120).not_done == set()
    for timer in rest:
        timer.join()
