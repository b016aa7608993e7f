"""Members that were killed: what commands of the whole run do about them, and what they advise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctl import departed, draining, roots
from ctl.cli import main
from ctl.commands import restart
from ctl.explain import hosts
from ctl.launchers import attached
from fsworker.attach import rootside
from fsworker.errors import Refused
from fsworker.identity import Place, identify
from fsworker.life import lifefiles
from fsworker.protocol import layout, membership
from fsworker.protocol.records.member import Member
from fsworker.protocol.records.run import HostIdentity, Identity
from tests.support.runs import beat, make_run

pytestmark = pytest.mark.unit

LIFE = "c0ffee000001"
OWNER = layout.Owner("w1", LIFE)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> roots.Run:
    """n1, which ended, and the member w1, which holds a batch; n1 alone is allowed."""
    monkeypatch.setenv("FLEET_HOSTS", "n1")
    monkeypatch.setattr(attached, "SLACK", 0.2)
    monkeypatch.setattr(attached, "POLL", 0.05)
    monkeypatch.setattr(draining, "SLACK", 0.2)
    made = make_run(tmp_path, "n1", launcher="local", may_attach=("w1",))
    beat(tmp_path, stopped=True, ready=False)
    rootside.appear(made.store, Member("w1", 1, 0))
    (tmp_path / "inbox" / "0").mkdir()
    made.store.mkdir(OWNER.folder)
    token = layout.Token(layout.batch_id("s", LIFE, 0), 0, 1)
    made.store.put(layout.claim_path(OWNER, token), b"")
    return roots.open_run(made.root)


def dead_here(run: roots.Run, launch: int = 1) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        who = identify(child.pid, Place.here("w1"))
        assert who
        lifefiles.publish(run.store, HostIdentity("w1", launch, who, who, LIFE))
        assert not departed.ended_here(run.store, "w1", launch)
        child.kill()


@pytest.mark.parametrize("verb", [("stop", "--grace", "0.1"), ("drain", "w1", "--timeout", "0.1")])
@pytest.mark.parametrize("here", [True, False])
def test_a_dead_member_holds_no_command(
    run: roots.Run,
    tmp_path: Path,
    verb: tuple[str, ...],
    here: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    beat(tmp_path, 16.0 if here else 80.0, "w1")
    if here:
        dead_here(run)
    assert main([*verb, "--root", run.root]) == 0
    told = capsys.readouterr()
    assert "host w1: " in told.err and "; nothing more to stop" in told.err
    assert "silent since " in told.err
    assert "returned 1 batches" in told.out
    assert len(os.listdir(tmp_path / "inbox" / "0")) == 1
    assert not membership.read_members(run.store) and "w1" not in roots.open_run(run.root).hosts
    assert not (tmp_path / layout.status_path("w1")).exists()


def test_one_that_is_not_silent_for_long_enough_is_waited_for(
    run: roots.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beat(tmp_path, 20.0, "w1")
    assert main(["drain", "w1", "--timeout", "0.1", "--root", run.root]) == 1
    assert "which is taken for its end after 75 s: try again then" in capsys.readouterr().err
    assert membership.read_members(run.store) and os.listdir(tmp_path / OWNER.folder)


@pytest.mark.parametrize(("boot", "launch"), [("other", 1), ("", 2)])
def test_what_is_no_proof(run: roots.Run, boot: str, launch: int) -> None:
    here = Place.here("w1")
    who = Identity("w1", boot or here.boot_id, here.pid_ns, 4711, 1)
    lifefiles.publish(run.store, HostIdentity("w1", launch, who, who, LIFE))
    assert not departed.ended_here(run.store, "w1", 1)


def test_a_later_start_of_the_name_stays(run: roots.Run) -> None:
    rootside.appear(run.store, Member("w1", 2, 0))
    departed.let_go(run.store, "w1", 1)
    assert membership.read_members(run.store) == (Member("w1", 2, 0),)


def test_a_rolling_restart_passes_over_members(run: roots.Run, tmp_path: Path) -> None:
    assert restart._hosts(run) == (["n1"], [], ["w1"])
    (tmp_path / "ctl" / "w1.stop").write_text("1\n")
    assert restart._hosts(run) == (["n1"], [], ["w1"])
    (tmp_path / "ctl" / "n1.stop").write_text("1\n")
    with pytest.raises(Refused, match="stopped on purpose"):
        restart._hosts(run)


def test_what_is_advised(
    run: roots.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beat(tmp_path, 80.0, "w1")
    words = f"fsworker attach --root {run.root} --name w1; to let it go: ctl drain w1"
    assert words in hosts.explain(run, hosts.view(run), "w1").next[-1]
    assert main(["restart-host", "W1", "--root", run.root]) == 5
    assert words in capsys.readouterr().err


def test_an_interrupted_start_says_what_may_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ctl.bringup.bring_up", interrupt)
    root = str(tmp_path / "run")
    args = ["--hosts", "n1", "--launcher", "local", "--fn", "json:dumps"]
    assert main(["start", "--root", root, *args]) == 130
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("ctl: interrupted: workers may run (n1 was launched ")
    assert told.endswith(f"ctl stop --root {root} ends them")
