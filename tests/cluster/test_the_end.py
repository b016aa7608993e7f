"""How a run ends on machines that share nothing but a mount: it is told, and leaves nothing."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.conftest import LONG
from tests.cluster.fleets import Fleets
from tests.cluster.ground import Run
from tests.rigs.vm import Machine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

NAIVE = """
import os, sys, time
os.listdir(os.path.dirname(os.path.dirname(sys.argv[1])))
assert not os.path.exists(sys.argv[1])
print("looking", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
"""The folder above is read first: were its attributes to run out amid the wait, and were it found
changed, the kernel would ask for all of it anew and see the file by chance in a second or two."""
STOPPING = 8.0
"""Seconds in which a stop intent is obeyed: a look every 2 s, and a Python that ends on an
emulated processor of which a fourth is there."""


@pytest.fixture
def run(fleet: Run, fleets: Fleets) -> Run:
    """The run, which nobody watches."""
    return fleets.unwatched("fleet")


def test_a_stop_intent_is_seen_long_before_a_poll_for_existence_sees_a_file(
    run: Run, record_property: Any
) -> None:
    naive, watched = (run.cluster.workers[name] for name in ("node2", "node1"))
    run.sh(f"mkdir {run.base}/flags")
    pid = run.beat("node1")["pid"]
    alive = see(watched, f"echo looking; while [ -d /proc/{pid} ]; do sleep 0.1; done")
    # Last: what it once found absent it believes for up to half a minute from now.
    poll = see(naive, run.python(["-c", NAIVE, f"{run.base}/flags/stop"]))

    # Both files at once, as one command would make them.
    intent = f"{run.root}/ctl/node1.stop"
    begun = time.monotonic()
    run.sh(f"touch {run.base}/flags/stop; : >{intent}.new; mv {intent}.new {intent}")
    with ThreadPoolExecutor() as pool:
        ended = {
            name: pool.submit(_wait, child, begun)
            for name, child in {"intent": alive, "exists": poll}.items()
        }
    took = {name: future.result() for name, future in ended.items()}

    print(
        f"a stop intent: the worker's process is gone after {took['intent']:.1f} s; "
        f"a poll with os.path.exists() sees such a file after {took['exists']:.1f} s"
    )
    record_property("seconds", took)
    assert took["intent"] < STOPPING
    assert took["intent"] * 2 < took["exists"], "the contrast that makes listing necessary"
    assert LONG or took["exists"] < 120


def test_a_run_ends_without_trace_once_nobody_holds_its_files_open(run: Run) -> None:
    run.stop()

    # A file that a process of this client still reads: its removal leaves `.nfs…` in its folder.
    hold = f"exec 3<{run.root}/ctl/node1.log; echo held; sleep 600"
    with see(run.head, hold) as holder:
        held = run.ctl("cleanup", "--root", run.root, code=None)
        assert held.returncode != 0
        assert ".nfs" in held.stderr and "Traceback" not in held.stderr, held.stderr
        run.sh("kill $(pidof sleep)")
        holder.wait(60)
    run.ctl("cleanup", "--root", run.root)
    assert "run" not in run.sh(f"ls -A {run.base}").stdout.split()


def see(machine: Machine, command: str) -> subprocess.Popen[str]:
    """Begin a command in a machine; returns once it has said a first line."""
    child = subprocess.Popen(machine.ssh_argv(command), stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline()
    return child


def _wait(child: subprocess.Popen[str], begun: float) -> float:
    with child:
        assert child.wait(300) == 0
        return time.monotonic() - begun
