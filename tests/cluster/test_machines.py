"""Machines that are switched off, freeze, boot anew and lose their network amid a batch.

One run with a watcher for all of it, as on a cluster, where a fleet lives through many of these.
Each time every task has one answer, nobody who is well is touched, and the machine is back at work
at the end, by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.ground import WATCH, Run, Sending
from tests.rigs.vm import Machine
from tests.rigs.vmcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TASKS = 120
SECONDS = 0.5
LATE = "late result is set aside|was revoked; its execution is ended|claims.* gone"


@pytest.fixture(scope="module")
def run(cluster: Cluster) -> Iterator[Run]:
    made = Run(cluster, "machines")
    try:
        made.start("--watch", **WATCH)
        yield made
        made.stop()
    finally:
        for machine in cluster.workers.values():
            restore(machine)
        made.close()


def restore(machine: Machine) -> None:
    """Whatever a test that failed has left."""
    if not machine.running:
        machine.power_on()
    machine.thaw()
    machine.link(True)
    machine.wait_ssh()


class Scene:
    """One machine of the run, at work amid a batch."""

    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.name = name
        self.machine = run.cluster.workers[name]
        self.before = run.wait_ready()
        self.mark = len(run.text("watch.log"))
        self.sending: Sending = run.send(TASKS, SECONDS)
        run.wait(f'[ -n "$(ls {run.root}/claims/{name}~* 2>/dev/null)" ]', what=f"{name} works")
        self.sending.wait(4)
        assert run.holds(name), "it is amid a batch"

    def said(self) -> str:
        """What the watcher has said since."""
        return self.run.text("watch.log")[self.mark :]

    def wait_said(self, pattern: str) -> float:
        return self.run.wait(
            f"tail -c +{self.mark + 1} {self.run.root}/ctl/watch.log | grep -qE -- '{pattern}'",
            what=f"watch says {pattern}",
        )

    def end(self) -> dict[str, dict[str, Any]]:
        """All is answered once and all are ready; how the workers are then."""
        told = self.sending.end()
        after = self.run.wait_ready()
        self.run.check_clean()
        print(f"{self.name}: {told}; the watcher said:\n{self.said()}")
        for name in self.before.keys() - {self.name}:
            lives = [hosts[name]["raw"]["incarnation"] for hosts in (self.before, after)]
            assert lives[0] == lives[1], f"{name} was well all the time"
        assert set(re.findall(r" restart (\S+) rc=", self.said())) <= {self.name}
        return after

    def launches(self, after: dict[str, dict[str, Any]]) -> int:
        """How often the machine's worker was started meanwhile by somebody else than itself."""
        launches = [hosts[self.name]["raw"]["launch"] for hosts in (self.before, after)]
        return int(launches[1] - launches[0])


def test_a_machine_without_power_loses_its_claims_and_is_started_when_it_is_back(run: Run) -> None:
    scene = Scene(run, "node1")
    scene.machine.power_off()

    scene.wait_said("UNHEALTHY node1 .*state=unreachable: connect")
    scene.wait_said("revoked node1 .*batches=[1-9][0-9]* died=0")
    scene.sending.end()
    assert " restart " not in scene.said(), "nobody can be started where nobody answers"
    scene.machine.power_on()
    scene.machine.wait_ssh()

    after = scene.end()
    boots = [hosts["node1"]["raw"]["boot_id"] for hosts in (scene.before, after)]
    assert boots[0] != boots[1]
    assert scene.launches(after) == 1


def test_a_frozen_machine_that_thaws_commits_nothing_of_what_was_revoked(run: Run) -> None:
    scene = Scene(run, "node2")
    scene.machine.freeze()

    scene.wait_said("UNHEALTHY node2 .*state=unreachable")
    scene.wait_said("revoked node2 .*batches=[1-9][0-9]* died=0")
    scene.sending.end()
    scene.machine.thaw()

    run.wait_said(LATE, file="node2.log")
    after = scene.end()
    assert scene.launches(after) == 0, "it lived all the time, so nobody started a second one"
    assert after["node2"]["raw"]["boot_id"] == scene.before["node2"]["raw"]["boot_id"]


@pytest.mark.long
def test_a_machine_that_boots_anew_is_known_by_its_boot_and_started(run: Run) -> None:
    scene = Scene(run, "node3")
    scene.machine.reset()

    scene.wait_said("UNHEALTHY node3 .*state=(dead|unreachable)")
    scene.wait_said("restart node3 rc=0")
    after = scene.end()
    assert scene.launches(after) == 1
    assert re.search(r"revoked node3 .*batches=[1-9][0-9]* ", scene.said())


def test_a_machine_without_network_loses_its_claims_and_goes_on_when_it_is_back(run: Run) -> None:
    scene = Scene(run, "node1")
    scene.machine.link(False)

    scene.wait_said("UNHEALTHY node1 .*state=unreachable")
    scene.wait_said("revoked node1 .*batches=[1-9][0-9]* died=0")
    scene.sending.end()
    scene.machine.link(True)

    after = scene.end()
    assert scene.launches(after) == 0
