"""A file server that pauses, restarts, is full, and refuses what it seemed to take.

A slow or failing server looks like a dead fleet: nobody may be restarted for it, nothing may be
lost, and all goes on by itself. Two runs live through all of it at once, side by side on the same
machines and the same small filesystem: the fleet of all tests on a hard mount, one worker on a soft
one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from tests.cluster.conftest import LONG
from tests.cluster.fleets import Fleets
from tests.cluster.ground import Run, Sending
from tests.rigs.nfs import Server
from tests.rigs.vmcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

T = TypeVar("T")
Runs = Mapping[str, Run]

HOSTS = {"hard": "node1,node2,node3", "soft": "node1"}
PAUSE = 90
"""Seconds without a server: many times the silence after which a worker is suspected, and more than
a soft mount waits before it reports errors."""
DOWN = 30 if LONG else 12
TASKS, SECONDS = 180, 0.4
FULL = 60 if LONG else 20
"""Seconds without room."""
QUIET_WRITE = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
os.write(fd, b"x" * 5000)
print("written")
try:
    os.close(fd)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def each(runs: Runs, act: Callable[[str], T]) -> dict[str, T]:
    """Do it for all runs at once."""
    with ThreadPoolExecutor(len(runs)) as pool:
        begun = {kind: pool.submit(act, kind) for kind in runs}
        return {kind: future.result() for kind, future in begun.items()}


class Trial:
    """Work amid which something happens to the server of all runs."""

    def __init__(self, runs: Runs, seconds: float = SECONDS) -> None:
        self.runs = runs
        self.lives = each(runs, self._lives)
        self.restarts = {kind: run.restarts() for kind, run in runs.items()}
        self.sendings: dict[str, Sending] = each(runs, lambda k: runs[k].send(TASKS, seconds))
        for sending in self.sendings.values():
            sending.wait(10)

    def _lives(self, kind: str) -> dict[str, tuple[str, int, int]]:
        """The processes of a run's workers: whoever is well must keep his.

        From their beats, since a `ctl status` costs a busy head a minute.
        """
        beats = {name: self.runs[kind].beat(name) for name in HOSTS[kind].split(",")}
        assert all(beat["ready"] for beat in beats.values()), beats
        return {name: (b["boot_id"], b["pid"], b["launch"]) for name, b in beats.items()}

    def end(self, *, refused: bool = False) -> dict[str, dict[str, Any]]:
        """All is answered, by the same processes as before, and the watchers helped nobody.

        Some tasks may have been `refused` by the storage; on a soft mount always, since a client
        that is sending just then gives up.
        """
        told = {
            kind: sending.end(refused=refused or kind == "soft")
            for kind, sending in self.sendings.items()
        }
        assert each(self.runs, self._lives) == self.lives
        assert {kind: run.restarts() for kind, run in self.runs.items()} == self.restarts
        each(self.runs, lambda kind: self.runs[kind].check_clean())
        for kind, run in self.runs.items():
            print(f"{kind}: {told[kind]}; {run.text('watch.log')}")
        return told


@pytest.fixture(scope="module")
def _soft_ends(fleets: Fleets) -> Iterator[None]:
    """What only these tests use ends with them."""
    yield
    fleets.end("soft")


@pytest.fixture
def runs(fleet: Run, fleets: Fleets, _soft_ends: None) -> Runs:
    """A run with a watcher on each mount."""
    return {"hard": fleets.watched("fleet"), "soft": fleets.watched("soft")}


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    """The file server, which works again at the end whatever happened."""
    server = cluster.server
    yield server
    server.flag.unlink(missing_ok=True)
    server.clear()
    if server.running:
        server.resume()
    else:
        server.start()
    cluster.save()


def test_a_paused_server_costs_nothing_but_time(runs: Runs, server: Server) -> None:
    trial = Trial(runs)
    server.pause()
    time.sleep(PAUSE)
    server.resume()

    for told in trial.end().values():
        assert told["gap"] > PAUSE / 2, "it was missed"


def test_a_server_that_starts_anew_costs_nothing_but_time(runs: Runs, server: Server) -> None:
    trial = Trial(runs)
    server.kill()
    time.sleep(DOWN)
    server.start()

    trial.end()


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_full_disk_is_waited_out(runs: Runs, server: Server) -> None:
    without_room(runs, "No space left on device", server.fill, server.clear)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_quota_that_shows_only_when_a_file_is_closed_is_waited_out(
    runs: Runs, server: Server
) -> None:
    hard = runs["hard"]
    server.flag.touch()
    wrote = hard.sh(hard.python(["-c", QUIET_WRITE, f"{hard.base}/probe"])).stdout
    assert wrote.split() == ["written", "EDQUOT"], "the write itself passes, only the end tells"
    server.flag.unlink()

    without_room(runs, "Disk quota exceeded", server.flag.touch, server.flag.unlink)


def without_room(
    runs: Runs, words: str, hold: Callable[[], object], give: Callable[[], object]
) -> None:
    """Work amid which nothing can be written for a while, which people are told in these words.

    What takes the room does so again and again, as others do who take what becomes free.
    """
    trial = Trial(runs, 2 * SECONDS)
    hold()
    begun = time.monotonic()
    with ThreadPoolExecutor(len(runs)) as pool:
        asked = [pool.submit(tell, run, words) for run in runs.values()]
        while time.monotonic() - begun < FULL or not all(one.done() for one in asked):
            hold()
            time.sleep(0.2)
    for kind, sending in trial.sendings.items():
        assert sending.answered() < TASKS, f"{kind}: there was work left"
    give()
    for one in asked:
        one.result()

    told = trial.end(refused=True)["hard"]
    assert told["right"] > told["wrong"], "what was sent before was done"
    assert all(words in word for word in told["words"]), told
    again = f"written again; for [0-9]+ s it was not: .*{words}"
    logs = runs["hard"].sh(f"grep -lE '{again}' {runs['hard'].root}/ctl/node?.log").stdout.split()
    assert len(logs) == len(trial.lives["hard"]), "each worker says why it was silent"


def tell(run: Run, words: str) -> None:
    """`ctl status` says why nothing is written."""
    status = run.python(["-m", "ctl", "status", "--root", run.root])
    refusal = f"warning: cannot write to .*{words}"
    run.wait(f"{status} 2>&1 >/dev/null | grep -q '{refusal}'", what=f"status says {words}")
