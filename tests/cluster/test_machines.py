"""Machines that are switched off, freeze, boot anew and lose their network amid a batch.

One run with a watcher for all of it, as on a cluster, where a fleet lives through many of these.
Things happen to two of the three machines at once. Each time every task has one answer, nobody who
is well is touched, and the machines are back at work at the end, by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.fleets import Fleets
from tests.cluster.ground import Run, Sending
from tests.rigs.vm import Machine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TASKS = 120
SECONDS = 0.5
LATE = "late result is set aside|was revoked; its execution is ended|claims.* gone"


@pytest.fixture
def run(fleet: Run, fleets: Fleets) -> Iterator[Run]:
    """The run, with a watcher; the machines are put right again."""
    try:
        yield fleets.watched("fleet")
    finally:
        fleets.restore()


class Scene:
    """Machines of the run, at work amid a batch each."""

    def __init__(self, run: Run, *names: str, seconds: float = SECONDS) -> None:
        self.run = run
        self.names = names
        self.before = run.wait_ready()
        self.mark = len(run.text("watch.log"))
        self.sending: Sending = run.send(TASKS, seconds)
        self.sending.wait(4)
        # At one moment, and the batches take longer than it takes to act on that.
        holds = (f'[ -n "$(ls {run.root}/claims/{name}~* 2>/dev/null)" ]' for name in names)
        run.wait(" && ".join(holds), what=f"{names} work")

    def machines(self) -> list[Machine]:
        """In the order of their names."""
        return [self.run.cluster.workers[name] for name in self.names]

    def said(self) -> str:
        """What the watcher has said since."""
        return self.run.text("watch.log")[self.mark :]

    def wait_said(self, pattern: str) -> float:
        return self.run.wait(
            f"tail -c +{self.mark + 1} {self.run.root}/ctl/watch.log | grep -qE -- '{pattern}'",
            what=f"watch says {pattern}",
        )

    def wait_revoked(self, name: str) -> None:
        """Until the watcher has returned what an unreachable host held, which is no death."""
        self.wait_said(f"UNHEALTHY {name} .*state=unreachable")
        self.wait_said(f"revoked {name} .*batches=[1-9][0-9]* died=0")

    def end(self) -> dict[str, dict[str, Any]]:
        """All is answered once and all are ready; how the workers are then."""
        told = self.sending.end()
        after = self.run.wait_ready()
        self.run.check_clean()
        print(f"{self.names}: {told}; the watcher said:\n{self.said()}")
        for name in self.before.keys() - set(self.names):
            assert self.same(after, name, "incarnation"), f"{name} was well all the time"
        assert set(re.findall(r" restart (\S+) rc=", self.said())) <= set(self.names)
        return after

    def same(self, after: dict[str, dict[str, Any]], name: str, field: str) -> bool:
        """Whether a field of a host's heartbeat is what it was."""
        return bool(self.before[name]["raw"][field] == after[name]["raw"][field])

    def launches(self, after: dict[str, dict[str, Any]], name: str) -> int:
        """How often a host's worker was started meanwhile by somebody else than itself."""
        launches = [hosts[name]["raw"]["launch"] for hosts in (self.before, after)]
        return int(launches[1] - launches[0])


def test_a_machine_without_power_and_one_that_freezes_lose_their_claims(run: Run) -> None:
    """The first is started when it is back; the second thaws and commits nothing of them."""
    scene = Scene(run, "node1", "node2")
    off, frozen = scene.machines()
    frozen.freeze()
    off.power_off()

    scene.wait_revoked("node1")
    scene.wait_revoked("node2")
    scene.sending.end()
    assert " restart " not in scene.said(), "nobody can be started where nobody answers"
    off.power_on()
    frozen.thaw()
    off.wait_ssh()

    run.wait_said(LATE, file="node2.log")
    after = scene.end()
    assert not scene.same(after, "node1", "boot_id")
    assert scene.launches(after, "node1") == 1
    assert scene.launches(after, "node2") == 0, "it lived all the time, so nobody started a second"
    assert scene.same(after, "node2", "boot_id")


@pytest.mark.long
def test_a_machine_that_boots_anew_and_one_without_network_lose_their_claims(run: Run) -> None:
    """The first is known by its boot and started; the second goes on when it is back."""
    scene = Scene(run, "node3", "node1", seconds=4 * SECONDS)
    reset, cut = scene.machines()
    cut.link(False)
    reset.reset()

    scene.wait_said("UNHEALTHY node3 .*state=(dead|unreachable)")
    scene.wait_revoked("node1")
    scene.wait_said("restart node3 rc=0")
    scene.sending.end()
    cut.link(True)

    after = scene.end()
    assert scene.launches(after, "node3") == 1
    assert re.search(r"revoked node3 .*batches=[1-9][0-9]* ", scene.said())
    assert scene.launches(after, "node1") == 0
