"""Who a process is, and that nobody else is ever signalled."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsworker import identity, procfs
from fsworker.identity import Place
from fsworker.protocol.records.run import Identity
from tests.support.waiting import Spawned, gone, proc_state, stuck_argv, wait_until, with_environ

pytestmark = pytest.mark.unit

HERE = Place.here("n1")

SLEEPS = "print('up', flush=True); import time; time.sleep(600)"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
REPO = Path(__file__).parents[2]
NEVER_REAPS = """
import os, time
pid = os.fork()
if pid == 0:
    os._exit(0)
print(pid, flush=True)
time.sleep(600)
"""
MAIN_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print('up', flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned(f"TEST_TOKEN={uuid.uuid4().hex}") as s:
        yield s


def start(spawned: Spawned, code: str, **env: str) -> subprocess.Popen[bytes]:
    child = spawned.start([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline()
    return child


def who(pid: int) -> Identity:
    found = identity.identify(pid, HERE)
    assert found is not None
    return found


def test_stat_of_a_name_with_spaces_and_parentheses() -> None:
    line = b"42 (a) S (b) R 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 0 0 0\n"
    stat = procfs.parse_stat(line)
    assert stat == procfs.Stat(42, "a) S (b", "R", 7, 98765)


@pytest.mark.parametrize("line", [b"", b"42", b"42 (sh", b"42 (sh) S 1", b"x (sh) " + b"1 " * 30])
def test_stat_that_the_kernel_never_writes_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        procfs.parse_stat(line)


def test_a_real_process_that_names_itself_badly_is_identified(spawned: Spawned) -> None:
    code = "open('/proc/self/comm','w').write(') Z 1 ('); " + SLEEPS
    child = start(spawned, code)
    stat = procfs.read_stat(child.pid)
    assert stat is not None
    assert (stat.comm, stat.ppid) == (") Z 1 (", os.getpid())
    assert identity.state_of(who(child.pid), HERE) == "alive"


STAT = procfs.Stat(100, "w", "S", 1, 555)
REC = Identity("n1", "boot-a", "pid:[1]", 100, 555)
PLACE = Place("n1", "boot-a", "pid:[1]")


@pytest.mark.parametrize(
    ("recorded", "place", "stat", "threads", "state"),
    [
        (REC, PLACE, STAT, False, "alive"),
        (REC, PLACE, None, False, "dead"),
        (REC, PLACE, dataclasses.replace(STAT, state="Z"), False, "zombie"),
        (REC, PLACE, dataclasses.replace(STAT, state="Z"), True, "alive"),
        (REC, PLACE, dataclasses.replace(STAT, state="X"), False, "zombie"),
        (REC, PLACE, dataclasses.replace(STAT, state="D"), False, "stuck"),
        (REC, PLACE, dataclasses.replace(STAT, state="T"), False, "alive"),
        (REC, PLACE, dataclasses.replace(STAT, start=556), False, "other"),
        (REC, dataclasses.replace(PLACE, boot_id="boot-b"), STAT, False, "dead"),
        (REC, dataclasses.replace(PLACE, pid_ns="pid:[2]"), STAT, False, "unknown"),
        (REC, dataclasses.replace(PLACE, pid_ns="pid:[2]"), None, False, "unknown"),
        (REC, dataclasses.replace(PLACE, host="n2"), None, False, "unknown"),
        (REC, dataclasses.replace(PLACE, host="n2", boot_id="boot-b"), None, False, "unknown"),
        (dataclasses.replace(REC, boot_id=""), PLACE, None, False, "unknown"),
        (REC, dataclasses.replace(PLACE, boot_id=""), None, False, "unknown"),
        (REC, dataclasses.replace(PLACE, pid_ns=""), None, False, "unknown"),
    ],
)  # fmt: skip
def test_what_a_reading_proves(
    recorded: Identity, place: Place, stat: procfs.Stat | None, threads: bool, state: str
) -> None:
    assert identity.judge(recorded, place, stat, threads) == state


def test_a_zombie_whose_parent_never_reaps_is_dead_and_not_signalled(spawned: Spawned) -> None:
    parent = spawned.start([sys.executable, "-c", NEVER_REAPS], stdout=subprocess.PIPE)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    wait_until(lambda: proc_state(pid) == "Z", what="a zombie")
    zombie = who(pid)
    assert identity.state_of(zombie, HERE) == "zombie"
    assert identity.provably_dead(zombie, HERE)
    assert not identity.send(zombie, signal.SIGTERM, HERE)
    assert identity.end_tree([zombie], HERE, grace=0.1) == []


def test_a_process_that_cannot_end_now_is_called_stuck(spawned: Spawned, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    child = spawned.start(stuck_argv(str(tmp_path / "fifo")), stdout=subprocess.PIPE)
    wait_until(lambda: proc_state(child.pid) == "D", what="state D")
    stuck = who(child.pid)
    assert identity.state_of(stuck, HERE, patience=0.3) == "stuck"
    assert not identity.provably_dead(stuck, HERE)
    below = [s.pid for s in procfs.descendants([child.pid])]
    left = identity.end_tree([stuck], HERE, grace=0.2, kill_patience=None, spare=below)
    assert left == [identity.Left(child.pid, "stuck")]


def test_being_in_state_d_for_a_moment_is_not_being_stuck(spawned: Spawned, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    child = spawned.start(stuck_argv(str(tmp_path / "fifo")), stdout=subprocess.PIPE)
    wait_until(lambda: proc_state(child.pid) == "D", what="state D")
    stuck = who(child.pid)
    free = threading.Timer(0.3, lambda: os.close(os.open(tmp_path / "fifo", os.O_WRONLY)))
    free.start()
    assert identity.state_of(stuck, HERE, patience=30) != "stuck"
    free.join()


def test_a_process_whose_main_thread_ended_is_not_dead(spawned: Spawned) -> None:
    child = start(spawned, MAIN_THREAD_ENDS)
    wait_until(lambda: proc_state(child.pid) == "Z", what="the end of the main thread")
    assert identity.state_of(who(child.pid), HERE) == "alive"
    assert not identity.provably_dead(who(child.pid), HERE)


def test_a_signal_reaches_the_recorded_process(spawned: Spawned) -> None:
    child = start(spawned, SLEEPS)
    assert identity.send(who(child.pid), signal.SIGTERM, HERE)
    assert child.wait(120) == -signal.SIGTERM


@pytest.mark.parametrize(
    "lie",
    [{"start": 1}, {"boot_id": "another"}, {"pid_ns": "pid:[1]"}, {"host": "n2"}],
    ids=lambda lie: next(iter(lie)),
)
def test_a_process_that_only_has_the_recorded_pid_is_not_signalled(
    spawned: Spawned, lie: dict[str, str | int]
) -> None:
    child = start(spawned, SLEEPS)
    false = dataclasses.replace(who(child.pid), **lie)  # type: ignore[arg-type]
    assert not identity.send(false, signal.SIGKILL, HERE)
    assert identity.end_tree([false], HERE, grace=0.05, kill_patience=0.05) == []
    assert child.poll() is None
    assert identity.send(who(child.pid), signal.SIGKILL, HERE), "the truth is what is signalled"


@pytest.mark.parametrize("pid", [-1, 0, 1, 10**30])
def test_a_pid_that_means_more_than_one_process_is_never_signalled(pid: int) -> None:
    start_time = procfs.read_stat(1)
    false = Identity("n1", HERE.boot_id, HERE.pid_ns, pid, start_time.start if start_time else 0)
    assert not identity.send(false, signal.SIGCONT, HERE)


def test_a_process_does_not_signal_itself() -> None:
    assert not identity.send(who(os.getpid()), signal.SIGCONT, HERE)


def test_without_pidfd_the_identity_is_still_checked(
    spawned: Spawned, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pidfd(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    child = start(spawned, SLEEPS)
    me = who(child.pid)
    assert not identity.send(dataclasses.replace(me, start=me.start + 1), signal.SIGKILL, HERE)
    assert identity.send(me, signal.SIGTERM, HERE)
    assert child.wait(120) == -signal.SIGTERM


def test_the_environment_is_matched_exactly_and_never_the_command_line(spawned: Spawned) -> None:
    run = uuid.uuid4().hex
    one = start(spawned, SLEEPS, FLEET_RUN=run + "-1", FLEET_HOST="n1")
    start(spawned, SLEEPS, FLEET_RUN=run + "-10", FLEET_HOST="n1")
    start(spawned, SLEEPS, FLEET_RUN=run + "-1", FLEET_HOST="n10")
    start(spawned, SLEEPS + f"  # FLEET_RUN={run}-1 FLEET_HOST=n1")
    found = identity.find_by_environ({"FLEET_RUN": run + "-1", "FLEET_HOST": "n1"}, HERE)
    assert [f.pid for f in found] == [one.pid]
    assert found == [who(one.pid)]


TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = sys.argv[1]
own_session = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)
orphan = ['/bin/sh', '-c', '"$0" -c "$1" >/dev/null 2>&1 &', sys.executable, code]
subprocess.run(orphan)
clean_env = subprocess.Popen([sys.executable, '-c', code], env={})
print('up', flush=True)
time.sleep(600)
"""


def test_a_whole_tree_ends_with_those_that_hide(spawned: Spawned, tmp_path: Path) -> None:
    """Helpers that ignore TERM, have their own session, lost their parent or their environment."""
    token = uuid.uuid4().hex
    code = IGNORES_TERM + f"  # {token}"
    root = spawned.start(
        [sys.executable, "-c", TREE, code], env={"LIFE": token}, stdout=subprocess.PIPE
    )
    innocent = start(spawned, SLEEPS + f"  # {token}")
    assert root.stdout
    line = f"LIFE={token}"

    def all_four() -> set[int] | None:
        below = [s.pid for s in procfs.descendants([root.pid])]
        found = {root.pid, *below, *with_environ(line)}
        settled = len(below) == 2 and len(with_environ(line)) == 3
        return found if settled and len(found) == 4 else None

    everyone = {spawned.track(pid) for pid in wait_until(all_four, what="the whole tree") or ()}

    assert identity.end_tree([who(root.pid)], HERE, tokens={"LIFE": token}, grace=0.2) == []

    assert all(gone(pid) for pid in everyone)
    assert innocent.poll() is None


def test_without_kill_what_is_left_is_named(spawned: Spawned) -> None:
    child = start(spawned, IGNORES_TERM)
    left = identity.end_tree([who(child.pid)], HERE, grace=0.1, kill_patience=None)
    assert left == [identity.Left(child.pid, "alive")]
    assert child.poll() is None


def test_term_comes_before_kill(spawned: Spawned) -> None:
    code = (
        "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(7)); " + SLEEPS
    )
    child = start(spawned, code)
    assert identity.end_tree([who(child.pid)], HERE, grace=20) == []
    assert child.wait(120) == 7


def test_the_one_that_ends_a_tree_is_spared_with_its_ancestors(spawned: Spawned) -> None:
    """A stop that runs inside what it stops must live to tell the outcome."""
    token = uuid.uuid4().hex
    code = f"""
import sys
from fsworker import identity
here = identity.Place.here('n1')
print(identity.end_tree([], here, tokens={{'LIFE': '{token}'}}, grace=0.1), flush=True)
"""
    argv = ["/bin/sh", "-c", '"$0" -c "$1"; echo parent lives', sys.executable, code]
    other = start(spawned, SLEEPS, LIFE=token)
    child = spawned.start(argv, env={"LIFE": token}, stdout=subprocess.PIPE, cwd=REPO)
    out, _ = child.communicate(timeout=240)
    assert out.decode().split("\n")[:2] == ["[]", "parent lives"]
    assert other.wait(120) == -signal.SIGTERM
