"""A root without room amid work: a full disk, and a quota of which only the end of a file tells.

Nobody is restarted for it, nothing is lost, all goes on by itself, and people are told why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fsworker.client import Client
from tests.support.ctlrun import Ctl
from tests.support.folders import tiny_filesystem
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tiny filesystem needs root"),
]

HOSTS = ("n1", "n2", "n3")
SLEEP = "tests.support.functions_for_tests:sleep"
TASKS = 120
SILENT = 15
"""Seconds of silence: three times what makes a watcher suspect a host."""
WATCH = {
    "FLEET_INTERVAL": "1",
    "FLEET_WATCH_STALE": "5",
    "FLEET_RESTART_COOLDOWN": "1",
    "FLEET_FENCE_AFTER": "2",
}
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* While DISK has a file `over`, what is written there is refused, at fsync or close and not before:
   as an NFS client does, which sends it only then. */
static int refused(int fd) {
  char name[64], path[4096];
  struct stat found;
  if (access(DISK "/over", F_OK)) return 0;
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(name, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  if (strncmp(path, DISK "/", strlen(DISK) + 1)) return 0;
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return 0;
  if (fstat(fd, &found) || !S_ISREG(found.st_mode) || !found.st_size) return 0;
  return ftruncate(fd, 0) == 0;
}
int fsync(int fd) {
  static int (*real)(int);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fsync");
  if (refused(fd)) { errno = EDQUOT; return -1; }
  return real(fd);
}
int close(int fd) {
  static int (*real)(int);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "close");
  int over = refused(fd), done = real(fd);
  if (over) errno = EDQUOT;
  return over ? -1 : done;
}
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_filesystem(tmp_path / "disk", 6) as place:
        yield place


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


def preload(folder: Path, disk: Path) -> dict[str, str]:
    """The environment of processes that learn at the end of a file that it is not taken."""
    (folder / "shim.c").write_text(_SHIM)
    argv = ["gcc", "-shared", "-fPIC", f'-DDISK="{disk}"', "-o", folder / "shim.so"]
    subprocess.run([*argv, folder / "shim.c", "-ldl"], check=True)
    return {"LD_PRELOAD": str(folder / "shim.so")}


def fill(disk: Path) -> None:
    """Take every page that is free, as others would who write there."""
    with open(disk / "filler", "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


@pytest.mark.parametrize(
    ("kind", "words"), [("full", "No space left on device"), ("quota", "Disk quota exceeded")]
)
def test_without_room_nobody_is_restarted_and_work_waits(
    ctl: Ctl, disk: Path, kind: str, words: str
) -> None:
    full, root = kind == "full", disk / "run"
    env = {**WATCH, "FLEET_CONCURRENCY": "2", **({} if full else preload(ctl.folder, disk))}
    hosts = ("--hosts", ",".join(HOSTS), "--fn", SLEEP, "--watch")
    done = ctl("start", "--root", str(root), *hosts, **env)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: "watching" in log(root, "watch"), what="the watcher")
    before = lives(root)
    with Client(root) as client:
        answers: list[Future[Any]] = [client.submit(SLEEP, 0.2 + i / 1e6) for i in range(TASKS)]
        wait_until(lambda: sum(f.done() for f in answers) >= 6, what="the first answers")
        hold, give = room(disk, full)
        hold()
        silent_since = time.monotonic()
        shown: dict[str, Any] = {}

        def unknown() -> bool:
            hold()
            if time.monotonic() - silent_since > SILENT:
                status = ctl("status", "--root", str(root), "--json", **env)
                shown.update(json.loads(status.stdout), said=status.stderr)
            return shown.get("state") == "unknown"

        wait_until(unknown, what="status does not call the run ended")
        given = sum(f.done() for f in answers)
        give()
        values = [future.result(120) for future in answers]
    assert given < TASKS, "there was work left"
    assert values == [0.2 + i / 1e6 for i in range(TASKS)]
    assert words in shown["storage_refuses"] and words in shown["said"]
    suspected = f"it was suspected: cannot use the run root: {words}"
    wait_until(lambda: suspected in log(root, "watch"), what="the watcher's words")
    assert " restart " not in log(root, "watch") and lives(root) == before
    again = rf"the heartbeat is written again; for \d+ s it was not: .*{words}"
    wait_until(lambda: all(re.search(again, log(root, host)) for host in HOSTS), what="their words")
    assert ctl("fsck", "--root", str(root)).returncode == 0
    assert [p for f in ("inbox", "claims", "dead", "quarantine") for p in files(root / f)] == []
    stopped = ctl("stop", "--root", str(root), "--grace", "100")
    assert stopped.returncode == 0, stopped.stderr


def room(disk: Path, full: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """What takes all room, to be done again and again, and what gives it back."""
    if full:
        return partial(fill, disk), (disk / "filler").unlink
    return (disk / "over").touch, (disk / "over").unlink


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def log(root: Path, name: str) -> str:
    path = root / "ctl" / f"{name}.log"
    return path.read_text(errors="replace") if path.exists() else ""


def lives(root: Path) -> dict[str, tuple[int, int]]:
    """The process and the launch of each worker."""
    beats = {host: json.loads((root / "status" / f"{host}.json").read_text()) for host in HOSTS}
    return {host: (beat["pid"], beat["launch"]) for host, beat in beats.items()}
