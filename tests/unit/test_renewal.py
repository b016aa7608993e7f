"""Keeping a run from a purge: what must stay is young again, and no time that counts has moved."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ctl import renewal
from ctl.cli import main
from ctl.errand import Errands
from ctl.observe import Observer
from ctl.renewal import DAY, Times, times_of
from fsworker.protocol import layout
from tests.support.runs import beat, make_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit

OLD = 30 * DAY
BATCH = layout.batch_id("s", "b" * 12, 1)
OWNER = layout.Owner("n1", "a" * 12)
TOKEN = layout.Token(BATCH, 0, 0, 0)
DONE = layout.outcome(OWNER, TOKEN.claimed()).done

TIMES = {
    layout.MANIFEST: Times.BOTH,
    layout.MARKER: Times.BOTH,
    layout.LAUNCH_META: Times.AGED,
    layout.host_file("n1", "identity.json"): Times.BOTH,
    layout.host_file("n1", "stop"): Times.BOTH,
    layout.LaunchToken("n1", 3, "0" * 8).path: Times.BOTH,
    layout.WATCH_LOCK: Times.BOTH,
    "ctl/.verb.lock": Times.BOTH,
    "ctl/tokens/abc.json": Times.BOTH,
    "bundle/fsworker-0123456789abcdef.pyz": Times.BOTH,
    layout.WATCH_LOG: Times.READ,
    layout.EVENTS: Times.READ,
    layout.cancel_path("x", "0" * 8): Times.READ,
    layout.inbox_path(TOKEN): Times.READ,
    layout.claim_path(OWNER, TOKEN.claimed()): Times.READ,
    DONE: Times.BOTH,
    DONE.replace(".done", ".result"): Times.BOTH,
    "outbox/s/.ids~0123456789ab.jsonl": Times.BOTH,
    "outbox/jobs/j/job.json": Times.READ,
    "outbox/jobs/j/after_ep_0001/checkpoint.pt": Times.BOTH,
    "outbox/jobs/j/after_ep_0001/done.json": Times.BOTH,
    "outbox/jobs/j/train.log": Times.BOTH,
    "outbox/jobs/j/attempts/1~aaaaaaaaaaaa/model.pt": Times.READ,
    "outbox/federation/g/from_worker/after_ep_0001/j/checkpoint.pt": Times.READ,
    "outbox/federation/.aggregator.json": Times.READ,
    "outbox/federation/.aggregator~0123456789ab.json": Times.READ,
    "outbox/federation/g/to_worker/before_ep_0002/global_weights.pt": Times.READ,
    "dead/x": Times.BOTH,
    "dead/x.reason.json": Times.READ,
    "quarantine/x": Times.BOTH,
    layout.status_path("n1"): Times.NONE,
    layout.temporary(layout.inbox_path(TOKEN), "1-2"): Times.NONE,
    "outbox/s/.nfs0000000000": Times.NONE,
    "ctl/.renewed-20000": Times.NONE,
}


@pytest.mark.parametrize("rel", TIMES)
def test_which_times_of_a_file_may_be_new(rel: str) -> None:
    assert times_of(rel) is TIMES[rel]
    assert times_of(rel, folder=True) is (Times.NONE if TIMES[rel] is Times.NONE else Times.READ)


def aged(root: Path) -> float:
    """A time long ago, which all that lies there is given."""
    then = float(int(time.time() - OLD))
    for path in [root, *root.rglob("*")]:
        os.utime(path, (then, then), follow_symlinks=False)
    return then


def test_a_pass_renews_what_is_old_once_and_moves_no_time_that_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", "n1")
    root, outside = tmp_path / "run", tmp_path / "outside"
    outside.touch()
    beat(root)
    for rel in TIMES:
        (root / rel).parent.mkdir(parents=True, exist_ok=True)
        (root / rel).touch()
    (root / "inbox" / "link").symlink_to(outside)
    then = aged(tmp_path)

    begun = time.time()
    assert main(["renew", "--root", run.root]) == 0
    for rel, times in TIMES.items():
        found = os.stat(root / rel) if (root / rel).exists() else None
        if found is None:
            assert "renewed" in rel  # the mark of an earlier day
            continue
        read = found.st_atime >= begun - 1
        assert read is (times is not Times.NONE), rel
        changed = {Times.BOTH: begun, Times.AGED: begun - DAY}.get(times, then)
        assert abs(found.st_mtime - changed) < 60, rel
    assert os.stat(outside).st_atime == then
    assert os.stat(root / "inbox" / "0").st_mtime == then
    report = Observer(run.store).look()
    assert report.renewed == int(report.now // DAY) and not renewal.is_over(
        report.renewed, report.now
    )
    assert renewal.is_over(report.renewed, report.now + DAY)

    capsys.readouterr()
    assert main(["renew", "--root", run.root]) == 0
    assert capsys.readouterr().out.startswith("renewed 0 of ")


def test_what_others_own_is_passed_over_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, "n1")
    (tmp_path / layout.inbox_path(TOKEN)).parent.mkdir(exist_ok=True)
    (tmp_path / layout.inbox_path(TOKEN)).touch()
    aged(tmp_path)

    def refuse(path: str) -> None:
        if path.endswith(".0.0"):
            raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(renewal, "_as_read", refuse)
    assert main(["renew", "--root", run.root]) == 0
    assert f"1 belong to others, as {run.store.path(layout.inbox_path(TOKEN))}" in (
        capsys.readouterr().err
    )


def test_a_watcher_has_it_done_by_an_errand(tmp_path: Path) -> None:
    run = make_run(tmp_path, "n1")
    errands = Errands(run.root)
    errands.turn(run.meta, time.monotonic())
    assert renewal.day_of(run.store.scan(layout.CTL)) == 0
    errands.turn(run.meta, time.monotonic(), old=True)
    wait_until(lambda: renewal.day_of(run.store.scan(layout.CTL)) > 0)
    errands.close()
