"""What only a real client and a real server show: folders as tokens, and a lock that lies."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.conftest import LONG
from tests.cluster.fleets import Fleets
from tests.cluster.ground import WATCH, Run
from tests.rigs.vmcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TOKENS = 60
STARTED = re.compile(r" worker pid=\d+ incarnation=\w+ started")
_LIE = r"""
#include <errno.h>
/* -DGRANT: every lock is granted at once. Else: this filesystem has no locks. */
int flock(int fd, int how) {
#ifdef GRANT
  return 0;
#else
  errno = ENOSYS;
  return -1;
#endif
}
"""


@pytest.fixture
def folder(cluster: Cluster) -> Iterator[Run]:
    """A run that is not started."""
    made = Run(cluster, "corners")
    yield made
    made.close()


def test_of_folders_under_one_name_the_first_wins_whole_on_whatever_machine(folder: Run) -> None:
    run = folder
    root = f"{run.base}/tokens"
    run.sh(f"mkdir {root}")
    machines = [run.head, *run.cluster.workers.values()]

    def publish(name: str) -> list[str]:
        machine = next(m for m in machines if m.name == name)
        words = ["-m", "tests.cluster.publisher", root, name, str(TOKENS)]
        value: list[str] = json.loads(run.sh(run.python(words), on=machine).stdout)
        return value

    names = [machine.name for machine in machines[1:]]
    with ThreadPoolExecutor() as pool:
        asked = {name: pool.submit(publish, name) for name in names}
        run.wait(f'[ "$(ls {root} | grep -c ready)" = {len(names)} ]', what="all look for a signal")
        run.sh(f"rm {root}/ready-*; : >{root}/go")
        won = {name: future.result() for name, future in asked.items()}

    print(f"the first at {TOKENS} names: { ({name: len(w) for name, w in won.items()}) }")
    assert min(map(len, won.values())) > 0, "it was a race"
    assert sorted(token for tokens in won.values() for token in tokens) == sorted(
        f"token{i}" for i in range(TOKENS)
    )
    shown = run.sh(f"cd {root}; for f in token*; do echo $f $(cat $f/who) $(cat $f/again); done")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert all(who == again and token in won[who] for token, who, again in rows)
    assert run.sh(f"ls -A {root} | grep -v token || true").stdout.split() == ["go"]


@pytest.mark.parametrize("lie", ["granted", "unsupported"] if LONG else ["granted"])
def test_two_watchers_under_a_lock_that_lies_restart_a_host_once(
    fleet: Run, fleets: Fleets, lie: str
) -> None:
    run = fleets.unwatched("fleet")
    shim = Path(run.cluster.folder) / f"lie-{lie}.so"
    source = shim.with_suffix(".c")
    source.write_text(_LIE)
    grant = ["-DGRANT"] if lie == "granted" else []
    subprocess.run(["gcc", "-shared", "-fPIC", *grant, "-o", shim, source], check=True)
    before, said = run.wait_ready()["node1"]["raw"]["launch"], len(run.text("watch.log"))
    run.watch(2, LD_PRELOAD=str(shim))
    sending = run.send(60, 0.5)
    sending.wait(4)
    pids = [run.text(f"node1.{name}").strip() for name in ("wrap.pid", "pid")]
    wrapped = len(run.text("node1.wrap.log"))
    run.sh(f"kill -9 {' '.join(pids)}", on=run.cluster.workers["node1"])

    sending.end()
    beat = f"{run.root}/status/node1.json"
    run.wait(f"! grep -q '\"launch\": {before},' {beat} && grep -q '\"ready\": true' {beat}")
    time.sleep(3 * float(WATCH["FLEET_INTERVAL"]))  # in which the second one could do harm
    log = run.text("node1.wrap.log")[wrapped:]
    print(run.text("watch.log")[said:], log)
    assert len(STARTED.findall(log)) == 1, "once after it was killed"
    numbered = re.findall(r"node1\.launch-(\d+)-", run.sh(f"ls {run.root}/ctl").stdout)
    launch = json.loads(run.sh(f"cat {beat}").stdout)["launch"]
    assert numbered == [str(launch)], "the loser left nothing"
    run.check_clean()
    run.unwatch()
