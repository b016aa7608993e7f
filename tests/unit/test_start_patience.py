"""How long a host may take to confirm a start: a share of the time that the user gave it."""

from __future__ import annotations

import pytest

from ctl import launching
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("options", "wait"), [({}, 45.0), ({"start_timeout": 200.0}, 150.0)])
def test_a_host_may_use_most_of_the_time_for_a_start(
    options: dict[str, float], wait: float
) -> None:
    workers = (WorkerSpec("n1", 0, 2),)
    meta = LaunchMeta("/r", "id", workers, 1, "a:b", launcher_options=options, launches={"n1": 1})
    assert launching.request_for(meta, "n1").wait == wait
