"""What every launcher must do, asked of each of them. A new launcher is one more parameter."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctl.fleet import fan_out
from ctl.launchers import LAUNCHERS, open_launcher
from ctl.launchers.base import Launcher
from ctl.launchers.errors import LaunchError
from ctl.launchers.replies import ProcessState
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import HostIdentity, Identity
from tests.rigs import hosts
from tests.rigs.stub import Stub
from tests.support.waiting import wait_until

pytestmark = pytest.mark.contract
HOSTS = ["n1", "n2"]
Open = Callable[..., Launcher]


# One of Slurm's contacts nobody: its workers come by themselves (tests/cluster/test_slurm.py).
@pytest.fixture(params=sorted(LAUNCHERS.keys() - {"slurm"}))
def opened(request, tmp_path) -> Iterator[Open]:
    """Opens the launcher under test, with the stub as what it finds on the hosts."""
    stub = Stub(tmp_path)
    made: list[Launcher] = []

    def launcher(**options) -> Launcher:
        made.append(open_launcher(request.param, {**base, **options}))
        return made[-1]

    base: dict[str, object] = {"python": sys.executable, "pythonpath": [str(stub.path)]}
    launcher.stub = stub  # type: ignore[attr-defined]
    if request.param == "ssh":
        hosts.require()
        with hosts.HostRig(tmp_path) as rig:
            for name in HOSTS:
                rig.add(name)
            base |= {"ssh_config": str(rig.config)}
            yield launcher
            for one in made:
                one.close()
    else:
        yield launcher
        for one in made:
            one.close()


def request(root: str, launch: int = 1, **more) -> LaunchRequest:
    return LaunchRequest(root=root, launch=launch, shard=0, **more)


def failure(call: Callable[[], object]) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        call()
    assert caught.value.host == "n1"
    assert "n1" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_start_asks_everything_and_believes_the_reply(opened):
    odd = "/a b/it's/$HOME `x`/é\n"
    launcher = opened()
    started = launcher.start("n1", request(odd, 3, env={"K": "a'b c"}, respawn=False))
    assert started.worker_pid == 5
    assert started.wrap_pid and not started.adopted
    assert opened.stub.starts() == ["n1 3"]


def test_probe_reports_states(opened):
    who = Identity("n1", "b", "ns", 5, 77)
    found = opened().probe("n1", "/root", HostIdentity("n1", 1, worker=who))
    assert found.worker == ProcessState(5, "zombie")
    assert found.wrapper.state == "alive"
    assert found.strays == (7,)
    assert found.boot_id == "b"
    assert found.launch == 4


def test_stop_names_what_is_left(opened):
    found = opened().stop("n1", "/root", 2, grace=1.0)
    assert found.was_running
    assert found.left == (ProcessState(9, "stuck", "worker"),)


def test_the_same_launch_that_runs_already_is_started(opened):
    again = opened().start("n1", request("again"))
    assert again.adopted
    assert again.worker_pid == 5


def test_another_launch_that_runs_already_is_an_error(opened):
    error = failure(lambda: opened().start("n1", request("other")))
    assert error.code == "already_running"


def test_a_refusal_is_one_sentence(opened):
    error = failure(lambda: opened().start("n1", request("refuse")))
    assert "no room here" in str(error)
    assert (error.stage, error.code, error.transient) == ("command", "failed", False)


@pytest.mark.parametrize(
    ("root", "text"),
    [
        ("crash", "it broke"),
        ("silent", "exit status 3"),
        ("cut", "cut off"),
        ("garbage", "nonsense"),
    ],
)
def test_a_reply_that_is_none_shows_the_last_words(opened, root, text):
    error = failure(lambda: opened().probe("n1", root))
    assert error.stage == "reply"
    assert text in str(error)
    assert error.denied is None


def test_a_large_reply_arrives(opened):
    assert opened().probe("n1", "large").boot_id == "b"


def test_a_wrong_interpreter_is_named(opened):
    error = failure(lambda: opened(python="/not/a/python").probe("n1", "/r"))
    assert error.stage == "reply"
    assert "/not/a/python" in str(error)


def test_a_missing_package_is_said(opened, tmp_path):
    bare = tmp_path / "bare python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    error = failure(lambda: opened(python=str(bare)).probe("n1", "/r"))
    assert "No module named" in str(error)


def test_setup_lines_are_run_and_may_talk(opened, tmp_path):
    lines = ["echo loading; echo warn >&2", f"echo done > '{tmp_path}/witness'"]
    assert opened(setup=lines).probe("n1", "/r").boot_id == "b"
    assert (tmp_path / "witness").read_text() == "done\n"


def test_a_setup_line_that_ends_the_shell_is_no_reply(opened):
    error = failure(lambda: opened(setup=["echo no such module; exit 4"]).probe("n1", "/r"))
    assert error.stage == "reply"
    assert "no such module" in str(error)


def test_a_command_that_hangs_is_bounded_and_told(opened):
    launcher = opened(command_timeout=4.0)
    begun = time.monotonic()
    error = failure(lambda: launcher.probe("n1", "hang"))
    assert time.monotonic() - begun < 100
    assert error.stage == "timeout"
    assert error.timed_out and error.transient
    assert "thinking" in str(error)
    assert launcher.probe("n1", "/r").boot_id == "b"  # and the launcher is good for more


def test_a_reply_does_not_wait_for_those_who_keep_the_pipes(opened):
    begun = time.monotonic()
    assert opened().probe("n1", "linger").boot_id == "b"
    assert time.monotonic() - begun < 100


def test_many_threads_use_one_launcher(opened):
    launcher = opened()
    found = fan_out(HOSTS * 8, lambda host: launcher.probe(host, "/r").boot_id, width=8)
    assert [o.error for o in found] == [None] * 16


def test_slow_hosts_are_slow_side_by_side(opened):
    launcher = opened()
    names = HOSTS * 4  # none of which answers before all were asked
    found = fan_out(names, lambda host: launcher.start(host, request("meet:8")).worker_pid)
    assert [o.value for o in found] == [5] * 8


def test_nothing_leaks(opened):
    launcher = opened(command_timeout=0.8)
    for root in ("/r", "crash", "hang"):
        _try(launcher, root)
    before = _resources()
    for _ in range(6):
        for root in ("/r", "crash"):
            _try(launcher, root)
    _try(launcher, "hang")
    wait_until(lambda: not _more(_resources(), before), what="the end of all it needed")


def _try(launcher: Launcher, root: str) -> None:
    try:
        launcher.probe("n1", root)
    except LaunchError:
        pass


def _resources() -> tuple[int, int]:
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def _more(now: tuple[int, int], before: tuple[int, int]) -> bool:
    # After the hang the connection is gone, so there may be less than before; never more.
    return now[0] > before[0] + 1 or now[1] > before[1] + 1


def test_what_the_controller_was_told_is_not_passed_on(opened, monkeypatch, tmp_path):
    monkeypatch.setenv("FLEET_LIFE_FD", "99")
    lines = [f"env > '{tmp_path}/env'"]
    opened(setup=lines).probe("n1", "/r")
    found = (tmp_path / "env").read_text().splitlines()
    assert found
    assert not [entry for entry in found if entry.startswith("FLEET_")]


def test_the_command_has_a_session_of_its_own(opened, tmp_path):
    opened(setup=[f"ps -o sid= -p $$ > '{tmp_path}/sid'"]).probe("n1", "/r")
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)
