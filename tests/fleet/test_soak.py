"""The soak in short: processes are killed with a seed while tasks go through, and all are answered.

The long one is `make soak`. This one shows that the harness and the promises hold together.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from pathlib import Path

import pytest

from tests.support.waiting import Spawned

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

REPO = Path(__file__).parents[2]
BENCH = REPO / "bench"
SEED = 5


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def test_every_task_is_answered_once_while_processes_are_killed(tmp_path: Path) -> None:
    told = tmp_path / "soak.json"
    env = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(REPO)}
    argv = [sys.executable, str(BENCH / "soak.py"), "--check", "--json", str(told)]
    argv += ["--seed", str(SEED), "--seconds", "8", "--every", "0.6", "--audit-every", "8"]
    with Spawned() as spawned, open(tmp_path / "out", "w+b") as out:
        soak = spawned.start(argv, env=env, stdout=out, stderr=out)
        code = soak.wait(170)
    said = (tmp_path / "out").read_text()
    assert code == 0, said
    document = json.loads(told.read_text())
    figures = document["figures"]
    assert sum(figures["kills"].values()) >= 8, said
    assert len(figures["kills"]) >= 3, "kills of several kinds"
    assert figures["answered"] >= 500, said
    assert [t["what"] for t in document["targets"] if t["met"] is False] == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith("soak-")]


def test_a_result_that_is_lost_or_comes_twice_is_told(bench: None, tmp_path: Path) -> None:
    from soak_record import Kind, Progress, Reader, Writer

    path = str(tmp_path / "record")
    first, second = Writer(path, 1), Writer(path, 2)
    first.add(Kind.SENDING, 4)
    first.add(Kind.FUTURE, 0)
    second.add(Kind.RECOVERED, 0)
    second.add(Kind.FUTURE, 2)
    progress = Progress()
    reader = Reader(path)
    firsts = [row.number for row in reader.news() if progress.take(row)]
    assert (firsts, progress.done, progress.gaps()) == ([0, 2], 2, [1, 3])
    with open(path, "ab") as file:
        file.write(b"cut")
    assert list(reader.news()) == [], "a row that is not whole is none"


def test_only_the_last_task_of_a_slot_that_was_killed_may_crash(
    bench: None, tmp_path: Path
) -> None:
    import soak_task

    for name, numbers in {"7.100": [1, 2], "7.300": [3, 4], "8.100": [5]}.items():
        (tmp_path / name).write_bytes(array(soak_task.NUMBER, numbers).tobytes())
    assert soak_task.last_of(str(tmp_path), [(7, 200)]) == {2}, "the pid was used again later"
    assert soak_task.last_of(str(tmp_path), [(7, 400), (8, 50), (9, 400)]) == {4}
    assert soak_task.executions(str(tmp_path)) == dict.fromkeys(range(1, 6), 1)


def test_a_commit_that_is_made_twice_is_seen(bench: None, tmp_path: Path) -> None:
    from fsworker.protocol import layout
    from fsworker.protocol.layout import Owner, Token
    from soak_commits import Commits
    from soak_processes import Process
    from tests.support.waiting import wait_until

    (tmp_path / "claims").mkdir()
    stream = tmp_path / "outbox" / "s"
    with Commits(str(tmp_path), "s") as commits:
        batch = layout.batch_id("s", "c0ffee000001", 0)
        owners = [Owner("h", "aaaaaaaaaaaa"), Owner("h", "bbbbbbbbbbbb")]
        commits.killed(Process("worker", "h", 1, owners[0].incarnation))
        for attempt, owner in enumerate(owners, 1):
            (tmp_path / owner.folder).mkdir()
            time.sleep(0.2)  # so that a wait that ends too early shows
            outcome = layout.outcome(owner, Token(batch, 0, attempt))
            (tmp_path / "made").write_bytes(b"")
            (tmp_path / "made").rename(tmp_path / outcome.done)
        wait_until(lambda: commits.twice(), what="both commits are seen")
        assert commits.twice() == {batch: 2}
        assert commits.waits[0].seconds is not None, "a new life has committed"
        assert commits.waits[0].seconds >= 0.4, "and only that counts"
    assert len(os.listdir(stream)) == 2
