"""A script written for the controller before this one, unchanged but for the program's name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ctlrun import ECHO, REPO, Ctl, json_lines, started
from tests.support.waiting import gone, wait_until, with_environ

pytestmark = pytest.mark.fleet

SCRIPT = r"""
set -eu
CTL="$PYTHON -m ctl"
RUN_ID=$(date +%Y%m%d_%H%M%S)_0a1b2c3d
ROOT="$REWARD_ROOT/exp1/trial1/$RUN_ID"
WORKERS='[{"host": "node1", "shard": 0, "concurrency": 1}, {"host": "node2", "shard": 0}]'

$CTL start --root "$REWARD_ROOT" --experiment exp1 --trial trial1 --run-id "$RUN_ID" \
    --reward-fn "$FUNCTION" --workers-json "$WORKERS" --shard-count 2 --ready-timeout 60 \
    --heartbeat-stale 15 --ws "$SAO_WS" --venv "$VENV" --repo "$REPO" \
    --env AREAL_MATH_VERIFY_SOFT_TIMEOUT=1 > out.start

# The lines that begin with { are JSON, the last one says that all are ready.
grep '^{' out.start | tail -n 1 | $PYTHON -c '
import json, sys
line = json.load(sys.stdin)
assert line["ok"] is True and line["phase"] == "ready", line
print(line["root"])' > out.root
test "$(cat out.root)" = "$ROOT"
grep -q '^started host=node1 wrap_pid=[0-9]* worker_pid=[0-9]* respawn=1$' out.start

# The current run, as other scripts find it.
$PYTHON -c '
import json, os
meta = json.load(open(os.environ["SAO_WS"] + "/tmp/sao-reward-current.json"))
assert meta["root"] == open("out.root").read().strip(), meta
for key in "root run_id workers shard_count reward_fn respawn".split():
    assert key in meta, key
saved = json.load(open(meta["root"] + "/ctl/launch_meta.json"))
manifest = json.load(open(meta["root"] + "/manifest.json"))
for key in "experiment_name trial_name run_id reward_fn shard_count workers".split():
    assert key in manifest, key
assert saved["workers"] == meta["workers"] == manifest["workers"], saved
assert [{k: w[k] for k in ("host", "shard", "concurrency")} for w in saved["workers"]] == [
    {"host": "node1", "shard": 0, "concurrency": 1},
    {"host": "node2", "shard": 0, "concurrency": 48}], saved
'

$CTL status > out.status

# By hand: a worker that is killed comes back, one that is told to stop does not.
OLD=$(cat "$ROOT/ctl/node1.pid")
kill "$OLD"
touch "$ROOT/ctl/node2.stop"
for i in $(seq 300); do
    NEW=$(cat "$ROOT/ctl/node1.pid" 2>/dev/null || true)
    if [ -n "$NEW" ] && [ "$NEW" != "$OLD" ] && [ ! -e "$ROOT/ctl/node2.pid" ] \
        && [ ! -e "$ROOT/ctl/node2.wrap.pid" ]; then break; fi
    sleep 0.1
done
test "$NEW" != "$OLD"
test ! -e "$ROOT/ctl/node2.wrap.pid"

$CTL restart-host --host node2 > out.restart
test ! -e "$ROOT/ctl/node2.stop"

$CTL watch --heartbeat-stale 60 --interval 10 --restart-cooldown 30 > out.watch 2>&1 &
WATCH=$!
for i in $(seq 300); do [ -e "$ROOT/ctl/watch.pid" ] && break; sleep 0.1; done
test "$(cat "$ROOT/ctl/watch.pid")" = "$WATCH"

$CTL stop --grace 100 > out.stop
wait "$WATCH" || true
test ! -e "$ROOT/ctl/node1.pid"
test ! -e "$ROOT/ctl/node1.wrap.pid"
$CTL cleanup --root "$ROOT" > out.cleanup
tail -n 1 out.cleanup | grep -qx "removed $ROOT"
$CTL cleanup --root "$ROOT" | grep -qx "missing $ROOT"
"""


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        for name in ("FLEET_WORKSPACE", "FLEET_ROOT", "FLEET_CONCURRENCY"):
            del calls.env[name]
        calls.env |= {
            "SAO_REWARD_WORKER_HOSTS": "node2  node1\tnode3",
            "SAO_WS": str(calls.ws),
            "REWARD_ROOT": str(calls.runs),
            "FUNCTION": ECHO,
            "PYTHON": sys.executable,
            "VENV": sys.prefix,
            "REPO": str(REPO),
        }
        yield calls


def test_the_script_runs_unchanged(ctl: Ctl) -> None:
    done = subprocess.run(
        ["bash", "-x", "-c", SCRIPT],
        capture_output=True, text=True, env=ctl.env, cwd=ctl.folder, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "note: hosts is taken from SAO_REWARD_WORKER_HOSTS" in done.stderr
    meta, *hosts = json_lines((ctl.folder / "out.status").read_text())
    assert meta["meta"]["heartbeat_stale"] == 15.0
    assert meta["meta"]["env"]["AREAL_MATH_VERIFY_SOFT_TIMEOUT"] == "1"
    wanted = {
        "host", "ok", "reason", "heartbeat_age_s", "status_pid", "ready", "pidfile",
        "wrap_pidfile", "raw",
    }  # fmt: skip
    for host in hosts:
        assert wanted <= set(host)
        assert (host["ok"], host["reason"], host["ready"]) == (True, "ok", True)
        assert host["pidfile"] == host["status_pid"] == host["raw"]["pid"]
    assert [host["host"] for host in hosts] == ["node1", "node2"]
    assert started((ctl.folder / "out.restart").read_text())["node2"]["respawn"] == "1"
    assert with_environ(ctl.entry) == []


def test_workers_have_the_environment_that_scripts_set_up(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(
        root, "--hosts", "node1", "--concurrency", "1", "--venv", sys.prefix,
        "--repo", str(ctl.folder), "--env", "COLOUR=blue green", "--env", "QUOTE='$HOME\"",
    )  # fmt: skip
    pid = int((root / "ctl" / "node1.pid").read_text())
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    env = dict(entry.split("=", 1) for entry in entries if entry)
    assert env["HOME"] == f"{ctl.ws}/home"
    assert env["TMPDIR"] == f"{ctl.ws}/tmp"
    assert env["PATH"].split(":")[0] == f"{sys.prefix}/bin"
    assert env["PYTHONPATH"].split(":")[0] == str(ctl.folder)
    assert (env["COLOUR"], env["QUOTE"]) == ("blue green", "'$HOME\"")
    assert env["FLEET_HOST"] == "node1"
    assert os.path.isdir(env["HOME"]) and os.path.isdir(env["TMPDIR"])


def test_without_workers_every_allowed_host_has_one(ctl: Ctl) -> None:
    told = ctl("start", "--dry-run")
    assert told.returncode == 0, told.stderr
    workers = json_lines(told.stdout)[0]["workers"]
    assert [(w["host"], w["shard"], w["concurrency"]) for w in workers] == [
        (f"node{i + 1}", i, 48) for i in range(3)
    ]
    assert json_lines(told.stdout)[0]["root"] == str(ctl.runs)
    assert json_lines(told.stdout)[0]["reward_fn"] == "areal.reward.gsm8k.gsm8k_reward_fn"


def test_a_root_that_ends_in_the_id_is_not_nested_again(ctl: Ctl) -> None:
    root = ctl.runs / "e" / "t" / "id7"
    args = ("--experiment", "e", "--trial", "t", "--run-id", "id7", "--dry-run")
    for base in (root, ctl.runs):
        told = ctl("start", "--root", str(base), *args)
        assert json_lines(told.stdout)[0]["root"] == str(root)


def test_a_run_without_wrapper(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    done = ctl("start", "--root", str(root), "--reward-fn", ECHO, "--hosts", "node1",
               "--concurrency", "1", "--no-respawn")  # fmt: skip
    row = started(done.stdout)["node1"]
    assert (row["wrap_pid"], row["respawn"]) == ("-", "0"), done.stderr
    pid = int((root / "ctl" / "node1.pid").read_text())
    assert not (root / "ctl" / "node1.wrap.pid").exists()
    assert ctl("status").returncode == 0
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: gone(pid), what="the end of the worker")
    wait_until(lambda: not (root / "ctl" / "node1.pid").exists(), what="the end of its pid file")
    assert ctl("status").returncode == 3


def test_the_prefix_variable_may_name_a_run_itself(ctl: Ctl) -> None:
    root = ctl.runs
    done = ctl("start", "--reward-fn", ECHO, "--hosts", "node1", "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads((root / "manifest.json").read_text())["reward_fn"] == ECHO
    inside = ctl("start", "--root", str(root / "sub"), "--reward-fn", ECHO)
    assert (inside.returncode, "inside another run root" in inside.stderr) == (5, True)
    assert ctl("status", SAO_WS=str(ctl.folder / "elsewhere")).returncode == 0
    assert ctl("stop").returncode == 0
    assert ctl("cleanup").returncode == 0
    assert not root.exists()
