"""Scenes from the field on real sshd: starts that must last, pids that lie, stops that aim."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ctl.launchers import open_launcher
from fsworker import procfs
from fsworker.protocol import layout
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import Manifest, WorkerSpec
from tests.rigs import hosts as rigs
from tests.rigs.hosts import Host, HostRig
from tests.support.ctlrun import ECHO
from tests.support.sshfleet import SshFleet, inner_pid, others
from tests.support.waiting import gone, proc_state, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

STARTS = 30


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HostRig]:
    rigs.require()
    with HostRig(tmp_path) as made:
        yield made


@pytest.fixture
def fleet(tmp_path: Path, rig: HostRig) -> Iterator[SshFleet]:
    with SshFleet(tmp_path, rig) as made:
        yield made


def test_thirty_starts_return_in_time_and_outlive_their_connection(
    fleet: SshFleet, tmp_path: Path
) -> None:
    (host,) = fleet.add_hosts("node")
    names = [f"n{i}" for i in range(STARTS)]
    for name in names:
        fleet.rig.reach(name, host)
    lay_root(fleet.root, names)
    python = tmp_path / "worker"
    python.write_text("#!/bin/sh\nexec sleep 900\n")
    python.chmod(0o755)
    took = []
    with closing(open_launcher("ssh", fleet.rig.options())) as launcher:
        for name in names:
            begun = time.monotonic()
            started = launcher.start(
                name, LaunchRequest(str(fleet.root), 1, 0, 1, python=str(python))
            )
            took.append(time.monotonic() - begun)
            assert int((fleet.root / "ctl" / f"{name}.pid").read_text()) == started.worker_pid
        ours = fleet.members()
        assert len(ours) == 2 * STARTS
        sessions = [pid for pid in others(host) if pid not in ours]
        assert len(sessions) >= STARTS, "every start had a connection of its own"
        theirs = {os.getsid(pid) for pid in [*sessions, host.init_pid()]}
        fleet.kill(*sessions)
    print(f"starts took {min(took):.2f} to {max(took):.2f} s")
    assert max(took) < 60

    assert sorted(others(host)) == sorted(ours), "they live on, and nothing else does"
    assert not theirs & {os.getsid(pid) for pid in ours}
    for pid in ours:
        files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)]
        assert files[0] == "/dev/null"
        assert all(name.startswith(f"{fleet.root}/ctl/") for name in files[1:])
        assert not any("pipe:" in name or "socket:" in name for name in files)


def lay_root(root: Path, names: list[str]) -> None:
    """A run root without a controller, for processes that only live."""
    for folder in layout.FOLDERS:
        (root / folder).mkdir(parents=True)
    root.chmod(0o700)
    specs = tuple(WorkerSpec(name, 0, 1) for name in names)
    manifest = Manifest("run1", ECHO, 1, specs, owner=os.getuid())
    (root / layout.MANIFEST).write_bytes(manifest.to_json())


def test_a_host_that_ends_what_a_session_leaves_is_warned_of_before_success(
    fleet: SshFleet, tmp_path: Path
) -> None:
    fleet.add_hosts("node1", login=logind_session(tmp_path))
    done = fleet("start", "--root", str(fleet.root), "--fn", ECHO, "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "KillUserProcesses" in line]
    assert warning.startswith("warning: host node1: ")
    assert "loginctl enable-linger root" in warning
    fleet.down()


def logind_session(folder: Path) -> str:
    """A login file that makes the session look like one of logind's, of which there is none here.

    The shell's successor by `exec` keeps its pid, and so sees the cgroup that is laid over it.
    """
    (folder / "kill.conf").write_text("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n")
    (folder / "cgroup").write_text("0::/user.slice/user-0.slice/session-7.scope\n")
    return (
        "mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && "
        "mkdir /run/systemd/logind.conf.d && "
        f"cp '{folder}/kill.conf' /run/systemd/logind.conf.d/ && "
        f"mount --bind '{folder}/cgroup' /proc/$$/cgroup\n"
    )


PID_FILES = ["0", "-1", "1", "", "123abc", "innocent", "zombie", "elsewhere"]
ZOMBIE = "import os,time; os.fork() or os._exit(0); time.sleep(900)"


def test_pid_files_that_lie_get_nobody_signalled_and_the_restart_goes_ahead(
    fleet: SshFleet,
) -> None:
    machines = fleet.add_hosts(*(f"node{i}" for i in range(len(PID_FILES))))
    fleet.up("--concurrency", "1", fn=ECHO)
    fleet.kill(*fleet.members())
    # The pids of this host are far from those of the others from here on.
    machines[0].inside("sh", "-c", "echo 20000 >/proc/sys/kernel/ns_last_pid")
    innocents = [linger(machine, "exec sleep 900") for machine in machines]
    for machine, kind, innocent in zip(machines, PID_FILES, tuple(innocents), strict=True):
        named = {"innocent": innocent, "elsewhere": innocents[0]}.get(kind)
        if kind == "zombie":
            parent = linger(machine, f"exec '{sys.executable}' -c '{ZOMBIE}'")
            innocents.append(parent)
            named = wait_until(lambda p=parent: zombie_below(p))
        lie(fleet, machine, kind, named)
    assert inner_pid(innocents[0]) > 20000

    def unharmed() -> bool:
        return [proc_state(pid) for pid in innocents] == ["S"] * len(innocents)

    stop = fleet("stop", "--root", str(fleet.root), "--grace", "5", "--kill-after", "1")
    assert stop.returncode == 0, (stop.stdout, stop.stderr)
    assert unharmed()
    for machine, kind in zip(machines, PID_FILES, strict=True):
        lie(fleet, machine, kind, None)
    fleet.up("--concurrency", "1", fn=ECHO)
    assert fleet.wait_all_ready()["totals"]["ok"] == len(machines)
    assert all(
        (fleet.root / "ctl" / f"{m.name}.pid").read_text().strip().isdigit() for m in machines
    )
    assert unharmed()
    fleet.down()
    assert unharmed()


def lie(fleet: SshFleet, machine: Host, kind: str, named: int | None) -> None:
    """Write pid files that are not the worker's, and an identity that says the same.

    So an old or a copied root would have them. A zombie, and a process on another host, are
    recorded as exactly what they are; for the innocent only the pid is right.
    """
    text = kind if named is None else str(inner_pid(named))
    for suffix in ("pid", "wrap.pid"):
        (fleet.root / "ctl" / f"{machine.name}.{suffix}").write_text(text)
    record = fleet.root / "ctl" / f"{machine.name}.identity.json"
    found = json.loads(record.read_bytes())
    for role in (found["wrapper"], found["worker"]):
        if re.fullmatch("-?[0-9]+", text):
            role["pid"] = int(text)
        if named is not None and kind in ("zombie", "elsewhere"):
            stat = procfs.read_stat(named)
            assert stat
            role.update(start=stat.start, pid_ns=os.readlink(f"/proc/{named}/ns/pid"))
    record.write_text(json.dumps(found))


def zombie_below(pid: int) -> int | None:
    return next((s.pid for s in procfs.descendants([pid]) if s.state == "Z"), None)


def linger(machine: Host, script: str) -> int:
    """A process that stays on the host when its session is over; its pid as numbered here."""
    before = set(others(machine))
    machine.inside("sh", "-c", f"({script}) </dev/null >/dev/null 2>&1 &")
    return min(wait_until(lambda: [p for p in others(machine) if p not in before]), key=inner_pid)


def test_a_stop_ends_the_processes_of_its_own_run_only(fleet: SshFleet) -> None:
    (machine,) = fleet.add_hosts("node1")
    one, ten = fleet.runs / "run1", fleet.runs / "run10"
    for root in (one, ten):
        done = fleet("start", "--root", str(root), "--fn", ECHO, "--concurrency", "1")
        assert done.returncode == 0, done.stderr
    ends, stays = fleet.members(root=one), fleet.members(root=ten)
    assert len(ends) == len(stays) == 4
    words = f"-m fsworker run --root '{one}' --host node1"
    innocents = [
        linger(machine, f"exec tail -f '{one}/ctl/node1.log'"),
        linger(machine, f"exec '{sys.executable}' -c 'import time; time.sleep(900)' {words}"),
    ]
    time.sleep(0.2)
    assert [proc_state(pid) for pid in innocents] == ["S", "S"]

    stop = fleet("stop", "--root", str(one), "--kill-after", "20")
    assert (stop.returncode, stop.stdout.splitlines()) == (0, ["stopped host=node1"]), stop.stderr
    assert all(map(gone, ends))
    assert not any(map(gone, [*stays, *innocents]))
    assert fleet.status(ten)["state"] == "running"
    assert fleet("stop", "--root", str(ten)).returncode == 0
    assert not any(map(gone, innocents))


def test_a_stop_with_nothing_running_says_so_and_does_not_poison_the_next_start(
    fleet: SshFleet,
) -> None:
    fleet.add_hosts("node1")
    fleet.up("--concurrency", "1", fn=ECHO)
    fleet.down()
    for _ in range(2):
        stop = fleet("stop", "--root", str(fleet.root))
        assert (stop.returncode, stop.stdout) == (0, f"not running: {fleet.root}\n")
    fleet.up("--concurrency", "1", fn=ECHO)
    before = fleet.members()
    seq = fleet.beat("node1")["seq"]
    wait_until(lambda: fleet.beat("node1")["seq"] > seq + 2, what="it beats on")
    assert fleet.members() == before
    fleet.down()


def test_a_stop_while_the_wrapper_sleeps_between_two_lives(fleet: SshFleet) -> None:
    fleet.add_hosts("node1")
    fleet.up("--concurrency", "1", fn=ECHO)
    for pause in (2, 4, 8, 16):  # the last pause is long enough for a stop on a slow machine
        before = fleet.beat("node1")
        fleet.kill(fleet.pid("node1"))
        wait_until(lambda p=pause: f"next life in {p} s" in fleet.text("node1.wrap.log"))
        if pause < 16:
            fleet.wait_new_process("node1", before["pid"])
    stop = fleet("stop", "--root", str(fleet.root))
    assert (stop.returncode, stop.stdout.splitlines()) == (0, ["stopped host=node1"]), stop.stderr
    assert fleet.members() == []
    log = fleet.text("node1.wrap.log").splitlines()
    assert sum(line.endswith("started") for line in log) == 4, "there was no fifth life"
    assert "stopped" in log[-1]
    assert not list((fleet.root / "ctl").glob("*.pid"))
