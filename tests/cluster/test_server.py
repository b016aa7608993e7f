"""A file server that pauses, restarts, is full, and refuses what it seemed to take.

A slow or failing server looks like a dead fleet: nobody may be restarted for it, nothing may be
lost, and all goes on by itself, on hard and on soft mounts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import LONG
from tests.cluster.ground import WATCH, Run
from tests.rigs.nfs import Server
from tests.rigs.vmcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

PAUSE = 90 if LONG else 35
"""Seconds without a server: more than twice the silence after which a worker is suspected, and
more than a soft mount waits before it reports errors."""
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


class Witness:
    """The processes of a run's workers: whoever is well must keep his."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.before = self.lives()

    def lives(self) -> dict[str, tuple[str, int, int]]:
        hosts = self.run.wait_ready()
        return {
            name: (host["raw"]["boot_id"], host["raw"]["pid"], host["raw"]["launch"])
            for name, host in hosts.items()
        }

    def check(self) -> None:
        """The same processes as before, and the watcher helped nobody."""
        assert self.lives() == self.before
        assert self.run.restarts() == []


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Run]:
    """A run with a watcher, on the mount that the test asks for."""
    made = Run(cluster, "server", request.param)
    try:
        made.start("--watch", **WATCH)
        yield made
        made.stop()
    finally:
        made.sh("rm -f /small/fill*", check=False)
        made.close()


def on(*mounts: str) -> pytest.MarkDecorator:
    """The mounts on which a test takes place; those of one mount share a run.

    `/small` is a hard mount of a filesystem of a few megabytes, `/soft` a soft one.
    """
    ids = ["soft" if mount == "/soft" else "hard" for mount in mounts]
    return pytest.mark.parametrize("run", mounts, ids=ids, indirect=True, scope="module")


EVERYWHERE = ("/small", "/soft")


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    """The file server, which works again at the end whatever happened."""
    server = cluster.server
    yield server
    server.flag.unlink(missing_ok=True)
    if server.running:
        server.resume()
    else:
        server.start()
    cluster.save()


@on(*EVERYWHERE)
def test_a_paused_server_costs_nothing_but_time(run: Run, server: Server) -> None:
    witness = Witness(run)
    sending = run.send(TASKS, SECONDS)
    sending.wait(10)
    server.pause()
    time.sleep(PAUSE)
    server.resume()

    told = sending.end()
    witness.check()
    run.check_clean()
    print(f"{PAUSE} s without a server: {told}; {run.text('watch.log')}")
    assert told["gap"] > PAUSE / 2, "it was missed"


@on(*EVERYWHERE[: 2 if LONG else 1])
def test_a_server_that_starts_anew_costs_nothing_but_time(run: Run, server: Server) -> None:
    witness = Witness(run)
    sending = run.send(TASKS, SECONDS)
    sending.wait(10)
    server.kill()
    time.sleep(PAUSE / 3)
    server.start()

    told = sending.end()
    witness.check()
    run.check_clean()
    print(f"restarted: {told}; {run.text('watch.log')}")


FILL = "dd if=/dev/zero of=/small/fill{i} bs={size} conv=fsync 2>/dev/null"


@on("/small")
def test_a_full_disk_is_waited_out(run: Run, server: Server) -> None:
    witness = Witness(run)
    sending = run.send(TASKS, 2 * SECONDS)
    sending.wait(10)
    run.sh(
        "; ".join(FILL.format(i=i, size=size) for i, size in enumerate(("64k", "1k", "1"))),
        check=False,
    )
    assert server.free_bytes() < 4096
    assert sending.answered() < TASKS / 2, "there is much to do"
    time.sleep(FULL)
    run.sh("rm /small/fill*")

    told = sending.end(refused=True)
    witness.check()
    run.check_clean()
    print(f"{FULL} s on a full disk: {told}; {run.text('watch.log')}")


@on("/small")
def test_a_quota_that_shows_only_when_a_file_is_closed_is_waited_out(
    run: Run, server: Server
) -> None:
    witness = Witness(run)
    sending = run.send(TASKS, 2 * SECONDS)
    sending.wait(10)
    server.flag.touch()
    wrote = run.sh(run.python(["-c", QUIET_WRITE, f"{run.base}/probe"])).stdout
    assert wrote.split() == ["written", "EDQUOT"], "the write itself passes, only the end tells"
    time.sleep(FULL)
    server.flag.unlink()

    told = sending.end(refused=True)
    witness.check()
    run.check_clean()
    print(f"{FULL} s over quota: {told}; {run.text('watch.log')}")
