"""What a failed start stops again, and what it ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctl import bringup
from ctl.launchers.base import Started, Stopped
from ctl.launchers.errors import LaunchError
from fsworker.errors import FleetError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec

pytestmark = pytest.mark.unit


class Scripted:
    """A launcher whose hosts fail as told; it keeps whom it was asked to stop."""

    name = "scripted"
    verbs = frozenset({"start", "stop"})

    def __init__(self, **failures: FleetError) -> None:
        self.failures = failures
        self.stopped: list[str] = []

    def start(self, host: str, request: LaunchRequest) -> Started:
        if host in self.failures:
            raise self.failures[host]
        return Started(11, 12)

    def stop(self, host: str, root: str, launch: int, **_: object) -> Stopped:
        self.stopped.append(host)
        if host in self.failures:
            raise self.failures[host]
        return Stopped(True)


def error(host: str, stage: str, **fields: object) -> LaunchError:
    return LaunchError(f"host {host}: it is so", host=host, stage=stage, **fields)


def fail(folder: Path, launcher: Scripted, hosts: list[str]) -> tuple[FleetError, list[str]]:
    """The error that the start ends with, and its lines on stderr."""
    store = Store(str(folder))
    for name in (layout.CTL, layout.STATUS, layout.CLAIMS):
        store.mkdir(name)
    workers = tuple(WorkerSpec(host, 0) for host in hosts)
    meta = LaunchMeta(
        root=str(folder),
        run_id="r",
        workers=workers,
        shard_count=1,
        reward_fn="m:f",
        respawn=True,
        launches=dict.fromkeys(hosts, 3),
    )
    lines: list[str] = []
    crew = bringup.Crew(store, meta, hosts, launcher, 4, lambda _: None, lines.append)
    with pytest.raises(FleetError) as caught:
        bringup.bring_up(crew, 5.0)
    return caught.value, lines


NEVER = [
    error("n2", "connect"),
    error("n2", "hostkey"),
    error("n2", "auth", denied="account expired"),
    error("n2", "command", code="failed"),
]
PERHAPS = [error("n2", "reply"), error("n2", "timeout"), FleetError("host n2: who knows")]


@pytest.mark.parametrize("why", NEVER, ids=lambda e: e.stage)
def test_a_host_on_which_nothing_was_started_is_not_asked_to_stop(tmp_path, why):
    launcher = Scripted(n2=why)
    _, lines = fail(tmp_path, launcher, ["n1", "n2"])

    assert launcher.stopped == ["n1"]
    assert not [line for line in lines if "not stopped" in line]
    assert (tmp_path / "ctl" / "n2.stop").read_text() == "3\n"  # an answer may have been lost


@pytest.mark.parametrize("why", PERHAPS, ids=str)
def test_a_host_on_which_something_may_run_is_stopped(tmp_path, why):
    launcher = Scripted(n2=why)
    _, lines = fail(tmp_path, launcher, ["n1", "n2"])

    assert sorted(launcher.stopped) == ["n1", "n2"]
    words = str(why).removeprefix("host n2: ")
    assert f"host n2: not stopped: {words}" in lines  # its name once


def test_what_another_launch_runs_is_neither_stopped_nor_told_to_stop(tmp_path):
    launcher = Scripted(n2=error("n2", "command", code="already_running"))
    caught, lines = fail(tmp_path, launcher, ["n1", "n2"])

    assert launcher.stopped == ["n1"]
    assert not (tmp_path / "ctl" / "n2.stop").exists()
    assert (caught.exit_code, lines[0]) == (5, "FAIL start n2 rc=5 it is so")


def test_nothing_is_said_of_stopping_when_nothing_was_started(tmp_path):
    launcher = Scripted(n1=error("n1", "connect"), n2=error("n2", "connect"))
    _, lines = fail(tmp_path, launcher, ["n1", "n2"])

    assert launcher.stopped == []
    assert [line.split()[0] for line in lines] == ["FAIL", "FAIL"]


@pytest.mark.parametrize(
    ("stages", "code"),
    [
        (("hostkey",), 5),
        (("hostkey", "hostkey"), 5),
        (("hostkey", "connect"), 1),
        (("connect", "auth"), 1),
    ],
)
def test_unknown_host_keys_alone_are_a_refusal(tmp_path, stages, code):
    failures = {f"n{i}": error(f"n{i}", stage) for i, stage in enumerate(stages)}
    caught, _ = fail(tmp_path, Scripted(**failures), [*failures, "well"])

    assert caught.exit_code == code
