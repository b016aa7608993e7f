"""New code on the way through a run: who has which, by status and by the doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ctlrun import Ctl
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fleet

GRADE = "drifting_grader:grade"


def drift(ctl: Ctl, root: Path) -> list[dict[str, Any]]:
    """What `status --json` says of functions and packages."""
    found = ctl.status(root)["drift"]
    return [one for one in found if one["what"] in ("function", "packages")]


def old_enough(ctl: Ctl, root: Path) -> bool:
    """Whether the workers have beaten often enough for a later one to be younger for certain."""
    beats = [host["raw"] for host in ctl.status(root)["hosts"]]
    return all(beat and beat["seq"] >= 8 for beat in beats)


def test_new_code_is_told_from_old_until_every_host_has_it(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "drifting_grader.py").write_text("def grade(x): return x\n")
    with Ctl(tmp_path, FLEET_REPO=str(repo), FLEET_SLOT_START="spawn") as ctl:
        root = ctl.runs / "run"
        done = ctl("start", "--root", str(root), "--hosts", "n1,n2", "--fn", GRADE)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: old_enough(ctl, root), what="some beats")
        assert drift(ctl, root) == []

        (repo / "drifting_grader.py").write_text("def grade(x): return x + 1\n")
        (repo / "drift_example-1.5.dist-info").mkdir()
        assert ctl("restart-host", "n2", "--root", str(root)).returncode == 0
        function, packages = drift(ctl, root)
        assert (function["what"], function["name"]) == ("function", "drifting_grader.grade")
        assert [(h["host"], h["age"]) for h in function["hosts"]] == [("n1", "older")]
        assert packages["packages"] == {"n1": {"drift-example": [None, "1.5"]}}
        lines = json.loads(ctl("status", "--root", str(root)).stdout.splitlines()[0])["drift"]
        assert len(lines) == 1 and lines[0].startswith("n1 differs: "), lines
        done = ctl("doctor", "--root", str(root), "--json")
        told = {c["host"]: c["level"] for c in json.loads(done.stdout)["checks"]
                if c["what"] == "worker"}  # fmt: skip
        assert told == {"n1": "warn"}, "its worker runs what is no longer there"

        assert ctl("restart-host", "n1", "--root", str(root)).returncode == 0
        assert drift(ctl, root) == []
