"""What launchers run on a host, on real processes: nobody else's is ever touched."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker import identity, procfs
from fsworker.life import hostlock
from fsworker.protocol.records.run import HostIdentity, Identity
from tests.support.roots import make_root
from tests.support.waiting import (
    Spawned,
    gone,
    kill_at_once,
    proc_state,
    stuck_argv,
    wait_until,
    with_environ,
)

pytestmark = pytest.mark.fleet

REPO = Path(__file__).parents[2]
WORKER = REPO / "tests" / "support" / "scripted_worker.py"
HERE = identity.Place.here("n1")


class Bench:
    """One run on this host as a launcher sees it: requests go in, replies come out."""

    def __init__(self, tmp_path: Path, spawned: Spawned, run_id: str = "run1") -> None:
        self.dir = tmp_path / f"it's {run_id}"
        self.root = make_root(self.dir / "root", run_id)
        self.lives_file = self.dir / "lives"
        self.spawned = spawned
        self.run_id = run_id

    def interpreter(self, action: str) -> str:
        """A "python" that is told to be the worker, and is our scripted one."""
        path = self.dir / "python"
        words = shlex.join([sys.executable, str(WORKER), str(self.lives_file), action])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def ask(self, verb: str, *, env: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """Ask as sshd does: through a shell whose output is read until it is closed."""
        marker = uuid.uuid4().hex
        request = {"marker": marker, "verb": verb, "root": str(self.root), "host": "n1", **fields}
        script = (
            f"exec {shlex.join([sys.executable, '-m', 'fsworker.hostside', json.dumps(request)])}"
        )
        child = self.spawned.start(
            ["/bin/sh", "-s"],
            env=env,
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        out, _ = child.communicate(script.encode() + b" </dev/null\n", timeout=240)
        text = out.decode()
        before, begun, rest = text.partition(f"\n<BEGIN {marker}>")
        body, ended, after = rest.partition(f"<END {marker}>\n")
        assert begun, text
        assert ended, text
        assert before == after == "", "nothing but the reply"
        reply: dict[str, Any] = json.loads(body)
        assert child.returncode == (0 if reply["ok"] else 1)
        return reply

    def start(self, action: str = "serve", **fields: Any) -> dict[str, Any]:
        """Start a worker; fails unless the reply says that it runs."""
        asked = {"launch": 1, "shard": 0, "concurrency": 2, "wait": 20, **fields}
        reply = self.ask("start", python=self.interpreter(action), **asked)
        if reply["ok"]:
            for key in ("wrap_pid", "worker_pid"):
                if reply[key]:
                    self.spawned.track(reply[key])
        return reply

    def started(self, action: str = "serve", **fields: Any) -> tuple[int, int]:
        reply = self.start(action, **fields)
        assert reply["ok"], reply
        self.wait_lives(1)
        return reply["wrap_pid"], reply["worker_pid"]

    def stop(self, **fields: Any) -> dict[str, Any]:
        return self.ask("stop", **{"launch": 1, "grace": 100, "kill_after": None, **fields})

    def lives(self) -> list[dict[str, Any]]:
        if not self.lives_file.exists():
            return []
        lines = self.lives_file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_lives(self, count: int) -> list[dict[str, Any]]:
        return wait_until(lambda: (x := self.lives())[count - 1 :] and x, what=f"life {count}")

    def ctl(self, suffix: str) -> Path:
        return self.root / "ctl" / f"n1.{suffix}"

    def recorded(self) -> HostIdentity:
        who: HostIdentity = HostIdentity.from_json(self.ctl("identity.json").read_bytes(), "i")
        return who

    def record(self, who: HostIdentity) -> None:
        self.ctl("identity.json").write_bytes(who.to_json())

    def innocent(self, *argv: str) -> subprocess.Popen[bytes]:
        """A process that any of TERM, HUP, INT, USR1 would end."""
        words = argv or ("sleep", "600")
        return self.spawned.start(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned(f"TEST_TOKEN={uuid.uuid4().hex}") as s:
        yield s


@pytest.fixture
def bench(tmp_path: Path, spawned: Spawned) -> Bench:
    return Bench(tmp_path, spawned)


def kill_and_wait(*pids: int) -> None:
    kill_at_once(*pids)
    wait_until(lambda: all(gone(pid) for pid in pids), what=f"the end of {pids}")


def test_a_start_holds_no_pipe_and_lives_on_when_the_session_is_killed(bench: Bench) -> None:
    began = time.monotonic()
    reply = bench.start("serve", shard=3, concurrency=7, launch=5, env={"X_EXTRA": "a b"})
    assert time.monotonic() - began < 100
    assert reply["ok"] and reply["warnings"] == []
    (life,) = bench.wait_lives(1)
    assert life["pid"] == reply["worker_pid"]
    expected = ["-m", "fsworker", "run", "--root", str(bench.root), "--shard", "3", "--host", "n1"]
    assert life["argv"][3 : 3 + len(expected)] == expected
    said = dict(zip(life["argv"][12::2], life["argv"][13::2], strict=True))
    assert (said["--concurrency"], said["--launch"], said["--log-level"]) == ("7", "5", "INFO")
    assert life["env"]["FLEET_RUN"] == hostlock.run_key(str(bench.root), "run1")
    assert (life["env"]["FLEET_SHARD"], life["env"]["FLEET_LAUNCH"]) == ("3", "5")
    assert len(with_environ("X_EXTRA=a b")) == 2, "wrapper and worker"
    assert not life["own_lock"]
    for pid in (reply["wrap_pid"], reply["worker_pid"]):
        ties = {os.readlink(f"/proc/{pid}/fd/{n}") for n in "012"}
        assert ties <= {"/dev/null", str(bench.ctl("log")), str(bench.ctl("wrap.log"))}


def test_every_one_of_many_starts_returns_in_time(bench: Bench) -> None:
    for launch in range(1, 6):
        began = time.monotonic()
        reply = bench.start(launch=launch)
        assert reply["ok"] and time.monotonic() - began < 100
        assert bench.stop(launch=launch) == {
            "ok": True, "was_running": True, "left": [], "warnings": []
        }  # fmt: skip
    assert len(bench.lives()) == 5


def test_without_respawn_the_worker_runs_alone_as_detached(bench: Bench) -> None:
    reply = bench.start("drain:0.2", respawn=False, launch=4)
    assert reply["ok"] and reply["wrap_pid"] is None
    (life,) = bench.wait_lives(1)
    assert life["pid"] == reply["worker_pid"]
    assert life["own_lock"]
    assert life["fds"] == {"0": "/dev/null", "1": str(bench.ctl("log")), "2": str(bench.ctl("log"))}
    assert life["cwd"] == "/"
    assert life["sid"] not in (life["pid"], os.getsid(0))
    assert "FLEET_INCARNATION" not in life["env"]

    again = bench.start("serve", respawn=False, launch=5)
    assert (again["ok"], again["code"], again["launch"]) == (False, "already_running", 4)
    probe = bench.ask("probe")
    assert probe["worker"] == {"pid": life["pid"], "state": "alive"}
    assert probe["wrapper"] == {"pid": None, "state": "dead"}
    assert bench.stop(launch=4)["left"] == []
    assert gone(life["pid"])
    assert bench.ctl("log").read_text() == "drained\n"
    assert not bench.ctl("pid").exists()


def test_a_second_start_names_the_one_that_runs(bench: Bench) -> None:
    wrap, worker = bench.started(launch=3)
    reply = bench.start(launch=4)
    assert (reply["ok"], reply["code"], reply["launch"]) == (False, "already_running", 3)
    assert (reply["wrap_pid"], reply["worker_pid"]) == (wrap, worker)
    assert len(bench.lives()) == 1


@pytest.mark.parametrize("respawn", [True, False])
def test_a_worker_that_cannot_be_run_is_a_failure_with_its_cause(
    bench: Bench, respawn: bool
) -> None:
    reply = bench.ask(
        "start", launch=1, shard=0, wait=20, python="/no/such/python", respawn=respawn
    )
    assert (reply["ok"], reply["code"]) == (False, "failed")
    assert "/no/such/python" in reply["message"] and "No such file" in reply["message"]
    assert hostlock.is_free(str(bench.root), "run1", "n1")


def test_a_start_that_is_not_confirmed_in_time_is_undone(bench: Bench) -> None:
    """The wrapper hangs as on a dead server before it is one; nothing may come up later."""
    hangs = bench.dir / "hangs"
    hangs.mkdir()
    (hangs / "sitecustomize.py").write_text(
        "import sys, time\nif 'fsworker.respawn' in sys.orig_argv: time.sleep(600)\n"
    )
    path = os.pathsep.join([str(hangs), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    began = time.monotonic()
    reply = bench.start(wait=3, env={"PYTHONPATH": path})
    assert time.monotonic() - began < 100
    assert (reply["ok"], reply["code"]) == (False, "failed")
    assert "did not report" in reply["message"]
    run = hostlock.run_key(str(bench.root), "run1")
    assert with_environ(f"FLEET_RUN={run}") == []
    assert not bench.lives()


def test_a_start_from_inside_a_task_does_not_belong_to_that_task(bench: Bench) -> None:
    taken = {"FLEET_INCARNATION": "abcabcabcabc", "FLEET_LIFE_FD": "0", "FLEET_LOCK_FD": "0"}
    other = uuid.uuid4().hex[:12]
    taken["FLEET_INCARNATION"] = other
    asked = {"launch": 1, "shard": 0, "wait": 20, "python": bench.interpreter("serve")}
    assert bench.ask("start", env=taken, **asked)["ok"]
    bench.wait_lives(1)
    assert with_environ(f"FLEET_INCARNATION={other}") == []


BAD = ["0", "-1", "1", "", "123abc", "innocent", "zombie", "elsewhere"]


@pytest.mark.parametrize("content", BAD)
def test_a_bad_pid_file_gets_nobody_signalled_and_a_restart_goes_ahead(
    bench: Bench, content: str
) -> None:
    """Each with an identity that says the same, as an old or a copied root would hold it."""
    innocent = bench.innocent()
    pid = innocent.pid
    if content == "zombie":
        code = "import os,time; p=os.fork(); p or os._exit(0); print(p,flush=True); time.sleep(600)"
        parent = bench.spawned.start([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert parent.stdout
        pid = int(parent.stdout.readline())
        wait_until(lambda: proc_state(pid) == "Z", what="a zombie")
    true = identity.identify(pid, HERE)
    assert true
    lie = {"zombie": true, "elsewhere": dataclasses.replace(true, boot_id="another boot")}
    false = lie.get(content, dataclasses.replace(true, start=true.start - 1))
    if content.lstrip("-").isdigit():
        false = Identity("n1", HERE.boot_id, HERE.pid_ns, int(content), 0)
    bench.record(HostIdentity("n1", 1, false, false))
    text = content if content in BAD[:5] else str(pid)
    bench.ctl("pid").write_text(text)
    bench.ctl("wrap.pid").write_text(text)

    probe = bench.ask("probe")
    expected = {"zombie": "zombie", "elsewhere": "dead", "innocent": "other", "1": "other"}
    assert probe["worker"]["state"] == expected.get(content, probe["worker"]["state"])
    assert probe["worker"]["state"] in ("dead", "other", "zombie")
    stopped = bench.stop(grace=1, kill_after=0.2)
    assert (stopped["was_running"], stopped["left"]) == (False, [])
    _, worker = bench.started(launch=2)
    assert bench.ctl("pid").read_text() == f"{worker}\n"
    assert bench.stop(launch=2)["left"] == []
    assert innocent.poll() is None


def test_an_unreadable_identity_gets_nobody_signalled(bench: Bench) -> None:
    innocent = bench.innocent()
    bench.ctl("pid").write_text(f"{innocent.pid}\n")
    bench.ctl("wrap.pid").write_text(f"{innocent.pid}\n")
    bench.ctl("identity.json").write_bytes(b"\0\0\0")
    stopped = bench.stop(kill_after=0.1)
    assert (stopped["was_running"], stopped["left"]) == (False, [])
    assert "identity.json" in stopped["warnings"][0]
    assert bench.ask("probe")["worker"] == {"pid": None, "state": "dead"}, "the lock is free"
    bench.started(launch=2)
    assert innocent.poll() is None


def test_only_the_run_that_is_stopped_ends(tmp_path: Path, spawned: Spawned) -> None:
    run1, run10 = Bench(tmp_path, spawned, "run1"), Bench(tmp_path, spawned, "run10")
    first, tenth = run1.started(), run10.started()
    tail = run1.innocent("tail", "-f", str(run1.ctl("log")))
    named = run1.innocent(sys.executable, "-c", "import time; time.sleep(600)", "FLEET_RUN=run1")
    assert run1.stop(kill_after=0.5)["left"] == []
    assert all(gone(pid) for pid in first)
    assert not any(gone(pid) for pid in tenth)
    assert tail.poll() is None and named.poll() is None
    assert len(run10.lives()) == 1


def test_the_same_run_id_under_two_roots_is_two_runs(tmp_path: Path, spawned: Spawned) -> None:
    one, two = Bench(tmp_path / "a", spawned), Bench(tmp_path / "b", spawned)
    first, second = one.started(), two.started()
    assert one.stop()["left"] == []
    assert all(gone(pid) for pid in first)
    assert not any(gone(pid) for pid in second)


def test_a_stop_with_nothing_running_says_so_and_a_start_follows(bench: Bench) -> None:
    assert bench.stop(launch=0) == {"ok": True, "was_running": False, "left": [], "warnings": []}
    bench.started(launch=1)


def test_a_stop_never_kills_unless_told_and_names_what_is_left(bench: Bench) -> None:
    wrap, worker = bench.started("deaf")
    for _ in range(2):  # also when it is repeated
        stopped = bench.stop(grace=0.5)
        assert stopped["was_running"]
        assert stopped["left"] == [
            {"pid": wrap, "role": "wrapper", "state": "alive"},
            {"pid": worker, "role": "worker", "state": "alive"},
        ]
    assert bench.stop(grace=0.5, kill_after=0.5)["left"] == []
    assert gone(wrap) and gone(worker)
    assert not bench.ctl("pid").exists() and not bench.ctl("wrap.pid").exists()
    assert len(bench.lives()) == 1, "no respawn on the way"


def test_a_repeated_stop_lets_the_worker_drain(bench: Bench) -> None:
    bench.started("drain:3")
    assert bench.stop(grace=0.3)["left"]
    assert bench.stop(grace=30)["left"] == []
    assert bench.ctl("log").read_text() == "drained\n"


def test_a_stop_does_not_reach_a_newer_launch(bench: Bench) -> None:
    wrap, worker = bench.started(launch=8)
    stopped = bench.stop(launch=7, kill_after=0.1)
    assert (stopped["was_running"], stopped["left"]) == (False, [])
    assert "launch 8" in stopped["warnings"][0]
    assert not gone(wrap) and not gone(worker)
    bench.ctl("identity.json").unlink()
    assert not bench.stop(launch=7, kill_after=0.1)["was_running"]
    assert not gone(wrap) and not gone(worker)


def test_a_stop_without_a_record_finds_them_by_their_environment(bench: Bench) -> None:
    wrap, worker = bench.started("drain:0.5")
    bench.ctl("identity.json").unlink()
    probe = bench.ask("probe")
    assert probe["wrapper"] == {"pid": None, "state": "unknown"}, "the lock is held"
    assert probe["strays"] == sorted([wrap, worker])
    stopped = bench.stop()
    assert (stopped["was_running"], stopped["left"]) == (True, [])
    assert gone(wrap) and gone(worker)
    assert bench.ctl("log").read_text() == "drained\n", "the wrapper was let do it"


def test_a_worker_whose_wrapper_is_stopped_by_a_debugger_is_told_itself(bench: Bench) -> None:
    wrap, worker = bench.started("drain:0")
    os.kill(wrap, signal.SIGSTOP)
    wait_until(lambda: proc_state(wrap) == "T", what="a stopped wrapper")
    stopped = bench.stop(grace=2)
    assert stopped["left"] == [{"pid": wrap, "role": "wrapper", "state": "alive"}]
    assert gone(worker)
    assert bench.ask("probe")["worker"] == {"pid": worker, "state": "zombie"}
    assert bench.stop(grace=1, kill_after=0)["left"] == []


def test_strays_are_found_named_and_ended(bench: Bench) -> None:
    """Wrapper and worker were killed at once, so nobody buried what they had started."""
    wrap, worker = bench.started("deaf")
    run = hostlock.run_key(str(bench.root), "run1")
    env = {"FLEET_RUN": run, "FLEET_HOST": "n1", "FLEET_LAUNCH": "1"}
    code = (
        "import signal,time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    )
    stray = bench.spawned.start([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert stray.stdout and stray.stdout.readline()
    assert bench.ask("probe")["strays"] == [stray.pid]
    kill_and_wait(wrap, worker)
    probe = bench.ask("probe")
    assert probe["strays"] == [stray.pid]
    for role in ("wrapper", "worker"):  # how fast the init of a machine reaps is not ours
        assert probe[role]["state"] in ("dead", "zombie")
    stopped = bench.stop(grace=0.3)
    assert stopped["left"] == [{"pid": stray.pid, "role": "stray", "state": "alive"}]
    assert bench.stop(grace=0.3, kill_after=0.3)["left"] == []
    assert stray.wait(120) == -signal.SIGKILL
    assert not bench.ctl("pid").exists(), "left by the killed, removed by the stop"


def test_a_stuck_worker_is_named_and_not_doubled(bench: Bench) -> None:
    """State D is seen by the probe, told by the stop, and keeps a second worker away."""
    os.mkfifo(bench.dir / "fifo")
    words = shlex.join(stuck_argv(str(bench.dir / "fifo")))
    (bench.dir / "python").write_text(f"#!/bin/sh\nexec {words}\n")
    (bench.dir / "python").chmod(0o755)
    asked: dict[str, Any] = {"launch": 1, "shard": 0, "python": str(bench.dir / "python")}
    reply = bench.ask("start", wait=20, **asked)
    worker = reply["worker_pid"]
    wait_until(lambda: proc_state(worker) == "D", what="state D")
    assert bench.ask("probe")["worker"] == {"pid": worker, "state": "stuck"}
    child = [stat.pid for stat in procfs.descendants([worker])]
    stopped = bench.stop(grace=0.5)
    assert {"pid": worker, "role": "worker", "state": "stuck"} in stopped["left"]
    assert bench.ask("start", wait=20, **asked)["code"] == "already_running"
    kill_and_wait(*child, worker)  # the disk comes back
    wait_until(lambda: gone(reply["wrap_pid"]), what="the stop that was asked for")


def test_a_probe_speaks_of_the_identity_that_is_asked_about(bench: Bench) -> None:
    wrap, worker = bench.started()
    now = bench.recorded()
    assert now.worker
    alive = bench.ask("probe", identity=json.loads(now.to_json()))
    assert alive["boot_id"] == HERE.boot_id
    assert alive["wrapper"] == {"pid": wrap, "state": "alive"}
    assert alive["worker"] == {"pid": worker, "state": "alive"}
    assert alive["strays"] == []
    for change, state in (
        ({"start": now.worker.start - 1}, "other"),
        ({"boot_id": "of last week"}, "dead"),
        ({"host": "n2"}, "unknown"),
        ({"pid_ns": "pid:[1]"}, "unknown"),
    ):
        before = dataclasses.replace(now, worker=dataclasses.replace(now.worker, **change))
        reply = bench.ask("probe", identity=json.loads(before.to_json()))
        assert reply["worker"] == {"pid": worker, "state": state}, change
        assert reply["strays"] == []


def test_when_the_lock_is_free_nobody_lives_in_any_namespace(bench: Bench) -> None:
    bench.started()
    now = bench.recorded()
    assert bench.stop()["left"] == [] and now.worker
    elsewhere = dataclasses.replace(now, worker=dataclasses.replace(now.worker, pid_ns="pid:[1]"))
    reply = bench.ask("probe", identity=json.loads(elsewhere.to_json()))
    assert reply["worker"]["state"] == "dead"


def test_what_holds_the_lock_unseen_is_not_called_stopped(bench: Bench) -> None:
    with hostlock.acquire(str(bench.root), "run1", "n1"):
        stopped = bench.stop(grace=0.1)
    assert stopped["left"] == [{"pid": None, "role": "wrapper", "state": "unknown"}]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"verb": "destroy"}, "unknown verb 'destroy'"),
        ({"verb": "start"}, "field 'launch' is missing"),
        ({"verb": "start", "root": "relative", "launch": 1, "shard": 0}, "absolute"),
        ({"verb": "probe", "root": None}, "no root"),
        ({"verb": "stop", "launch": "x", "grace": "soon"}, "soon"),
        ({"verb": "probe", "identity": {"host": 1}}, "identity in the request"),
    ],
)
def test_a_bad_request_is_answered(bench: Bench, fields: dict[str, Any], says: str) -> None:
    reply = bench.ask(**fields)
    assert not reply["ok"]
    assert says in reply["message"]
    assert "Traceback" not in reply["message"]


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_root_that_is_no_run_is_said(bench: Bench, verb: str) -> None:
    (bench.root / "manifest.json").unlink()
    reply = bench.ask(verb, launch=1, shard=0)
    assert not reply["ok"]
    assert "manifest.json" in reply["message"]


def test_no_request_at_all_is_a_usage_error(spawned: Spawned) -> None:
    for args in ([], ["{"], ["[]"], ["{}"], ["{}", "{}"]):
        argv = [sys.executable, "-m", "fsworker.hostside", *args]
        child = spawned.start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPO)
        out, err = child.communicate(timeout=240)
        assert (child.returncode, out) == (2, b"")
        assert err.startswith(b"usage:")
