"""`ctl submit` and `ctl results` as people and schedulers treat them: killed, and run again."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.protocol import layout
from tests.support.fleet import MISBEHAVE, REPO, Fleet
from tests.support.waiting import Spawned, wait_until

pytestmark = pytest.mark.fleet

TASKS = 600


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned() as spawned:
        yield spawned


@pytest.fixture
def fleet(tmp_path: Path, spawned: Spawned) -> Fleet:
    return Fleet(tmp_path / "run", spawned)


def _tasks(tmp_path: Path, count: int = TASKS) -> Path:
    path, notes = tmp_path / "tasks.jsonl", str(tmp_path / "notes")
    lines = ({"args": [notes, i], "id": f"task {i}"} for i in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _argv(verb: str, root: Path, *words: object) -> list[str]:
    return [sys.executable, "-m", "ctl", verb, "--root", str(root), *map(str, words)]


def _ctl(verb: str, root: Path, *words: object) -> subprocess.CompletedProcess[str]:
    argv = _argv(verb, root, *words)
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=240, check=False)


_KILLED = """
import os, sys
folder, signum, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
del sys.argv[1:4]

def hook(event, args):
    global left
    if args and isinstance(args[0], str) and args[0].startswith(folder):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signum)

import ctl.entry
sys.addaudithook(hook)
sys.exit(ctl.entry.main())
"""
"""`ctl`, which gets a signal when it is about to touch a file of the folder for the nth time."""


def _kill_until_done(spawned: Spawned, folder: Path, words: list[str], signum: int) -> int:
    """Run a command, killed at another moment each time, until it ends; how often it was."""
    seed, killed = random.Random(7), 0
    while True:
        at = seed.randrange(1, 400)
        argv = [sys.executable, "-c", _KILLED, str(folder), str(int(signum)), str(at), *words]
        child = spawned.start(argv, cwd=REPO, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        code = child.wait(120)
        if code == 0:
            return killed
        assert code == (130 if signum == signal.SIGINT else -signum)
        killed += 1


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_killed_again_and_again_nothing_is_lost_and_nothing_doubled(
    fleet: Fleet, spawned: Spawned, tmp_path: Path, signum: int
) -> None:
    fleet.start("h0", "h1")
    path, out = _tasks(tmp_path), tmp_path / "out.jsonl"
    submit = _argv("submit", fleet.root, "--tasks", path, "--stream", "s", "--batch-size", 2)
    results = _argv("results", fleet.root, "s", "-o", out)
    killed = [_kill_until_done(spawned, tmp_path, w[3:], signum) for w in (submit, results)]
    assert min(killed) >= 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["index"], r["id"], r["status"], r["value"]) for r in rows] == [
        (i, f"task {i}", "ok", i) for i in range(TASKS)
    ]
    ran = Counter((tmp_path / "notes").read_text().split())
    assert ran == Counter(map(str, range(TASKS)))
    assert not fleet.files() and not (tmp_path / "out.jsonl.partial").exists()


def test_waiting_for_results_and_the_exit_codes(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "ways.jsonl"
    path.write_text('"value_error"\n"big_int"\n{"args": ["big", 3]}\n')
    submit = ("--tasks", path, "--fn", MISBEHAVE)
    early = _ctl("submit", fleet.root, *submit, "--json")
    assert early.returncode == 0 and not early.stderr
    told = json.loads(early.stdout)
    assert (told["tasks"], told["root"]) == (3, str(fleet.root))
    results = ("results", fleet.root, told["stream"], "-o", tmp_path / "ways.results.jsonl")
    late = _ctl(*results, "--timeout", "200ms")
    assert late.returncode == 6 and "0 of 3 results" in late.stderr
    nobody = _ctl(*results, "--no-worker-timeout", "2s")
    assert nobody.returncode == 9 and "no worker has served" in nobody.stderr
    fleet.start("h0", "h1")
    done = _ctl("submit", fleet.root, *submit, "--wait")
    assert done.returncode == 1 and "2 of 3 tasks failed" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "ways.results.jsonl").read_text().splitlines()]
    assert [r["status"] for r in rows] == ["error", "invalid", "ok"]
    assert rows[0]["error"]["type"] == "ValueError"
    assert rows[2]["value"] == {"__repr__": "b'xxx'"}
    again = _ctl(*results, "--json")
    assert again.returncode == 1 and json.loads(again.stdout)["failed"] == 2


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("submit", "--tasks", "absent.jsonl"), 2, "cannot read absent.jsonl"),
        (("submit", "--tasks", "{bad}"), 2, "bad.jsonl, line 2: "),
        (("submit", "--tasks", "{good}", "--fn", "os:system"), 2, "does not serve"),
        (("submit", "--tasks", "{good}", "--stream", ""), 2, "--stream"),
        (("submit", "--tasks", "{good}", "--batch-size", "0"), 2, "--batch-size"),
        (("results", "absent", "-o", "{out}"), 2, "nothing was submitted to stream 'absent'"),
        (("results", "-o", "{out}"), 2, "yet: use ctl submit"),
        (("results",), 2, "yet: use ctl submit"),
    ],
)
def test_bad_input_is_one_sentence(
    fleet: Fleet, tmp_path: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    (tmp_path / "good.jsonl").write_text("1\n")
    (tmp_path / "bad.jsonl").write_text("1\n{\n")
    names = {n: str(tmp_path / f"{n}.jsonl") for n in ("good", "bad", "out")}
    verb, *rest = (word.format(**names) for word in words)
    ended = _ctl(verb, fleet.root, *rest)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert sentence in ended.stderr and "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert not fleet.files()
    streams = fleet.root / layout.CTL / "streams"
    assert not streams.exists() or not os.listdir(streams)  # no lock of a stream that is not


def test_results_go_to_stdout_and_a_reader_that_leaves_loses_none(
    fleet: Fleet, spawned: Spawned, tmp_path: Path
) -> None:
    fleet.start("h0", "h1")
    assert _ctl("submit", fleet.root, "--tasks", _tasks(tmp_path), "--stream", "s").returncode == 0
    lost = spawned.start(
        _argv("results", fleet.root), cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert lost.stdout is not None
    lost.stdout.close()
    assert lost.wait(120) == 141
    for words in ((), ("-o", "-"), ("s",)):
        told = subprocess.run(
            _argv("results", fleet.root, *words),
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPO)},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert (told.returncode, told.stderr) == (0, "")
        rows = [json.loads(line) for line in told.stdout.splitlines()]
        assert [(r["index"], r["value"]) for r in rows] == [(i, i) for i in range(TASKS)]
    assert not (tmp_path / "-").exists() and not fleet.files()
    moved = _ctl("results", fleet.root, "-o", tmp_path / "late.jsonl")
    assert moved.returncode == 2 and "leave -o out" in moved.stderr
    both = _ctl("results", fleet.root, "--json")
    assert both.returncode == 2 and "give -o FILE" in both.stdout


def test_no_run_and_a_damaged_one(tmp_path: Path, fleet: Fleet) -> None:
    path = _tasks(tmp_path, 1)
    assert _ctl("submit", tmp_path / "none", "--tasks", path).returncode == 3
    (fleet.root / layout.MANIFEST).write_bytes(b'{"format": "9.0"}')
    ended = _ctl("submit", fleet.root, "--tasks", path)
    assert ended.returncode == 8 and "9.0" in ended.stderr


def test_a_person_sees_the_progress(fleet: Fleet, spawned: Spawned, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    argv = _argv("submit", fleet.root, "--tasks", _tasks(tmp_path))
    env = {"TERM": "xterm", "COLUMNS": "100"}
    child = spawned.start(argv, cwd=REPO, env=env, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    shown = _read_all(ours)
    assert child.wait(120) == 0 and f"{TASKS}/{TASKS}" in shown and "submitted" in shown
    assert child.stdout is not None
    assert child.stdout.read().startswith(b"submitted 600 tasks in ")


def _read_all(fd: int) -> str:
    data = b""
    while True:
        try:
            chunk = os.read(fd, 4096)
        except OSError:  # a terminal whose other side is closed
            chunk = b""
        if not chunk:
            os.close(fd)
            return data.decode()
        data += chunk


def test_results_may_be_awaited_before_everything_is_submitted(
    fleet: Fleet, spawned: Spawned, tmp_path: Path
) -> None:
    fleet.start("h0", "h1")
    path, out = _tasks(tmp_path), tmp_path / "out.jsonl"
    words: tuple[Any, ...] = ("--tasks", path, "--stream", "s", "--batch-size", 2)
    submit = spawned.start(_argv("submit", fleet.root, *words), cwd=REPO, stdout=subprocess.DEVNULL)
    wait_until(lambda: (fleet.root / layout.CTL / "streams" / "s.json").exists())
    assert _ctl("results", fleet.root, "s", "-o", out).returncode == 0
    assert submit.wait(120) == 0 and len(out.read_text().splitlines()) == TASKS


def test_results_replace_no_device_folder_or_task_and_follow_links(
    fleet: Fleet, tmp_path: Path
) -> None:
    tasks, pipe, link = tmp_path / "tasks.jsonl", tmp_path / "pipe", tmp_path / "link"
    tasks.write_text('"big_int"\n')
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "real.jsonl")
    (tmp_path / "same").symlink_to(tasks)
    submit = ("submit", fleet.root, "--tasks", tasks, "--fn", MISBEHAVE, "--wait", "-o")
    for out in (pipe, "/dev/null", tmp_path, tasks, tmp_path / "same"):
        done = _ctl(*submit, out)
        assert done.returncode == 2 and "give another -o" in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert pipe.is_fifo() and tasks.read_text() == '"big_int"\n'
    assert not list(tmp_path.glob("*.partial")), "nothing was taken yet"
    fleet.start("h0")
    assert _ctl(*submit, link).returncode == 1  # its task failed
    assert link.is_symlink() and (tmp_path / "real.jsonl").read_text().count("\n") == 1
