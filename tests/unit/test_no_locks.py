"""On a filesystem without `flock` there are no locks: no file that was left keeps anybody out.

Shown below Python, by a shim, since it is the lock's library that would do otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsworker.protocol import layout
from fsworker.protocol.layout import groups
from tests.support.roots import make_root

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]
SHIM = "#include <errno.h>\nint flock(int fd, int how) { errno = ENOSYS; return -1; }\n"
WITHOUT = """
import sys
from ctl.locks import record, verb_lock
from ctl.rootchild import RootChild
from ctl.streams import is_locked, locked
from fedavg.aggregator import leadership
from fsworker.protocol.fsops import Store

root = sys.argv[1]
store = Store(root)
for _ in range(2):
    watchers = [RootChild(root), RootChild(root)]
    assert all("a second watcher would not be noticed" in one.lock() for one in watchers)
    with verb_lock(store, "one", patience=0), verb_lock(store, "two", patience=0):
        record(store, "scale")
    with locked(store, "s", "lock"), locked(store, "s", "lock"):
        pass
    with leadership(store) as one, leadership(store) as other:
        assert (one, other) == (False, False)
print("all let in")
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="a shim needs gcc")
def test_without_flock_everybody_is_let_in_also_past_files_that_an_earlier_lock_left(
    tmp_path: Path,
) -> None:
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c"], check=True)
    root = tmp_path / "run"
    make_root(root)
    for name in (layout.WATCH_LOCK, layout.CTL + "/.verb.lock", groups.AGGREGATOR_LOCK):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    env = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(REPO)}
    argv = [sys.executable, "-W", "error", "-c", WITHOUT, str(root)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all let in\n"), done.stderr
