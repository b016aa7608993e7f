"""The verbs over real sshd, on hosts with their own names and pid spaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs import hosts
from tests.rigs.hosts import HostRig
from tests.support.ctlrun import ECHO, Ctl, beats, started
from tests.support.waiting import wait_until, with_environ

pytestmark = pytest.mark.fleet


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HostRig]:
    hosts.require()
    with HostRig(tmp_path) as made:
        yield made


@pytest.fixture
def ctl(tmp_path: Path, rig: HostRig) -> Iterator[Ctl]:
    with Ctl(tmp_path, FLEET_HOSTS="n1 n2", FLEET_LAUNCHER="ssh") as calls:
        (tmp_path / "fleet.toml").write_text(
            f'ssh_config = "{rig.config}"\nlauncher_options = {{retry_timeout = 1}}\n'
            f'env = {{CTL_TEST = "{calls.entry.split("=")[1]}"}}\n'
        )
        yield calls


def test_hosts_that_call_themselves_alike_are_known_by_their_allowed_names(
    ctl: Ctl, rig: HostRig
) -> None:
    for name in ("n1", "n2"):
        rig.add(name, hostname="localhost", login="echo welcome; printf '12345\\n'\n")
    root = ctl.runs / "a b" / "run'1 $HOME" / "50%done"
    args = ("--experiment", "a b", "--trial", "run'1 $HOME", "--run-id", "50%done")
    done = ctl("start", *args, "--fn", ECHO)
    assert done.returncode == 0, done.stderr
    assert sorted(started(done.stdout)) == ["n1", "n2"]
    first = ctl.status(root)
    assert (first["state"], [h["host"] for h in first["hosts"]]) == ("running", ["n1", "n2"])
    assert {h["raw"]["hostname"] for h in first["hosts"]} == {"localhost"}
    again = ctl("restart-host", "n2")
    assert again.returncode == 0, again.stderr
    second = ctl.status(root)
    assert [h["raw"]["launch"] for h in second["hosts"]] == [1, 2]
    assert second["hosts"][0]["status_pid"] == first["hosts"][0]["status_pid"]
    stop = ctl("stop")
    assert (stop.returncode, stop.stdout.splitlines()[1:]) == (
        0, ["stopped host=n1", "stopped host=n2"],
    ), stop.stderr  # fmt: skip
    assert with_environ(ctl.entry) == []
    assert ctl("cleanup").returncode == 0
    assert not root.exists()


def test_a_host_that_is_gone_is_named_and_the_others_are_stopped(ctl: Ctl, rig: HostRig) -> None:
    for name in ("n1", "n2"):
        rig.add(name)
    root = ctl.runs / "run"
    ctl.start(root)
    rig.hosts["n2"].kill()
    stop = ctl("stop", "--grace", "100")
    assert stop.returncode == 1
    assert "stopped host=n1" in stop.stdout
    assert "host n2: not stopped" in stop.stderr
    assert "Traceback" not in stop.stderr
    assert (root / "ctl" / "n2.stop").read_text() == "1\n"


def test_one_host_that_fails_takes_the_whole_start_back(ctl: Ctl, rig: HostRig) -> None:
    rig.add("n1")
    rig.add("n2", known=False)
    done = ctl("start", "--root", str(ctl.runs / "run"), "--fn", ECHO)
    assert done.returncode == 5  # the only failure is a host key, which a person must accept
    assert "FAIL start n2 rc=5" in done.stderr
    assert str(rig.known_hosts) in done.stderr
    assert rig.known_hosts.read_text().count("\n") == 1
    assert with_environ(ctl.entry) == []
    assert not (ctl.ws / "tmp" / "shardfleet-current.json").exists()


def test_only_allowed_hosts_are_ever_contacted(ctl: Ctl, rig: HostRig) -> None:
    n1, n3 = rig.add("n1"), rig.add("n3")
    root = str(ctl.runs / "run")
    for args in (("--hosts", "n1 n3"), ("--workers-json", '[{"host": "n3", "shard": 0}]')):
        done = ctl("start", "--root", root, "--fn", ECHO, *args)
        assert (done.returncode, "'n3' is not among the allowed hosts" in done.stderr) == (5, True)
    here = ctl("start", "--root", root, "--fn", ECHO, "--hosts", os.uname().nodename)
    assert (here.returncode, "it is this machine" in here.stderr) == (5, True)
    assert "Accepted" not in n1.log.read_text() + n3.log.read_text()
    assert os.listdir(ctl.runs) == []


def test_the_controller_may_go_and_the_workers_stay(ctl: Ctl, rig: HostRig) -> None:
    host = rig.add("n1")
    root = ctl.runs / "run"
    ctl.start(root, "--hosts", "n1")
    seq = ctl.status(root)["hosts"][0]["raw"]["seq"]
    sessions = ["sh", "-c", "ps -e -o pid=,args= | awk '/sshd: root/ && !/awk/ {print $1}'"]
    wait_until(lambda: not host.inside(*sessions).stdout.split(), what="the end of all sessions")
    wait_until(lambda: beats(root)["n1"]["seq"] > seq + 1, what="more beats")
    assert ctl("stop").returncode == 0


def test_hosts_are_examined_over_ssh_and_an_unfit_one_keeps_all_from_starting(
    ctl: Ctl, rig: HostRig
) -> None:
    rig.add("n1", login="echo noise; printf '12345\\n'\n")
    root = ctl.runs / "run"
    one = ctl("doctor", "n1", "--root", str(ctl.runs), "--fn", ECHO)
    assert one.returncode == 0, one.stdout
    assert one.stdout.splitlines()[-1] in ("1 ok, 0 warn, 0 fail", "0 ok, 1 warn, 0 fail")
    both = ctl("start", "--doctor", "--root", str(root), "--fn", ECHO)
    assert both.returncode == 1
    assert "1 of 2 hosts are not fit: n2" in both.stderr.splitlines()[-1]
    assert "note: fail n2 " in both.stderr
    assert with_environ(ctl.entry) == [] and not (root / "manifest.json").exists()
    rig.add("n2")
    good = ctl("start", "--doctor", "--root", str(root), "--fn", ECHO)
    assert good.returncode == 0, good.stderr
    live = ctl("doctor", "--json")
    assert live.returncode == 0, live.stdout
    assert not [n for n in os.listdir(root / "ctl") if n.startswith(".doctor")]
    assert ctl("stop").returncode == 0


def test_each_host_gets_what_its_table_says(ctl: Ctl, rig: HostRig, tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        rig.add(name)
    address = rig.hosts["n2"].address
    wrong = tmp_path / "an address that only the table knows better"
    wrong.write_text(rig.config.read_text().replace(f"HostName {address}", "HostName 192.0.2.1"))
    assert wrong.read_text() != rig.config.read_text()
    own = tmp_path / "own tmp"
    with (tmp_path / "fleet.toml").open("a") as file:
        file.write(
            f'[hosts.n1]\nsetup = ["FROM_SETUP=yes; export FROM_SETUP"]\ntmp = "{own}"\n'
            f'[hosts.n2]\nenv = {{ ONLY = "n2" }}\nssh = {{ Hostname = "{address}" }}\n'
        )
    root = ctl.runs / "run"
    done = ctl("start", "--root", str(root), "--fn", ECHO, "--ssh-config", str(wrong))
    assert done.returncode == 0, done.stderr
    environs = [environ_of(pid) for pid in with_environ(ctl.entry)]
    first, second = ([e for e in environs if e.get("FLEET_HOST") == h] for h in ("n1", "n2"))
    assert first and second
    assert {(e.get("TMPDIR"), e.get("FROM_SETUP"), e.get("ONLY")) for e in first} == {
        (str(own), "yes", None)
    }
    assert {(e.get("FROM_SETUP"), e.get("ONLY")) for e in second} == {(None, "n2")}
    assert own.is_dir()
    assert ctl("stop").returncode == 0


def environ_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
