"""Hosts whose clocks are wrong, and a filesystem without links, by shims below Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ctlrun import Ctl, beats
from tests.support.waiting import kill_at_once, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

APPEND = "tests.support.functions_for_tests:append"
CENTURIES = 5_000_000_000
"""Seconds: two hundred years on, Python's clock would end."""
SKEWS = {"good": 0, "fast": 7200, "slow": -7200, "far": CENTURIES}
STALE = 6

CLOCK = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {
  long done = syscall(SYS_clock_gettime, which, now);
  const char *ahead = getenv("TEST_AHEAD");
  if (!done && which == CLOCK_REALTIME && ahead) now->tv_sec += atol(ahead);
  return done;
}
time_t time(time_t *there) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (there) *there = now.tv_sec;
  return now.tv_sec;
}
"""
NO_LINKS = r"""
#define _GNU_SOURCE
#include <errno.h>
int link(const char *a, const char *b) { errno = EOPNOTSUPP; return -1; }
int linkat(int a, const char *b, int c, const char *d, int e) { errno = EOPNOTSUPP; return -1; }
int renameat2(int a, const char *b, int c, const char *d, unsigned e) {
  errno = EINVAL;
  return -1;
}
"""


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc (Debian: apt install gcc libc6-dev)")
    with Ctl(tmp_path) as calls:
        yield calls


def shim(folder: Path, source: str) -> str:
    (folder / "shim.c").write_text(source)
    made = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, folder / "shim.c"], check=True)
    return str(made)


def append_tasks(ctl: Ctl, count: int, seconds: float = 0.0) -> tuple[Path, Path]:
    """A file of tasks that each write a line when they begin and end, and the file of the lines."""
    tasks, trace = ctl.folder / f"tasks{count}.jsonl", ctl.folder / f"trace{count}"
    rows = [{"args": [str(trace), f"t{i}", seconds]} for i in range(count)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tasks, trace


def check_once(ctl: Ctl, root: Path, count: int, seconds: float = 0.0) -> None:
    """Send tasks and wait: each was begun once, ended once, and has one good answer."""
    tasks, trace = append_tasks(ctl, count, seconds)
    out = ctl.folder / f"out{count}.jsonl"
    words = ["--batch-size", "1", "--wait", "-o", str(out)]
    done = ctl("submit", "--root", str(root), "--tasks", str(tasks), *words)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(row["index"] for row in rows) == list(range(count))
    assert {row["status"] for row in rows} == {"ok"}
    lines = Counter(trace.read_text().splitlines())
    assert len(lines) == 2 * count and set(lines.values()) == {1}


def test_clocks_of_hosts_that_are_wrong_restart_nobody_and_hide_nobody(ctl: Ctl) -> None:
    made, root = shim(ctl.folder, CLOCK), ctl.runs / "run"
    tables = [
        f'[hosts.{host}]\nenv = {{ LD_PRELOAD = "{made}", TEST_AHEAD = "{skew}" }}\n'
        for host, skew in SKEWS.items()
    ]
    (ctl.folder / "fleet.toml").write_text("".join(tables))
    env = {
        "FLEET_CONFIG": str(ctl.folder / "fleet.toml"),
        "FLEET_INTERVAL": "0.5",
        "FLEET_WATCH_STALE": str(STALE),
        "FLEET_RESTART_COOLDOWN": "0",
    }
    hosts = ",".join(SKEWS)
    started = ctl(
        *("start", "--root", str(root), "--fn", APPEND, "--hosts", hosts, "--watch"), **env
    )
    assert started.returncode == 0, started.stderr
    noted = root / "ctl" / "watch.pid"
    ctl.spawned.track(int(wait_until(lambda: noted.exists() and noted.read_text())))
    check_once(ctl, root, 40, 0.2)

    time.sleep(2 * STALE)  # in which a clock that is believed would make somebody stale
    told = {h["host"]: h for h in ctl.status(root)["hosts"]}
    assert {h["state"] for h in told.values()} == {"ready"}
    for host, skew in SKEWS.items():
        assert abs(told[host]["clock_skew_s"] - skew) < 10, "it is shown"
    log = root / "ctl" / "watch.log"
    assert not any(word in log.read_text() for word in ("UNHEALTHY", "revoked", "restart "))

    for host in ("fast", "slow"):
        files = [root / "ctl" / f"{host}.{name}" for name in ("wrap.pid", "pid")]
        kill_at_once(*(int(file.read_text()) for file in files))
        killed = time.monotonic()
        wait_until(lambda h=host: f"UNHEALTHY {h} " in log.read_text(), what="it is missed")
        print(f"{host} is missed after {time.monotonic() - killed:.1f} s, the limit is {STALE} s")
        wait_until(lambda h=host: f"restart {h} rc=0" in log.read_text(), what="it is started anew")
    assert not any(f"restart {host}" in log.read_text() for host in ("good", "far"))
    wait_until(lambda: all(b["ready"] for b in beats(root).values()), what="all are ready")
    wait_until(lambda: ctl.status(root)["state"] == "running", what="status says so")
    assert ctl("stop", "--root", str(root)).returncode == 0


def test_without_links_and_flags_of_rename_each_task_runs_once(ctl: Ctl) -> None:
    ctl.env["LD_PRELOAD"] = made = shim(ctl.folder, NO_LINKS)
    root = ctl.runs / "run"
    started = ctl("start", "--root", str(root), "--fn", APPEND, "--hosts", "n[1-4]")
    assert started.returncode == 0, started.stderr
    for host in ("n1", "n4"):
        pid = int((root / "ctl" / f"{host}.pid").read_text())
        assert made in Path(f"/proc/{pid}/maps").read_text(), "the worker has no links either"
    check_once(ctl, root, 200)
    assert ctl("stop", "--root", str(root)).returncode == 0
    assert ctl("cleanup", "--root", str(root)).returncode == 0
