"""What real hosts do to those who reach them over SSH."""

from __future__ import annotations

import json
import logging
import os
import pty
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ctl.fleet import fan_out
from ctl.launchers import open_launcher
from ctl.launchers.base import Launcher
from ctl.launchers.errors import LaunchError
from ctl.launchers.sshsocket import _connect
from fsworker.protocol import layout
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import Manifest, WorkerSpec
from tests.rigs import hosts
from tests.rigs.hosts import INPUTS, HostRig
from tests.rigs.stub import Stub
from tests.support.ctlrun import ECHO, Ctl
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fleet
NOISE = (INPUTS / "bashrc_noisy").read_text()
Open = Callable[..., Launcher]
SESSIONS = "ps -e -o pid=,args= | awk '/sshd: root/ && !/awk/ {print $1}'"
KILL_SESSIONS = f"{SESSIONS} | xargs kill -9"


@pytest.fixture
def rig(tmp_path) -> Iterator[HostRig]:
    hosts.require()
    with HostRig(tmp_path) as made:
        yield made


@pytest.fixture
def stub(tmp_path) -> Stub:
    return Stub(tmp_path)


@pytest.fixture
def opened(rig, stub) -> Iterator[Open]:
    """Opens ssh launchers to the rig's hosts, where the stub is the host side."""
    made: list[Launcher] = []

    def launcher(**options) -> Launcher:
        given = {"pythonpath": [str(stub.path)], **options}
        made.append(open_launcher("ssh", rig.options(**given)))
        return made[-1]

    yield launcher
    for one in made:
        one.close()


def request(root: str, launch: int = 1, **more) -> LaunchRequest:
    return LaunchRequest(root=root, launch=launch, shard=0, **more)


def failure(launcher: Launcher, host: str = "n1", root: str = "/r") -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        launcher.probe(host, root)
    assert caught.value.host == host
    assert "\n" not in str(caught.value)
    return caught.value


def make_root(path: Path, *names: str) -> str:
    for folder in layout.FOLDERS:
        (path / folder).mkdir(parents=True, exist_ok=True)
    specs = tuple(WorkerSpec(name, i, 1) for i, name in enumerate(names))
    manifest = Manifest("run-1", "json.loads", len(names), specs, owner=os.getuid())
    path.chmod(0o700)
    (path / "manifest.json").write_bytes(manifest.to_json())
    return str(path)


def fake_worker(folder: Path) -> str:
    """An interpreter for workers that do nothing but live."""
    path = folder / "worker"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    return str(path)


# --- shells and what they print (C01, C02)


@pytest.mark.parametrize("where", ["bash", "tcsh", "fish", "fakecsh"])
def test_all_verbs_work_through_any_shell_and_its_noise(rig, tmp_path, caplog, where):
    shell = {"bash": "/bin/bash", "tcsh": "/usr/bin/tcsh", "fish": "/usr/bin/fish"}.get(where)
    if shell and not os.path.exists(shell):
        pytest.skip(f"{shell} is not installed")
    host = rig.add("n1", shell=shell or str(INPUTS / "fakecsh"), login=NOISE)
    (host.home / ".cshrc").write_text(NOISE)
    (host.home / ".config/fish").mkdir(parents=True)
    (host.home / ".config/fish/config.fish").write_text(NOISE.replace("; echo", "\necho"))
    root = make_root(tmp_path / "it's a root", "n1")
    python = fake_worker(tmp_path)
    with caplog.at_level(logging.INFO), closing(open_launcher("ssh", rig.options())) as launcher:
        env = {"ODD": "a 'b' $c \"d\" > 1"}
        started = launcher.start("n1", request(root, env=env, python=python))
        pid_file = Path(root, "ctl/n1.pid")
        assert started.worker_pid == int(pid_file.read_text())
        seen = launcher.probe("n1", root)
        assert (seen.worker.pid, seen.worker.state) == (started.worker_pid, "alive")
        assert seen.wrapper.state == "alive"
        environ = host.inside("cat", f"/proc/{started.worker_pid}/environ").stdout
        assert b"ODD=a 'b' $c \"d\" > 1\0" in environ
        stopped = launcher.stop("n1", root, 1, grace=100)
        assert stopped.was_running and not stopped.left
        assert launcher.probe("n1", root).worker.state == "dead"
    assert not list(host.home.glob("1")) and not Path("/1").exists()
    assert "xxxx" not in caplog.text


def test_noise_reaches_the_debug_log_alone(rig, opened, caplog):
    rig.add("n1", login=NOISE + "\necho loud-words\n")
    launcher = opened()
    with caplog.at_level(logging.INFO):
        launcher.probe("n1", "/r")
    assert "loud-words" not in caplog.text
    with caplog.at_level(logging.DEBUG):
        launcher.probe("n1", "/r")
    assert "loud-words" in caplog.text


# --- life after the connection (C03)


def test_a_worker_lives_on_when_the_connection_is_cut(rig, tmp_path):
    host = rig.add("n1")
    root = make_root(tmp_path / "root", "n1")
    launcher = open_launcher("ssh", rig.options())
    begun = time.monotonic()
    started = launcher.start("n1", request(root, python=fake_worker(tmp_path)))
    assert time.monotonic() - begun < 100
    launcher.close()
    wait_until(lambda: not _sessions(host), what="the end of the session")
    pids = (started.wrap_pid, started.worker_pid)
    for pid in pids:
        assert host.inside("kill", "-0", str(pid)).returncode == 0
        for fd in (0, 1, 2):
            target = host.inside("readlink", f"/proc/{pid}/fd/{fd}").stdout.decode()
            assert "socket:" not in target and "pipe:" not in target
    with closing(open_launcher("ssh", rig.options())) as again:
        assert again.probe("n1", root).worker.state == "alive"
        assert not again.stop("n1", root, 1, grace=100).left


def _sessions(host: hosts.Host) -> bytes:
    return host.inside("sh", "-c", SESSIONS).stdout


# --- hosts that turn connections away (C04)


def test_eight_hosts_behind_a_sshd_that_takes_two_at_a_time(rig, opened, stub):
    gate = rig.add("gate", sshd=["MaxStartups=2:100:2"])
    names = [f"n{i}" for i in range(8)]
    for name in names:
        rig.reach(name, gate)
    launcher = opened()
    # The sshd is kept busy by one that never logs in, so that turning away is certain.
    with socket.create_connection((gate.address, gate.port)):
        found = fan_out(names, lambda host: launcher.start(host, request("/r", 3)))
    assert [o.error for o in found] == [None] * 8
    assert sorted(stub.starts()) == [f"{name} 3" for name in names]
    assert b"MaxStartups" in gate.log.read_bytes()


def test_a_start_whose_answer_was_lost_is_not_started_twice(rig, tmp_path):
    host = rig.add("n1")
    root = make_root(tmp_path / "root", "n1")
    python = fake_worker(tmp_path)
    with closing(open_launcher("ssh", rig.options())) as launcher:
        first = launcher.start("n1", request(root, 5, python=python))
    # The second try of a caller that never saw the first one's answer:
    with closing(open_launcher("ssh", rig.options())) as launcher:
        second = launcher.start("n1", request(root, 5, python=python))
        assert second.adopted
        assert (second.wrap_pid, second.worker_pid) == (first.wrap_pid, first.worker_pid)
        with pytest.raises(LaunchError) as caught:
            launcher.start("n1", request(root, 6, python=python))
        assert caught.value.code == "already_running"
        assert host.inside("pgrep", "-fc", "fsworker.respawn").stdout.strip() == b"1"
        assert not launcher.stop("n1", root, 6, grace=100).left


def test_a_start_whose_answer_is_lost_on_the_way_is_found_again(rig, tmp_path):
    host = rig.add("n1")
    root = make_root(tmp_path / "root", "n1")
    loses = tmp_path / "loses the first answer"
    loses.write_text(
        f"#!/bin/sh\n{sys.executable} \"$@\" > '{tmp_path}/answer'\n"
        f"test -e '{tmp_path}/lost' && exec cat '{tmp_path}/answer'\n"
        f"touch '{tmp_path}/lost'; {KILL_SESSIONS}\nsleep 60\n"
    )
    loses.chmod(0o755)
    with closing(open_launcher("ssh", rig.options(python=str(loses)))) as launcher:
        started = launcher.start("n1", request(root, 5, python=fake_worker(tmp_path)))
    assert started.adopted
    assert started.worker_pid == int(Path(root, "ctl/n1.pid").read_text())
    assert host.log.read_text().count("Accepted publickey") == 2
    assert host.inside("pgrep", "-fc", "fsworker.respawn").stdout.strip() == b"1"
    with closing(open_launcher("ssh", rig.options())) as launcher:
        assert not launcher.stop("n1", root, 5, grace=100).left


def test_a_connection_that_broke_is_made_anew(rig, opened):
    host = rig.add("n1")
    launcher = opened()
    assert launcher.probe("n1", "/r").boot_id == "b"
    host.inside("sh", "-c", KILL_SESSIONS)
    assert launcher.probe("n1", "/r").boot_id == "b"


def test_a_connection_is_used_again(rig, opened):
    host = rig.add("n1")
    launcher = opened()
    for _ in range(3):
        launcher.probe("n1", "/r")
    assert host.log.read_text().count("Accepted publickey") == 1


# --- hosts that do not answer (C05)


@contextmanager
def listener(greeting: bytes = b"", hang_up: bool = False) -> Iterator[tuple[str, int]]:
    """A port that accepts, says `greeting`, and then nothing for ever, or hangs up."""
    address, held = hosts.free_address(), []
    with closing(socket.create_server((address, 0))) as server:
        server.settimeout(0.1)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                for one in [one for one in held if _is_over(one)]:
                    held.remove(one)
                    one.close()
                try:
                    sock, _ = server.accept()
                except TimeoutError:
                    continue
                sock.sendall(greeting)
                sock.close() if hang_up else held.append(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            over.set()
            thread.join()
            for sock in held:
                sock.close()


def _is_over(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096, socket.MSG_DONTWAIT):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def reach(rig: HostRig, name: str, where: tuple[str, int], *more: str) -> None:
    rig._blocks.append(
        "\n  ".join([f"Host {name}", f"HostName {where[0]}", f"Port {where[1]}", *more])
    )
    rig._write_config()


@pytest.mark.parametrize(
    ("greeting", "stage"), [(b"", "banner"), (b"SSH-2.0-OpenSSH_9.2\r\n", "banner")]
)
def test_a_port_that_accepts_and_is_silent(rig, opened, greeting, stage):
    with listener(greeting) as where:
        reach(rig, "n1", where)
        begun = time.monotonic()
        error = failure(opened(connect_timeout=1.0))
        assert time.monotonic() - begun < 60
    assert error.stage == stage
    assert error.timed_out and error.transient


def test_a_port_that_hangs_up_is_transient(rig, opened):
    with listener(hang_up=True) as where:
        reach(rig, "n1", where)
        begun = time.monotonic()
        error = failure(opened(retry_timeout=1.0))
        assert time.monotonic() - begun < 60
    assert (error.stage, error.transient, error.timed_out) == ("banner", True, False)


def test_a_port_that_is_not_ssh_is_said(rig, opened):
    with listener(b"HTTP/1.0 400 no\r\n" * 101) as where:
        reach(rig, "n1", where)
        error = failure(opened())
    assert (error.stage, error.transient) == ("banner", False)


def test_a_closed_port_is_a_connect_failure_at_once(rig, opened):
    address = hosts.free_address()
    reach(rig, "n1", (address, hosts.free_port(address)))
    begun = time.monotonic()
    error = failure(opened())
    assert time.monotonic() - begun < 60
    assert (error.stage, error.transient) == ("connect", False)


def test_a_name_without_address_is_a_connect_failure(rig, opened):
    error = failure(opened(retry_timeout=0.1), "no-such-host.invalid")
    assert error.stage == "connect"
    assert "no-such-host.invalid" in str(error)


def test_a_frozen_host_is_bounded_and_the_others_are_served(rig, opened):
    frozen, other = rig.add("n1"), rig.add("n2")
    launcher = opened(connect_timeout=2.0)
    frozen.freeze()
    try:
        begun = time.monotonic()
        bad, good = fan_out(["n1", "n2"], lambda host: launcher.probe(host, "/r"))
        assert time.monotonic() - begun < 60
        assert good.ok and good.seconds < bad.seconds
        assert isinstance(bad.error, LaunchError)
        assert (bad.error.stage, bad.error.timed_out) == ("banner", True)
    finally:
        frozen.thaw()
    assert launcher.probe("n1", "/r").boot_id == "b"
    assert other.process.poll() is None


def test_a_session_that_freezes_is_bounded(rig, opened):
    host = rig.add("n1")
    launcher = opened(command_timeout=2.0)
    launcher.probe("n1", "/r")
    host.inside("sh", "-c", f"{SESSIONS} | xargs kill -STOP")
    begun = time.monotonic()
    error = failure(launcher)
    assert time.monotonic() - begun < 60
    assert (error.stage, error.timed_out) == ("timeout", True)
    assert launcher.probe("n1", "/r").boot_id == "b"


def test_a_host_that_drops_packets_is_a_connect_failure_in_its_time(rig, opened):
    address, held = hosts.free_address(), []
    with closing(socket.socket()) as server:
        server.bind((address, 0))
        server.listen(0)  # a full backlog answers no more, like a host that is gone
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(server.getsockname())
            held.append(sock)
        reach(rig, "n1", server.getsockname())
        begun = time.monotonic()
        error = failure(opened(connect_timeout=1.0))
        assert time.monotonic() - begun < 60
        for sock in held:
            sock.close()
    assert (error.stage, error.timed_out, error.transient) == ("connect", True, True)


@pytest.mark.skipif(not shutil.which("ip"), reason="needs ip (iproute2)")
def test_an_idle_connection_whose_link_was_cut_is_found_dead_and_made_anew(tmp_path):
    hosts.require()
    argv = ["unshare", "--net", sys.executable, "-m", "tests.support.dead_peer", str(tmp_path)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=240, check=False, cwd=hosts.REPO
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["known_after"] < 30 and told["stage"] == "connect", told
    assert told["logins"] == 2, "one before the cut, and one after it"


def test_a_login_that_hangs_is_a_timeout_of_the_command(rig, opened):
    rig.add("n1", login="echo before; sleep 600")
    error = failure(opened(command_timeout=1.5))
    assert error.stage == "timeout"
    assert "before" in str(error)


def test_threads_and_descriptors_stay_flat_over_many_sweeps(rig, opened):
    rig.add("n1")
    with listener() as mute, listener(hang_up=True) as rude:
        reach(rig, "mute", mute)
        reach(rig, "rude", rude)
        reach(rig, "shut", ("127.0.0.1", 1))
        well, hasty = opened(), opened(connect_timeout=0.1, retry_timeout=0.01)

        def ask(host: str) -> str:
            return (well if host == "n1" else hasty).probe(host, "/r").boot_id

        for sweep in range(100):
            good, *bad = fan_out(["n1", "mute", "rude", "shut"], ask)
            assert good.value == "b", good.error
            assert {o.error.stage for o in bad} <= {"banner", "connect"}
            if sweep == 4:
                before = _quiet()
        # Whatever leaks does so at least once in a sweep.
        after = _quiet()
        assert after[0] <= before[0] + 4
        assert after[1] <= before[1] + 4


def _quiet() -> tuple[int, int]:
    time.sleep(0.3)  # what was told to end does so meanwhile; the margin does not count on it
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


# --- hosts that say no (C06)

DENIAL = "access denied: you have no active jobs on this node"


def test_a_host_that_denies_is_quoted(rig, opened, tmp_path):
    allowed = tmp_path / "allowed"
    gate = f'test -e {allowed} && exec /bin/sh -s; echo "{DENIAL}"; exit 254'
    rig.add("n1", sshd=[f"ForceCommand={gate}"])
    launcher = opened()
    error = failure(launcher)
    assert error.denied == DENIAL
    assert DENIAL in str(error) and "254" in str(error)
    assert (error.stage, error.transient) == ("command", False)
    allowed.touch()
    assert launcher.probe("n1", "/r").boot_id == "b"  # it resumes by itself


def test_an_account_that_pam_turns_away_is_quoted(rig, opened, tmp_path):
    words = tmp_path / "words"
    words.write_text(DENIAL + "\n")
    rules = f"account optional pam_echo.so file={words}\naccount required pam_deny.so\n"
    rig.add("n1", pam="auth required pam_permit.so\n" + rules)
    error = failure(opened())
    assert error.denied == DENIAL
    assert (error.stage, error.transient) == ("auth", False)


def test_an_account_that_may_not_log_in_is_quoted(rig, opened):
    rig.add("n1", shell="/usr/sbin/nologin")
    error = failure(opened())
    assert error.denied and "not available" in error.denied


def test_a_key_that_is_not_accepted_is_an_auth_failure(rig, opened, tmp_path):
    other = hosts.make_key(tmp_path / "other")
    rig.add("n1", client=[f'IdentityFile "{other}"'], sshd=["Banner=/etc/passwd"])
    rig.client_key.unlink()
    error = failure(opened())
    assert (error.stage, error.transient, error.denied) == ("auth", False, None)
    assert str(other) in str(error)


def test_a_key_with_a_passphrase_is_named_and_nothing_is_asked(rig, opened, tmp_path):
    locked = tmp_path / "locked"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)]
    subprocess.run(make, check=True)
    rig.add("n1", client=[f'IdentityFile "{locked}"'])
    rig.client_key.unlink()
    error = failure(opened())
    assert error.stage == "auth"
    assert f"{locked} has a passphrase" in str(error)


def test_a_passphrase_is_asked_for_once_and_serves_all_hosts(rig, opened, tmp_path):
    locked = lock(rig.client_key)
    for name in ("n1", "n2"):
        rig.add(name)
    answers, asked = ["wrong", "secret"], []

    def ask(prompt: str) -> str | None:
        asked.append(prompt)
        return answers.pop(0)

    launcher = opened()
    launcher.unlock(["n1", "n2", "n1"], ask)
    assert asked == [f"passphrase of {locked}: "] * 2 and not answers
    for name in ("n1", "n2"):
        assert launcher.probe(name, "/r").boot_id == "b"
    refused = opened()
    refused.unlock(["n1"], lambda prompt: None)
    assert "has a passphrase" in str(failure(refused))


def test_at_a_terminal_ctl_asks_and_a_watcher_does_not(rig, tmp_path):
    lock(rig.client_key)
    rig.add("n1")
    env = {"FLEET_HOSTS": "n1", "FLEET_SSH_CONFIG": str(rig.config)}
    with Ctl(tmp_path, **env, FLEET_LAUNCHER="ssh") as ctl:
        argv = [sys.executable, "-m", "ctl", "doctor", "--root", str(ctl.runs), "--fn", ECHO]
        assert at_terminal(argv, ctl.env, b"passphrase of", b"secret\n") == 0
        silent = ctl("doctor", "--root", str(ctl.runs), "--fn", ECHO)
        assert silent.returncode == 1 and "has a passphrase" in silent.stdout


def lock(key: Path) -> Path:
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return key


def at_terminal(argv: list[str], env: dict[str, str], prompt: bytes, answer: bytes) -> int:
    """Run a command at a terminal of its own and answer its prompt; its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, env)
    said = b""
    try:
        while prompt not in said:
            said += os.read(terminal, 1000)
        os.write(terminal, answer)
        while True:
            said += os.read(terminal, 1000)
    except OSError:
        pass  # it has ended
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    assert answer.strip() not in said, "it is not shown"
    return code


@contextmanager
def ssh_agent(sock: str) -> Iterator[Callable[[Path], None]]:
    """An agent at `sock`; gives what adds a key to it."""
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)

    def answers() -> bool:  # its socket is there before it listens
        with closing(socket.socket(socket.AF_UNIX)) as client:
            return client.connect_ex(sock) == 0

    def add(key: Path) -> None:
        env = {**os.environ, "SSH_AUTH_SOCK": sock}
        subprocess.run(["ssh-add", "-q", str(key)], check=True, env=env)

    try:
        wait_until(answers, what="the agent")
        yield add
    finally:
        agent.kill()
        agent.wait()


def test_an_agent_serves_and_a_mute_one_is_bounded(rig, opened, tmp_path, monkeypatch):
    sock = str(tmp_path / "agent")
    with ssh_agent(sock) as add:
        add(rig.client_key)
        hidden = rig.client_key.rename(tmp_path / "hidden")
        rig.add("n1", client=[f"IdentityAgent {sock}"])
        assert opened().probe("n1", "/r").boot_id == "b"
    mute = str(tmp_path / "mute")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(mute)
        server.listen()
        hidden.rename(rig.client_key)
        rig.add("n2", client=[f"IdentityAgent {mute}"])
        begun = time.monotonic()
        error = failure(opened(connect_timeout=1.0), "n2")
        assert time.monotonic() - begun < 60
        assert error.stage == "auth"


def test_a_key_that_is_named_is_reached_before_all_that_an_agent_holds(rig, opened, tmp_path):
    sock = str(tmp_path / "agent")
    with ssh_agent(sock) as add:
        for number in range(7):  # one more than a server hears out
            add(hosts.make_key(tmp_path / f"key{number}"))
        rig.add("n1", client=[f"IdentityAgent {sock}", "IdentitiesOnly no"])
        assert opened().probe("n1", "/r").boot_id == "b"


# --- names (C07) and keys


def test_hosts_are_who_they_are_allowed_as_whatever_they_call_themselves(rig, opened):
    rig.add("n1", hostname="localhost")
    rig.add("n2", hostname="localhost")
    rig.add("n3", hostname="n1")
    launcher = opened()
    for name, called in (("n1", "localhost"), ("n2", "localhost"), ("n3", "n1")):
        started = launcher.start(name, request("/r"))
        assert started.warnings == (called,)


def test_an_unknown_host_is_not_asked_and_not_recorded(rig, opened):
    rig.add("n1", known=False)
    error = failure(opened())
    assert (error.stage, error.transient) == ("hostkey", False)
    assert str(rig.known_hosts) in str(error)
    assert rig.known_hosts.read_text() == ""


def test_a_new_host_is_recorded_when_asked_and_then_known_to_ssh(rig, opened):
    host = rig.add("n1", known=False)
    assert opened(accept_new=True).probe("n1", "/r").boot_id == "b"
    assert rig.known_hosts.read_text().startswith(f"[{host.address}]:{host.port} ssh-ed25519 ")
    assert opened().probe("n1", "/r").boot_id == "b"
    ssh = ["ssh", "-F", str(rig.config), "-o", "BatchMode=yes", "n1", "true"]
    subprocess.run(ssh, check=True, stdin=subprocess.DEVNULL)


def test_a_changed_key_stops_that_host_alone(rig, opened, tmp_path):
    host = rig.add("n1", known=False)
    rig.add("n2")
    other = hosts.make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
    damaged = "n9 ssh-ed25519 ###\n"
    line = f"[{host.address}]:{host.port} {' '.join(other)}\n"
    rig.known_hosts.write_text(damaged + rig.known_hosts.read_text() + line)
    bad, good = fan_out(["n1", "n2"], lambda name: opened(accept_new=True).probe(name, "/r"))
    assert good.ok
    assert isinstance(bad.error, LaunchError)
    assert (bad.error.stage, bad.error.transient) == ("hostkey", False)
    assert f"{rig.known_hosts}:3" in str(bad.error)


def test_the_type_of_key_on_record_is_the_one_asked_for(rig, opened, tmp_path):
    rsa = hosts.make_key(tmp_path / "rsa_key", "rsa")
    host = rig.add("n1", known=False, sshd=[f"HostKey={rsa}"])
    public = rsa.with_suffix(".pub").read_text().split()[:2]
    rig.known_hosts.write_text(f"[{host.address}]:{host.port} {' '.join(public)}\n")
    assert opened().probe("n1", "/r").boot_id == "b"


# --- proxies


def test_a_host_behind_another_and_behind_a_command(rig, opened):
    gate = rig.add("gate")
    inner = rig.add("inner", client=["ProxyJump gate"])
    rig.reach("byhand", inner, [f"ProxyCommand {sys.executable} {_nc(rig)} %h %p"])
    launcher = opened()
    assert launcher.probe("inner", "/r").boot_id == "b"
    assert launcher.probe("byhand", "/r").boot_id == "b"
    assert "Accepted publickey" in gate.log.read_text()
    launcher.close()
    what = "the end of the proxies"
    wait_until(lambda: not _running(str(rig.config)) and not _running("nc.py"), what=what)


def test_two_hops_are_taken_one_after_the_other(rig, opened):
    gates = [rig.add("outer"), rig.add("gate")]
    rig.add("inner", client=["ProxyJump outer,gate"])
    launcher = opened()
    assert launcher.probe("inner", "/r").boot_id == "b"
    assert all("Accepted publickey" in gate.log.read_text() for gate in gates)
    launcher.close()
    what = "the end of the proxies"
    wait_until(lambda: not _running(str(rig.config)), what=what)


def test_a_bind_address_is_where_the_connection_comes_from(rig, opened):
    source = hosts.free_address()
    host = rig.add("n1", client=[f"BindAddress {source}"])
    assert opened().probe("n1", "/r").boot_id == "b"
    assert f"from {source} " in host.log.read_text()


def test_a_proxy_that_fails_is_quoted(rig, opened):
    rig.add("n1", client=["ProxyCommand echo the gate is shut >&2; exit 1"])
    error = failure(opened(retry_timeout=0.1))
    assert "the gate is shut" in str(error)


def _nc(rig: HostRig) -> str:
    path = rig.folder / "nc.py"
    path.write_text(
        "import socket, sys, threading, os\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while d := os.read(0, 65536): s.sendall(d)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while d := s.recv(65536): os.write(1, d)\n"
    )
    return shlex.quote(str(path))


def _running(text: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in line:
            found.append(pid)
    return found


def test_what_is_received_is_acknowledged_at_once():
    """A kernel keeps acknowledgements back for 40 ms, every second turn; a login has two such."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = _connect(socket.AF_INET, socket.SOCK_STREAM, 0, server.getsockname(), 10.0)
        theirs, _ = server.accept()
        with ours, theirs:
            late = sum(_turn(ours, theirs) for _ in range(20))
    assert late < 5, "10 of 20 are late where the kernel decides"


def _turn(ours: socket.socket, theirs: socket.socket) -> bool:
    """One question and answer; whether the answer's acknowledgement was kept back."""
    ours.sendall(b"question")
    assert theirs.recv(100) == b"question"
    theirs.sendall(b"answer")
    assert ours.recv(100) == b"answer"
    begun = time.monotonic()
    while _unacknowledged(theirs):
        pass
    return time.monotonic() - begun > 0.03


def _unacknowledged(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("I", info, 24)[0])  # tcpi_unacked
