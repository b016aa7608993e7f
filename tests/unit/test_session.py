"""Lines that nobody can take: the verb does its work, and its exit code says so at the end."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctl.session import Session

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]


def test_a_line_that_nobody_reads_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    session = Session()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        session.say("first")
        assert isinstance(session.unsaid, BrokenPipeError)
        first = session.unsaid
        session.say("second")  # goes nowhere, quietly
        assert session.unsaid is first
        assert os.fstat(writing).st_rdev == os.stat(os.devnull).st_rdev


def test_a_full_disk_below_the_output_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(json=True)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        session.say("for people")
        session.note("for people too")
        assert session.unsaid is not None and session.unsaid.errno == errno.ENOSPC


@pytest.mark.parametrize(("where", "code"), [("/dev/full", 7), ("pipe", 141), ("closed", 0)])
def test_the_exit_code_says_that_the_output_was_lost(where: str, code: int, tmp_path: Path) -> None:
    done = tmp_path / "done"
    program = (
        "import sys, time; from ctl import cli; time.sleep(0.5)\n"
        "def speak(ctx):\n"
        f"    ctx.obj.say('a'); open({str(done)!r}, 'w').close(); return 0\n"
        "cli.cli.invoke = speak\n"
        "sys.exit(cli.main(['status']))\n"
    )
    shell = {
        "/dev/full": '"$@" >/dev/full',
        "pipe": '{ "$@"; echo $? >code; } | true; exit $(cat code)',
        "closed": '"$@" >&-',
    }[where]
    ended = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, done.exists()) == (code, True), ended.stderr
    assert "Traceback" not in ended.stderr
