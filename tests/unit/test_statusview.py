"""One look at a root: reasons, ages, states and backlog, from files alone."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ctl import roots, statusview
from fsworker.protocol import layout
from tests.support.runs import beat, make_run

pytestmark = pytest.mark.unit

CASES = Path(__file__).parents[1] / "data" / "status"


def only(run: roots.Run, stale: float = 15.0) -> statusview.HostStatus:
    (host,) = statusview.look(run, stale).hosts
    return host


@pytest.mark.parametrize(
    ("fields", "age", "reason", "state", "run_state"),
    [
        ({}, 0.0, "ok", "ready", "running"),
        ({}, 14.0, "ok", "ready", "running"),
        ({}, 16.0, "heartbeat_stale", "stale", "not running"),
        ({"ready": False}, 0.0, "not_ready", "starting", "degraded"),
        ({"draining": True}, 0.0, "not_ready", "draining", "degraded"),
        ({"stopped": True, "ready": False}, 0.0, "not_ready", "stopped", "not running"),
        ({"wrapped": False}, 0.0, "ok", "unwrapped", "degraded"),
        ({"refused": "no such function"}, 0.0, "not_ready", "stuck starting", "degraded"),
    ],
)
def test_reason_and_state_of_a_host(
    tmp_path: Path, fields: dict[str, Any], age: float, reason: str, state: str, run_state: str
) -> None:
    run = make_run(tmp_path)
    beat(tmp_path, age, **fields)
    look = statusview.look(run, 15.0)
    found = look.hosts[0]
    assert (found.reason, found.state, look.state) == (reason, state, run_state)
    assert found.age == pytest.approx(age, abs=1.0)


@pytest.mark.parametrize(
    ("seq", "state"), [(5, "starting"), (29, "starting"), (40, "stuck starting")]
)
def test_a_life_of_an_old_launch_gets_its_own_time_to_be_ready(
    tmp_path: Path, seq: int, state: str
) -> None:
    run = make_run(tmp_path)
    old = time.time() - 7200
    os.utime(tmp_path / layout.LAUNCH_META, (old, old))
    beat(tmp_path, ready=False, seq=seq)
    found = only(run)
    assert (found.reason, found.state) == ("not_ready", state)


def test_no_heartbeat_is_missing_and_the_run_not_running(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    look = statusview.look(run, 15.0)
    assert (look.hosts[0].reason, look.state) == ("status_missing", "not running")


# The one from the year 5138 is a good heartbeat of a strange clock: a test below has it.
BAD = sorted(p.name for p in CASES.iterdir() if p.name != "year_5138.json")


@pytest.mark.parametrize("name", BAD)
def test_a_status_file_that_is_none_is_bad_and_never_an_exception(
    tmp_path: Path, name: str
) -> None:
    run = make_run(tmp_path)
    shutil.copy(CASES / name, tmp_path / "status" / "n1.json")
    look = statusview.look(run, 15.0)
    assert (look.hosts[0].reason, look.state) == ("status_bad", "unknown")
    json.dumps(look.hosts[0].fields(), allow_nan=False)


def test_a_status_that_is_a_folder_is_bad(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "status" / "n1.json").mkdir()
    found = only(run)
    assert found.reason == "status_bad"
    assert "n1.json" in found.words


@pytest.mark.parametrize("skew", [7200.0, -7200.0, 98_000_000_000.0])
def test_a_strange_clock_is_shown_and_decides_nothing(tmp_path: Path, skew: float) -> None:
    run = make_run(tmp_path)
    beat(tmp_path, 0.0, heartbeat_at=time.time() + skew)
    found = only(run)
    assert (found.reason, found.state) == ("ok", "ready")
    assert found.skew == pytest.approx(skew, abs=2.0)


def test_a_record_of_another_host_is_flagged_and_not_believed(tmp_path: Path) -> None:
    run = make_run(tmp_path, "n1", "n2")
    beat(tmp_path, name="n1")
    beat(tmp_path, name="n2", host="n1", pid=1)
    beat(tmp_path, name="n3")
    look = statusview.look(run, 15.0)
    assert [(h.host, h.reason) for h in look.hosts] == [("n1", "ok"), ("n2", "status_bad")]
    assert "is the heartbeat of 'n1', not of 'n2'" in look.hosts[1].words
    assert look.hosts[1].beat is None
    assert look.strangers == ("n3.json",)
    assert look.state == "degraded"


def test_the_name_that_a_machine_gives_itself_does_not_matter(tmp_path: Path) -> None:
    run = make_run(tmp_path, "n1", "n2")
    for name in ("n1", "n2"):
        beat(tmp_path, name=name, hostname="localhost")
    assert statusview.look(run, 15.0).state == "running"


@pytest.mark.parametrize(
    ("text", "pid"),
    [("123\n", 123), ("0", None), ("-1", None), ("1", None), ("", None), ("123abc", None)],
)
def test_a_pid_file_is_shown_only_if_it_is_one(tmp_path: Path, text: str, pid: int | None) -> None:
    run = make_run(tmp_path)
    (tmp_path / "ctl" / "n1.pid").write_text(text)
    assert only(run).pid == pid


def test_a_stop_intent_of_the_launch_shows_a_host_as_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    states = {}
    for content in ("0", "1", "", "by hand"):
        (tmp_path / "ctl" / "n1.stop").write_text(content)
        states[content] = only(run).state
    assert states == {"0": "starting", "1": "stopped", "": "stopped", "by hand": "stopped"}


def test_the_backlog_counts_batches_and_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path, "n1", "n2")
    owner = layout.Owner("n1", "0123456789ab")
    for folder in ("inbox/0", "inbox/7", "inbox/other", owner.folder, "claims/x"):
        (tmp_path / folder).mkdir()
    names = [layout.batch_id("s", "0123456789ab", i) for i in range(4)]
    for name, shard in zip(names, (0, 0, 7, 0), strict=True):
        (tmp_path / layout.inbox_path(layout.Token(name, shard))).touch()
    (tmp_path / layout.claim_path(owner, layout.Token(names[0], 1, 1))).touch()
    for name in ("inbox/0/.nfs0001", "inbox/0/.tmp~x", "inbox/0/README", "inbox/other/y"):
        (tmp_path / name).touch()
    assert statusview.backlog(run).rows(2) == [
        {"shard": 0, "pending": 3, "claimed": 0},
        {"shard": 1, "pending": 0, "claimed": 1},
        {"shard": 7, "pending": 1, "claimed": 0},
    ]


def test_a_hundred_hosts_cost_a_fixed_number_of_calls_and_little_time(tmp_path: Path) -> None:
    hosts = [f"n{i}" for i in range(100)]
    run = make_run(tmp_path, *hosts)
    for host in hosts:
        beat(tmp_path, name=host)
        for suffix in ("pid", "wrap.pid"):
            (tmp_path / "ctl" / f"{host}.{suffix}").write_text("4711\n")
    run.store.calls.clear()
    begun = time.process_time()
    look = statusview.look(run, 15.0)
    assert time.process_time() - begun < 0.3
    assert (look.state, len(look.hosts)) == ("running", 100)
    # A heartbeat and two pid files a host; the rest is listings and the probe.
    assert run.store.calls.total() <= 300 + 10
