"""What a watcher makes of its looks: times are counted from what it saw itself."""

from __future__ import annotations

import pytest

from ctl.health import Beat, Limits, State, judge
from ctl.memory import HostMemory
from ctl.observe import Reading, Report
from ctl.sight import Continuous, Single
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec

pytestmark = pytest.mark.unit

LIMITS = Limits(stale=60, ready=60)
META = LaunchMeta("/r", "r", (WorkerSpec("n1", 0),), 1, "m:f", launches={"n1": 1})
READY = Beat("a" * 12, 900, 1, True, False, False, True, None, 0.0)
LATER = Beat("b" * 12, 1, 1, False, False, False, True, None, 0.0)


@pytest.mark.parametrize("eyes", [Continuous(LIMITS, 0.0), Single(LIMITS)], ids=["watch", "once"])
def test_a_later_life_is_given_its_own_time_to_get_ready(eyes):
    memory: dict[str, HostMemory] = {}

    def state(beat: Beat, now: float) -> State:
        report = Report(now, {"n1": Reading(beat, now)}, meta_mtime=0.0)
        sight = eyes.see(report, META, memory, frozenset({"n1"}), now)
        memory.update(sight.memory)
        return judge(sight.seen[0], None, LIMITS).state

    assert state(READY, 1000.0) is State.READY
    assert state(LATER, 1010.0) is State.STARTING
    assert state(LATER._replace(seq=20), 1060.0) is State.STARTING
    assert state(LATER._replace(seq=40), 1080.0) is State.STUCK_STARTING
