"""The group `ctl job`: as cheap to ask as the commands at the top, and as clear about errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctl import passing
from ctl.jobs import asking
from fsworker.errors import UsageError

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**env, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_help_of_the_group_imports_none_of_its_commands() -> None:
    code = (
        "import sys; from ctl.cli import main; assert main(['job', '--help']) == 0;"
        "print('loaded', *sys.modules, file=sys.stderr)"
    )
    done = python(code)
    for name in ("cancel", "logs", "metrics", "retry", "show", "submit"):
        assert f"\n  {name} " in done.stdout
    loaded = set(done.stderr.split())
    assert "ctl.commands.job" in loaded
    assert not {"ctl.commands.job.submit", "ctl.jobs", "msgpack", "rich", "tomllib"} & loaded


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["job", "submitt"], 2, "did you mean submit?"),
        (["job", "show"], 2, "Missing argument"),
        (["jobs", "--status", "sucess", "--root", "/nowhere"], 2, "'success', 'failed', 'timeout'"),
        (["job", "show", "x", "--root", "/nowhere"], 3, "/nowhere"),
        (["job", "submit", "--episodes", "0", "--", "x"], 2, "from 1 up"),
        (["job", "submit", "--param", "novalue", "--", "x"], 2, "is not NAME=value"),
    ],
)
def test_errors_are_one_sentence_with_their_code(args: list[str], code: int, says: str) -> None:
    done = python("import sys; from ctl.cli import main; sys.exit(main(sys.argv[1:]))", *args)
    assert done.returncode == code and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_job_file_or_an_unset_variable_says_wrongly_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('command = ["x"]\nparams = 3\n')
    with pytest.raises(UsageError, match=r"job\.toml: 'params' must be a table"):
        asking.read_file(str(path))
    for name in ("weights", "trace", "cwd"):
        with pytest.raises(UsageError, match=f"here: field '{name}' is empty"):
            asking.make({"command": ["x"], name: ""}, "here")


def test_secrets_are_lines_of_a_script_and_names_alone_are_kept() -> None:
    environ = {"A": "it's $HOME", "B": ""}
    assert passing.lines(("A", "B", "C"), environ) == [
        "A='it'\"'\"'s $HOME'; export A",
        "B=''; export B",
        "FLEET_PASS_ENV=A,B,C; export FLEET_PASS_ENV",
    ]
    assert passing.lines((), environ) == []
    assert passing.check(("A", "A", "B"), environ) == ("A", "B")
    with pytest.raises(UsageError, match="is not set here"):
        passing.check(("C",), environ)
