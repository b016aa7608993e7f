"""The watcher over real workers: what died comes back, what lives is left alone, work returns."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ctl import roots
from fsworker.client import Client
from tests.rigs import hosts as rigs
from tests.rigs.hosts import HostRig
from tests.support.waiting import Spawned, gone, kill_at_once, proc_state, wait_until, with_environ

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

REPO = Path(__file__).parents[2]
FUNCTIONS = "tests.support.functions_for_tests"
STALE = "5"
MARK = "SHARDFLEET_WATCH_TEST"


class Fleet:
    """A run of this test's own, started by the real commands."""

    def __init__(self, tmp_path: Path, spawned: Spawned) -> None:
        self.root = tmp_path / "run"
        self.said_in = tmp_path / "watch.err"
        self.spawned = spawned
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_"))}
        key, _, value = (spawned.entry or "").partition("=")
        self.env = {**clean, "HOME": str(tmp_path), key: value, "PYTHONPATH": str(REPO)}

    def ctl(self, *args: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "ctl", *args],
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.root.parent,
            timeout=180,
            check=False,
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, hosts: str = "n1", *more: str, fn: str = f"{FUNCTIONS}:sleep") -> None:
        self.ctl(
            *("start", "--root", str(self.root), "--launcher", "local", "--hosts", hosts),
            *("--concurrency", "1", "--fn", fn, "--ready-timeout", "60", *more),
        )

    def watch(self, *more: str) -> subprocess.Popen[bytes]:
        before = self.said().count(" watching ")
        with self.said_in.open("ab") as err:
            watcher = self.spawned.start(self.watch_argv(*more), env=self.env, stderr=err)
        wait_until(lambda: self.said().count(" watching ") > before, what="the watcher watches")
        return watcher

    def watch_argv(self, *more: str) -> list[str]:
        argv = [sys.executable, "-m", "ctl", "watch", "--root", str(self.root)]
        times = ["--heartbeat-stale", STALE, "--interval", "1", "--restart-cooldown", "2"]
        return [*argv, *times, "--grace", "2", *more]

    def once(self, *more: str, code: int | None = 0) -> str:
        argv = self.watch_argv("--once", *more)[3:]
        return self.ctl(*argv, code=code).stderr

    def said(self) -> str:
        return self.said_in.read_text() if self.said_in.exists() else ""

    def wait_said(self, pattern: str, deadline: float = 120.0) -> re.Match[str]:
        try:
            return wait_until(lambda: re.search(pattern, self.said()), deadline)
        except AssertionError:
            raise AssertionError(f"{pattern!r} was not said, but:\n{self.said()}") from None

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.root / "ctl" / "events.jsonl").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e.get("event") == kind]

    def pid(self, host: str = "n1", suffix: str = "pid") -> int:
        """The pid in a pid file; it is replaced while a host starts again."""
        path = self.root / "ctl" / f"{host}.{suffix}"
        return int(wait_until(lambda: path.exists() and path.read_text()))

    def beat(self, host: str = "n1") -> dict[str, Any]:
        beat: dict[str, Any] = json.loads((self.root / "status" / f"{host}.json").read_text())
        return beat

    def status(self, host: str) -> dict[str, Any]:
        argv = ["status", "--root", str(self.root), "--heartbeat-stale", STALE, "--json"]
        told = json.loads(self.ctl(*argv, code=None).stdout)
        found: dict[str, Any] = next(h for h in told["hosts"] if h["host"] == host)
        return found

    def launch(self, host: str = "n1") -> int:
        meta = roots.open_run(str(self.root)).need_meta()
        return meta.launches[host]

    def wait_ready(self, launch: int, host: str = "n1") -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            beat = self.beat(host)
            return beat if beat["ready"] and beat["launch"] == launch else None

        return wait_until(look, what=f"{host} is ready in launch {launch}:\n{self.said()}")

    def kill(self, host: str = "n1", *suffixes: str) -> list[int]:
        pids = [self.pid(host, s) for s in suffixes or ("wrap.pid", "pid")]
        kill_at_once(*pids)
        wait_until(lambda: all(map(gone, pids)))
        return pids

    def wait_claimed(self, host: str = "n1", shard: str = "") -> str:
        """The name of the first batch that the host holds (of that shard)."""

        def look() -> str | None:
            claims = self.root / "claims"
            for owner in os.listdir(claims):
                if owner.startswith(host + "~"):
                    for name in os.listdir(claims / owner):
                        if name.startswith(shard):
                            return name
            return None

        return wait_until(look, what=f"{host} holds a batch of shard {shard or 'any'}")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Spawned(f"{MARK}={uuid.uuid4().hex}") as spawned:
        yield Fleet(tmp_path, spawned)


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Any]:
    """Submits one call and gives its future; everything is let go at the end."""
    clients: list[Client] = []

    def submit(*args: Any, fn: str = f"{FUNCTIONS}:sleep") -> Future[Any]:
        if not clients:
            clients.append(Client(fleet.root, no_worker_timeout=None))
        return clients[0].submit(fn, *args)

    yield submit
    for one in clients:
        one.shutdown(wait=False, cancel_futures=True)


def end(watcher: subprocess.Popen[bytes]) -> None:
    watcher.terminate()
    assert watcher.wait(120) == 0


def test_a_host_that_was_killed_comes_back_and_its_claims_return(fleet, client):
    fleet.start()
    watcher = fleet.watch()
    answer = client(5)
    held = fleet.wait_claimed()
    dead = fleet.kill()

    beat = fleet.wait_ready(2)
    assert beat["pid"] not in dead
    assert answer.result(120) == 5
    fleet.wait_said(r"UNHEALTHY n1 reason=heartbeat_stale age=\d+\.\d")
    fleet.wait_said(r"restart n1 rc=0")
    revoked = fleet.events("revoke")[0]
    assert (revoked["batches"], revoked["died"]) == (1, True), held
    assert len(fleet.events("restart")) == 1
    end(watcher)


def test_while_a_host_is_down_another_serves_its_shard_until_it_is_back(fleet, tmp_path):
    def send(stream: str) -> None:
        argv = ["submit", "--root", str(fleet.root), "--tasks", str(tasks), "--batch-size", "1"]
        fleet.ctl(*argv, "--stream", stream)

    def done(host: str) -> int:
        return int(fleet.beat(host)["done"])

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("1.0\n" * 6)
    fleet.start("n1,n2")
    fleet.kill("n1")
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(fleet.wait_claimed, "n2", "0~")  # from who is down
        send("down")
        taken.result()
    wait_until(lambda: done("n2") == 6, what="the other executes them all")

    watcher = fleet.watch()
    fleet.wait_ready(2)
    send("back")
    wait_until(lambda: done("n1") + done("n2") == 12, what="all are executed")
    assert done("n1") >= 1 and fleet.beat("n1")["shard"] == 0
    end(watcher)


def test_a_worker_that_lost_its_wrapper_gets_a_new_one(fleet, client):
    fleet.start()
    watcher = fleet.watch()
    worker = fleet.pid()
    fleet.kill("n1", "wrap.pid")

    fleet.wait_ready(2)
    wait_until(lambda: gone(worker), what="the old worker ended with its wrapper")
    assert client(0).result(120) == 0
    end(watcher)


def test_a_worker_that_its_wrapper_restarts_is_left_to_it(fleet, client):
    fleet.start()
    watcher = fleet.watch()
    wrapper, first = fleet.pid("n1", "wrap.pid"), fleet.beat()["incarnation"]
    answer = client(6)
    fleet.wait_claimed()
    fleet.kill("n1", "pid")

    wait_until(lambda: fleet.beat()["incarnation"] != first and fleet.beat()["ready"])
    assert answer.result(120) == 6
    assert (fleet.pid("n1", "wrap.pid"), fleet.launch()) == (wrapper, 1)
    end(watcher)
    assert fleet.events("restart") == []


def test_a_slow_import_long_after_the_launch_is_a_start_and_no_hang(fleet, tmp_path):
    module, door = tmp_path / "code" / "slow.py", tmp_path / "shut"
    module.parent.mkdir()
    wait = f"while os.path.exists({str(door)!r}): time.sleep(0.05)"
    module.write_text(f"import os, time\n{wait}\ndef f(x):\n    return x\n")
    fleet.start("n1", "--repo", str(module.parent), "--ready-timeout", "20", fn="slow:f")
    watcher, launched = fleet.watch(), time.monotonic()
    first, wrapper = fleet.beat()["incarnation"], fleet.pid("n1", "wrap.pid")
    wait_until(lambda: time.monotonic() > launched + 21)  # the launch's own time is over
    door.touch()
    fleet.kill("n1", "pid")

    wait_until(lambda: fleet.beat()["incarnation"] != first and fleet.beat()["seq"] > 1)
    assert fleet.status("n1")["state"] == "starting"
    door.unlink()
    wait_until(lambda: fleet.beat()["ready"] and fleet.beat()["incarnation"] != first)
    end(watcher)
    assert (fleet.pid("n1", "wrap.pid"), fleet.launch()) == (wrapper, 1)
    assert "not_ready" not in fleet.said()
    assert "stop n1" not in fleet.said()


def test_a_frozen_worker_is_ended_and_only_then_its_claims_return(fleet, client, tmp_path):
    fleet.start(fn=f"{FUNCTIONS}:append")
    answer = client(str(tmp_path / "ran"), "once", 3, fn=f"{FUNCTIONS}:append")
    fleet.wait_claimed()
    frozen = fleet.pid()
    os.kill(frozen, signal.SIGSTOP)
    watcher = fleet.watch()

    fleet.wait_said(r"UNHEALTHY n1 .*state=hung: worker pid \d+ is there")
    fleet.wait_said(r"revoked n1 .*died=1")
    assert gone(frozen), "no claim is taken from a worker that may still wake up"
    fleet.wait_ready(int(fleet.events("restart")[0]["launch"]) if fleet.events("restart") else 3)
    answer.result(120)
    text = fleet.said()
    assert text.index("stop n1 rc=0") < text.index("revoked n1") < text.index("restart n1 rc=0")
    end(watcher)


def test_a_function_that_no_longer_loads_is_shown_as_crash_looping_and_restarted_by_nobody(
    fleet, tmp_path
):
    module = tmp_path / "code" / "flaky.py"
    module.parent.mkdir()
    module.write_text("def f(x):\n    return x\n")
    fleet.start("n1", "--repo", str(module.parent), fn="flaky:f")
    watcher = fleet.watch()
    module.write_text("import os\nos._exit(7)\n")
    fleet.kill("n1", "pid")

    fleet.wait_said(r"UNHEALTHY n1 .*state=crash-looping: died 3 times", 90)
    assert fleet.launch() == 1, "its wrapper tries again, and one is enough"
    module.write_text("def f(x):\n    return x + 1\n")
    fleet.wait_said(r"HEALTHY n1 state=ready", 120)
    end(watcher)
    assert len(re.findall("UNHEALTHY n1", fleet.said())) < 12, "a line for a change, not a sweep"


def test_a_stop_intent_is_respected(fleet):
    fleet.start("n[1-2]")
    watcher = fleet.watch()
    (fleet.root / "ctl" / "n1.stop").touch()
    wait_until(lambda: fleet.beat()["stopped"] or fleet.beat()["draining"])
    fleet.kill("n2")

    fleet.wait_ready(2, "n2")
    assert fleet.launch("n1") == 1
    assert "restart n1" not in fleet.said()
    end(watcher)


def test_a_pid_file_that_names_an_innocent_harms_nobody(fleet):
    fleet.start()
    innocent = fleet.spawned.start(["sleep", "600"])
    fleet.kill()
    for name, text in (("n1.pid", f"{innocent.pid}\n"), ("n1.wrap.pid", "-1\n")):
        (fleet.root / "ctl" / name).write_text(text)
    watcher = fleet.watch()

    fleet.wait_ready(2)
    assert proc_state(innocent.pid) == "S"
    end(watcher)


def test_a_second_watcher_is_refused_and_a_new_one_adopts_what_runs(fleet):
    fleet.start()
    first = fleet.watch()
    assert "another watcher" in fleet.once(code=10)
    end(first)
    assert not (fleet.root / "ctl" / "watch.pid").exists()
    worker = fleet.pid()

    second = fleet.watch()
    assert int((fleet.root / "ctl" / "watch.pid").read_text()) == second.pid
    time.sleep(7)  # longer than the staleness: nothing may come of it
    (fleet.root / "ctl" / "watch.stop").touch()
    assert second.wait(120) == 0
    assert (fleet.pid(), fleet.launch()) == (worker, 1)
    assert "UNHEALTHY" not in fleet.said()


_LIE = r"""
#include <sys/file.h>
#include <unistd.h>
int flock(int fd, int how) {
  if (how & LOCK_EX) sleep(2);
  return 0;
}
"""


def test_of_two_watchers_under_a_lock_that_lies_the_loser_leaves_nothing(fleet, tmp_path):
    # Whoever locks is kept for a while, and then everybody is let in: so both have decided to
    # restart the host before either numbers the launch.
    (tmp_path / "lie.c").write_text(_LIE)
    shim = tmp_path / "lie.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, tmp_path / "lie.c"], check=True)
    fleet.start()
    fleet.env["LD_PRELOAD"] = str(shim)
    watchers = [fleet.watch(), fleet.watch()]
    del fleet.env["LD_PRELOAD"]
    fleet.kill()

    fleet.wait_ready(2)
    fleet.wait_said(r"was launched by somebody else meanwhile")
    time.sleep(3)  # in which the loser could do harm
    assert (fleet.status("n1")["state"], fleet.launch(), fleet.beat()["launch"]) == ("ready", 2, 2)
    assert fleet.said().count("restart n1 rc=0") == 1
    for watcher in watchers:
        end(watcher)


def test_a_watcher_that_was_frozen_accuses_nobody(fleet):
    fleet.start()
    watcher = fleet.watch()
    time.sleep(2)
    os.kill(watcher.pid, signal.SIGSTOP)
    time.sleep(8)  # longer than the staleness
    os.kill(watcher.pid, signal.SIGCONT)
    time.sleep(3)
    end(watcher)

    assert "state=stale" not in fleet.said() and fleet.launch() == 1


def root_child(watcher: subprocess.Popen[bytes]) -> int:
    """The process that touches the root for this watcher."""
    text = Path(f"/proc/{watcher.pid}/task/{watcher.pid}/children").read_text()
    (pid,) = [
        p for p in map(int, text.split()) if b"rootchild" in Path(f"/proc/{p}/cmdline").read_bytes()
    ]
    return pid


def test_while_the_root_hangs_nobody_is_touched_and_the_watcher_still_ends(fleet):
    fleet.start()
    watcher = fleet.watch()
    child = root_child(watcher)
    os.kill(child, signal.SIGSTOP)
    fleet.kill()

    fleet.wait_said("storage suspect: .*acting on nobody")
    time.sleep(7)
    assert fleet.launch() == 1
    os.kill(child, signal.SIGCONT)
    fleet.wait_said("the storage answers again: all .*; it was suspected: .*does not answer")
    fleet.wait_ready(2)
    os.kill(root_child(watcher), signal.SIGSTOP)
    begun = time.monotonic()
    end(watcher)
    assert time.monotonic() - begun < 30
    wait_until(lambda: gone(child), what="the process at the root ended too")


def test_one_look_at_a_time_serves_cron_and_remembers_its_back_off(fleet):
    fleet.start()
    assert "restart" not in fleet.once()
    fleet.kill()
    young = fleet.once("--heartbeat-stale", "60", code=None)
    assert "restart" not in young, "too young to be stale"
    status = fleet.root / "status" / "n1.json"
    wait_until(lambda: time.time() - status.stat().st_mtime > 6)

    assert re.search(r"restart n1 rc=0", fleet.once("--restart-cooldown", "1000"))
    fleet.wait_ready(2)
    fleet.kill()
    wait_until(lambda: time.time() - status.stat().st_mtime > 6)
    again = fleet.once("--restart-cooldown", "1000", code=1)
    assert "state=dead" in again and "restart" not in again
    assert re.search(r"restart n1 rc=0", fleet.once("--restart-cooldown", "1"))
    fleet.wait_ready(3)


def test_status_files_that_lie_restart_nobody(fleet):
    fleet.start("n[1-2]")
    # Longer than the lies take together: sweeps may see nothing else.
    watcher = fleet.watch("--heartbeat-stale", "30")
    status = fleet.root / "status"
    data = Path(__file__).parent.parent / "data" / "status"
    for name in sorted(os.listdir(data)):
        for host in ("n1", "n2"):
            (status / f"{host}.json").write_bytes((data / name).read_bytes())
        time.sleep(0.7)
    time.sleep(2)

    assert watcher.poll() is None
    end(watcher)
    assert "restart" not in fleet.said()
    assert (fleet.launch("n1"), fleet.launch("n2")) == (1, 1)


def test_a_watcher_that_ends_leaves_no_process(fleet):
    fleet.start()
    watcher = fleet.watch()
    child = root_child(watcher)
    watcher.kill()
    watcher.wait()

    wait_until(lambda: gone(child), what="the child ends when its watcher is killed")
    assert fleet.ctl("stop", "--root", str(fleet.root), "--grace", "100")
    wait_until(lambda: not with_environ(fleet.spawned.entry))


def test_a_staleness_below_what_beats_can_keep_is_refused(fleet):
    fleet.start()
    said = fleet.ctl("watch", "--root", str(fleet.root), "--heartbeat-stale", "3", code=2).stderr

    assert "--heartbeat-stale" in said and "Traceback" not in said


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HostRig]:
    rigs.require()
    with HostRig(tmp_path) as rig:
        yield rig


DOOR = """#!/bin/sh
if [ -e "{flag}" ]; then echo "access denied: you have no active jobs on this node"; exit 254; fi
exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""


def start_over_ssh(fleet: Fleet, rig: HostRig) -> None:
    fleet.env["FLEET_HOSTS"] = " ".join(rig.hosts)
    fleet.ctl(
        *("start", "--root", str(fleet.root), "--launcher", "ssh"),
        *("--ssh-config", str(rig.config), "--concurrency", "1", "--shard-count", "1"),
        *("--workers-json", json.dumps([{"host": h, "shard": 0} for h in rig.hosts])),
        *("--fn", f"{FUNCTIONS}:sleep", "--ready-timeout", "60"),
    )


def worker_of(rig: HostRig, fleet: Fleet, host: str) -> int:
    """The worker's pid in our own pid space."""
    inner = str(fleet.beat(host)["pid"])
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/status").read_text()
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        pids = re.search(r"^NSpid:\s+(.*)$", text, re.MULTILINE)
        words = line.split(b"\0")
        mine = str(fleet.root).encode() in words and b"run" in words and host.encode() in words
        if mine and pids and pids[1].split()[-1] == inner:
            return int(name)
    raise AssertionError(f"no worker of {host}")


def test_a_host_out_of_reach_loses_its_claims_and_comes_back_by_itself(fleet, rig, client):
    rig.add("n1")
    start_over_ssh(fleet, rig)
    answer = client(4)
    fleet.wait_claimed()
    worker = worker_of(rig, fleet, "n1")
    os.kill(worker, signal.SIGSTOP)
    rig.hosts["n1"].freeze()
    rig.add("n2")
    watcher = fleet.watch("--fence-after", "4")

    fleet.wait_said(r"UNHEALTHY n1 .*state=unreachable: (banner|timeout|connect)", 90)
    fleet.wait_said(r"revoked n1 .*batches=1 died=0", 60)
    assert proc_state(worker) == "T", "nobody was ended"
    rig.hosts["n1"].thaw()
    os.kill(worker, signal.SIGCONT)

    assert answer.result(120) == 4
    fleet.wait_said(r"HEALTHY n1 state=ready", 60)
    assert fleet.launch("n1") == 1
    end(watcher)


def test_a_host_that_says_no_is_denied_in_its_own_words_and_resumes_by_itself(
    fleet, rig, tmp_path, client
):
    flag, door = tmp_path / "flag", tmp_path / "door.sh"
    door.write_text(DOOR.format(flag=flag))
    door.chmod(door.stat().st_mode | stat.S_IXUSR)
    rig.add("n1", sshd=[f"ForceCommand={door}"])
    start_over_ssh(fleet, rig)
    answer = client(5)
    fleet.wait_claimed()
    os.kill(worker_of(rig, fleet, "n1"), signal.SIGSTOP)
    flag.touch()
    watcher = fleet.watch("--fence-after", "3")

    fleet.wait_said(r"state=denied: .*you have no active jobs on this node", 60)
    fleet.wait_said(r"revoked n1 .*batches=1 died=0", 60)
    wait_until(lambda: "denied" in fleet.status("n1")["state"], what="status says so too")
    assert "you have no active jobs" in fleet.status("n1")["words"]
    flag.unlink()
    fleet.wait_ready(3)
    assert answer.result(120) == 5
    end(watcher)
