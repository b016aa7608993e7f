"""The command line itself: cheap, honest about errors, the same for people and scripts."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest

from ctl import cli
from ctl.lazy import LazyGroup
from fsworker import errors

pytestmark = pytest.mark.unit


def ctl(
    *args: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SAO_", "REWARD_"))}
    home = str(cwd or "/nonexistent")
    full = {**clean, "PYTHONPATH": os.getcwd(), "HOME": home, "COLUMNS": "100", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "ctl", *args],
        capture_output=True, text=True, cwd=cwd, env=full, timeout=240, check=False,
    )  # fmt: skip


def test_help_costs_little_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ctl.cli import main; main(['--help']);"
        "bad = {'paramiko', 'rich', 'torch', 'msgpack', 'psutil', 'ClusterShell', 'filelock'};"
        "sys.exit(' '.join(bad & set(sys.modules)) or 0)"
    )
    costs = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert found.returncode == 0, found.stderr
        costs.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(costs) < 0.2


def test_help_lists_every_command_with_its_sentence() -> None:
    lines = ctl("--help").stdout.splitlines()
    listed = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line[:2] == "  "}
    for name in ("start", "status", "stop", "restart-host", "cleanup", "runs", "logs", "config"):
        assert len(listed[name]) > 10, name


@pytest.mark.parametrize("name", cli.cli.list_commands(click.Context(cli.cli)))
def test_every_command_has_help_of_its_own(name: str) -> None:
    found = ctl(name, "--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert f"Usage: ctl {name}" in found.stdout
    assert "--config FILE" in found.stdout


def test_a_command_is_found_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "say_hi.py").write_text(
        textwrap.dedent(
            '''
            import click
            @click.command()
            def anything() -> int:
                """Say hi to whoever asks. More text."""
                print("hi")
                return 7
            '''
        )
    )
    import ctl.commands

    monkeypatch.setattr(ctl.commands, "__path__", [str(tmp_path)])
    assert isinstance(cli.cli, LazyGroup)
    monkeypatch.setattr(cli.cli, "folder", str(tmp_path))
    monkeypatch.setattr(cli, "_catch_signals", lambda: None)
    assert cli.cli.list_commands(click.Context(cli.cli)) == ["say-hi"]
    assert cli.cli.summary("say-hi") == "Say hi to whoever asks"
    assert cli.main(["say-hi"]) == 7


def test_options_of_all_commands_may_stand_before_or_behind(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("width = 5\n")
    for args in (("--config", "my.toml", "config"), ("config", "--config", "my.toml")):
        found = json.loads(ctl(*args, "--json", cwd=tmp_path).stdout)
        assert found["settings"]["width"]["value"] == 5
        assert found["format"] == "1.0"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("status",), 3, "there is no current run"),
        (("status", "--root", "/nonexistent/r"), 3, "there is no run at /nonexistent/r"),
        (("status", "--root", ""), 5, "the root is an empty text"),
        (("statsu",), 2, "there is no command 'statsu': did you mean status?"),
        (("status", "--nope"), 2, "--nope"),
        (("start", "--ready-timeout", "soon"), 2, "'soon' is not a duration"),
        (("start",), 2, "no root is named"),
        (("restart-host",), 2, "restart-host takes one host"),
        (("runs",), 2, "no prefix is set"),
        (("cleanup", "--root", "/nonexistent/r"), 5, "no prefix is set"),
        (("--config", "/nonexistent.toml", "config"), 2, "--config: there is no file"),
    ],
)
def test_an_error_is_one_sentence_and_a_code(
    tmp_path: Path, args: tuple[str, ...], code: int, words: str
) -> None:
    plain, as_json = ctl(*args, cwd=tmp_path), ctl(*args, "--json", cwd=tmp_path)
    assert (plain.returncode, plain.stdout) == (code, "")
    assert plain.stderr.startswith("ctl: ")
    assert words in plain.stderr
    assert len(plain.stderr.splitlines()) == 1
    value = json.loads(as_json.stdout)
    assert (as_json.returncode, value["exit_code"]) == (code, code)
    assert words in value["error"]


def run_main(monkeypatch: pytest.MonkeyPatch, error: BaseException, *args: str) -> int:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "_catch_signals", lambda: None)
    monkeypatch.setattr(
        cli.cli, "get_command", lambda ctx, name: click.Command(name, callback=fail)
    )
    return cli.main([*args, "status"])


CODES = [
    (errors.FleetError, 1), (errors.UsageError, 2), (errors.NotRunning, 3),
    (errors.UnknownState, 4), (errors.Refused, 5), (errors.DeadlineExceeded, 6),
    (errors.StorageError, 7), (errors.FormatError, 8), (errors.NoWorkers, 9), (errors.Busy, 10),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "code"), CODES)
def test_each_kind_of_error_has_its_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[errors.FleetError],
    code: int,
) -> None:
    assert run_main(monkeypatch, kind("the sentence")) == code
    assert capsys.readouterr() == ("", "ctl: the sentence\n")


def test_the_unexpected_is_one_sentence_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, ValueError("two\nlines")) == 1
    assert capsys.readouterr().err == (
        "ctl: unexpected ValueError: two lines (run again with --debug for the place)\n"
    )
    assert run_main(monkeypatch, ValueError("x"), "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_has_the_code_that_shells_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(monkeypatch, KeyboardInterrupt()) == 130
    assert run_main(monkeypatch, KeyboardInterrupt(signal.SIGTERM)) == 143


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m ctl config; echo rc=$? >&2"
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    found = subprocess.run(
        ["sh", "-c", f"({line}) | true"], capture_output=True, text=True, cwd=tmp_path, env=env,
        timeout=240, check=False,
    )  # fmt: skip
    assert "Traceback" not in found.stderr
    assert "rc=141" in found.stderr or "rc=0" in found.stderr


def test_term_ends_a_verb_like_an_interrupt(tmp_path: Path) -> None:
    log = tmp_path / "run" / "ctl" / "n1.log"
    _run_with_log(tmp_path / "run", log)
    child = subprocess.Popen(
        [sys.executable, "-m", "ctl", "logs", "n1", "-f", "--root", str(tmp_path / "run")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    with child:
        assert child.stdout and child.stderr
        assert child.stdout.readline() == b"first\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(120) == 143
        assert child.stderr.read() == b"ctl: interrupted\n"


def test_logs_follow_a_log_that_is_cut_in_place(tmp_path: Path) -> None:
    log = tmp_path / "run" / "ctl" / "n1.log"
    _run_with_log(tmp_path / "run", log)
    child = subprocess.Popen(
        [sys.executable, "-m", "ctl", "logs", "n1", "-f", "-n1", "--root", str(tmp_path / "run")],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    with child:
        try:
            assert child.stdout
            assert child.stdout.readline() == b"first\n"
            with log.open("ab") as file:
                file.write(b"second, a longer line\n")
            assert child.stdout.readline() == b"second, a longer line\n"
            log.write_bytes(b"new\n")
            assert child.stdout.readline() == b"new\n"
        finally:
            child.kill()


def _run_with_log(root: Path, log: Path) -> None:
    from fsworker.protocol.records.run import LaunchMeta, Manifest, WorkerSpec

    workers = (WorkerSpec("n1", 0),)
    (root / "ctl").mkdir(parents=True)
    (root / "manifest.json").write_bytes(Manifest("r", "a.b", 1, workers).to_json())
    meta = LaunchMeta(str(root), "r", workers, 1, "a.b", launches={"n1": 1})
    (root / "ctl" / "launch_meta.json").write_bytes(meta.to_json())
    log.write_bytes(b"first\n")


def test_control_characters_of_hosts_do_not_reach_a_terminal() -> None:
    from ctl import render

    assert render.clean("a\x1b[31mb\x07\r\nc\x9b") == "a?[31mb?? c?"
