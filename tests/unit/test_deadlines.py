"""One thread for all bounds: each call in its time and once, none that was dropped."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial

import pytest

from ctl.launchers.deadlines import Deadlines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit


def _threads() -> int:
    return sum(thread.name == "deadlines" for thread in threading.enumerate())


def test_calls_are_made_in_the_order_in_which_they_are_due_and_dropped_ones_never():
    made: queue.Queue[int] = queue.Queue()
    deadlines, now = Deadlines(linger=0.2), time.monotonic()
    dues = {n: deadlines.add(now + 0.05 * n, partial(made.put, n)) for n in (6, 2, 4, 3, 5)}
    first = deadlines.add(now + 0.02, lambda: made.put(0))
    deadlines.drop(dues[3])
    assert [made.get(timeout=120) for _ in range(5)] == [0, 2, 4, 5, 6]
    assert time.monotonic() - now >= 0.3
    deadlines.drop(first)  # made already: nothing more
    wait_until(lambda: _threads() == 0, what="the thread ends when nothing is due")

    deadlines.add(time.monotonic(), lambda: made.put(7))
    assert made.get(timeout=120) == 7 and made.empty()
    wait_until(lambda: _threads() == 0)


def test_what_is_dropped_is_not_kept_until_it_would_have_been_due():
    deadlines = Deadlines(linger=0.1)
    far = time.monotonic() + 1e6
    kept = deadlines.add(far, lambda: None)
    for _ in range(5000):
        deadlines.drop(deadlines.add(far, lambda: None))
    assert len(deadlines) < 200 and _threads() == 1
    deadlines.drop(kept)


def test_a_call_that_fails_keeps_none_of_the_others_from_being_made():
    made: queue.Queue[int] = queue.Queue()
    deadlines, now = Deadlines(linger=0.1), time.monotonic()
    deadlines.add(now, lambda: 1 // 0)
    deadlines.add(now + 0.05, lambda: made.put(1))
    assert made.get(timeout=120) == 1
