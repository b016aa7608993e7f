"""A training job on hosts behind real sshd, each with pids of its own; one of them dies whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs import hosts as rigs
from tests.rigs.hosts import HostRig
from tests.support.jobs import COMMAND, JobFleet, undisturbed
from tests.support.sshfleet import SshFleet
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

EPISODES = 8
SECRET = "staple-of-the-battery"
QUICK = {
    "FLEET_INTERVAL": "1",
    "FLEET_WATCH_STALE": "6",
    "FLEET_RESTART_COOLDOWN": "1",
    "FLEET_FENCE_AFTER": "2",
}


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[SshFleet]:
    rigs.require()
    with HostRig(tmp_path) as rig, SshFleet(tmp_path, rig, TOKEN=SECRET, **QUICK) as made:
        yield made


def test_a_job_outlives_its_host(ctl: SshFleet, tmp_path: Path) -> None:
    ctl.add_hosts("alpha", "beta")
    fleet = JobFleet(ctl, "alpha", "beta", options=("--watch", "--pass-env", "TOKEN"))
    seen = ctl.folder / "seen"
    script = f'printf %s "$TOKEN" >>{seen}; exec "$@"'
    (job,) = fleet.submit_command(
        ["sh", "-c", script, "sh", *COMMAND, "--diary", str(fleet.diary), "--pause", "0.3"],
        options=("--pass-env", "TOKEN", "--episodes", str(EPISODES), "--per-episode-sync"),
    )
    fleet.running(job, "begin 3")
    host = wait_until(lambda: fleet.row(job).host, what="a host")
    ctl.kill(*ctl.members(host))
    result = fleet.over(job, 240)
    assert (result["status"], result["episodes_completed"]) == ("success", EPISODES), result
    assert fleet.weights(job, EPISODES) == undisturbed(tmp_path, EPISODES)
    begun = [int(line.split()[1]) for line in fleet.lines() if line.startswith("begin")]
    assert begun == sorted(begun) and set(begun) == set(range(1, EPISODES + 1))
    # Its worker may have seen the end of the wrapper and given the job back before it died itself.
    assert [note.attempt for note in fleet.notes(job)] == [1, 2]
    assert set(seen.read_text().split(SECRET)) == {""}
    ctl.down()
