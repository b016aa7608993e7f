"""What `ctl` makes of needs: refused, waiting and explained, and served by who joins later."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ctlrun import Ctl
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fleet

WHERE = "tests.support.client_functions:where"
TRAIN = (
    "import json, os; json.dump(dict(total_reward=1.0), open(os.environ['FLEET_CHECKPOINT'], 'w'))"
)
NEED = ("--need", "label=gpu", "--need", "memory=1M")


class Calls(Ctl):
    """Calls about one run."""

    root: Path

    def about(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Call a verb that must end with this code."""
        at = args.index("--") if "--" in args else len(args)
        done = self(*args[:at], "--root", str(self.root), *args[at:])
        assert done.returncode == code, done.stderr
        return done

    def job(self, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Submit a job."""
        command = ("--", sys.executable, "-c", TRAIN)
        return self.about("job", "submit", "--checkpoint", "checkpoint.json", *options, *command,
                          code=code)  # fmt: skip

    def result(self, job: str) -> dict[str, Any]:
        """What came of a job."""
        path = self.root / "outbox" / "jobs" / job / "result.json"
        wait_until(path.exists, what=f"the result of {job}")
        value: dict[str, Any] = json.loads(path.read_bytes())
        return value


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Calls]:
    calls = Calls(tmp_path)
    calls.root = calls.runs / "run"
    with calls:
        yield calls


def test_what_nobody_offers_is_refused_or_waits_and_explain_says_for_what(ctl: Calls) -> None:
    (ctl.folder / "fleet.toml").write_text('[hosts.n1]\n[hosts.n0]\nlabels = ["plain"]\n')
    (ctl.folder / "tasks.jsonl").write_text('{"args": []}\n' * 5)
    options = ("--fn", WHERE, "--hosts", "n0,n1", "--label", "any", "--attach", "guest")
    done = ctl("start", "--root", str(ctl.root), *options)
    assert done.returncode == 0, done.stderr
    submit = ("submit", "--tasks", str(ctl.folder / "tasks.jsonl"))
    for refused in (ctl.job(*NEED, code=5), ctl.about(*submit, *NEED, code=5)):
        assert "offers label gpu, memory 1 MiB: n" in refused.stderr
        assert "n0 lacks label gpu" in refused.stderr and "--wait-for-workers" in refused.stderr

    waiting = ctl.job(*NEED, "--wait-for-workers").stdout.strip()
    ctl.about(*submit, *NEED, "--wait-for-workers", "--stream", "s")
    served = ctl.job("--need", "label=plain", "--need", "label=any").stdout.strip()
    assert ctl.result(served)["worker_id"] == "n0"
    told = ctl.about("explain", waiting).stdout
    assert "pending" in told and "it waits for a worker that offers that: none does" in told
    assert "n1 lacks label gpu" in told
    assert "needs      label gpu, memory 1 MiB" in ctl.about("job", "show", waiting).stdout
    assert ctl.about("status").returncode == 0
    ctl.about("fsck")

    argv = [sys.executable, "-m", "fsworker", "attach", "--root", str(ctl.root), "--name", "guest"]
    ctl.spawned.start([*argv, "--labels", "gpu"], env=ctl.env)
    assert ctl.result(waiting)["worker_id"] == "guest"
    ctl.about("results", "s", "-o", str(ctl.folder / "out"), "--timeout", "60s")
    lines = (ctl.folder / "out").read_text().splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["guest"] * 5
    assert ctl.job(*NEED, "--dry-run", "--json").stdout.count('"gpu"') == 1
    ctl.about("fsck")
    ctl.about("stop")
