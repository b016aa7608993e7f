"""The group `ctl job`: as cheap to ask as the commands at the top, and as clear about errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctl import passing
from ctl.jobs import asking, submitting
from fsworker.errors import FormatError, StorageError, UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.job import Job
from fsworker.protocol.records.needs import Needs
from tests.support.runs import make_run

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
        (["job", "submit", "--need", "gpu=1", "--", "x"], 2, "there is no need 'gpu'"),
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


def test_needs_are_read_from_a_file_and_from_words(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('command = ["x"]\n[needs]\nlabels = ["a"]\nmemory = "2G"\ngpus = 1\n')
    told = asking.read_file(str(path))
    told["needs"] |= asking.needs_of(("gpus=4",), "--need")
    (job,) = asking.make(told, "here")
    assert job.needs == Needs(("a",), gpus=4, memory=2 << 30)
    assert Job.from_json(job.to_json(), "job.json") == job
    for bad in ({"gpus": -1}, {"cores": 1}, {"labels": [1]}):
        with pytest.raises(UsageError, match="here: needs: "):
            asking.make({"command": ["x"], "needs": bad}, "here")
    path.write_text('command = ["x"]\nneeds = "gpu"\n')
    with pytest.raises(UsageError, match=r"job\.toml: 'needs' must be a table"):
        asking.read_file(str(path))
    odd = job.to_json().replace(b'"gpus": 4', b'"gpus": -4')
    with pytest.raises(FormatError, match="field 'needs': gpus must be"):
        Job.from_json(odd, "job.json")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"agent_loop": True, "per_episode_sync": True}, "one process, per_episode_sync starts a"),
        ({"log_limit": "12 parsecs"}, "log_limit: '12 parsecs' is not a size.*or 0 for all"),
        ({"log_limit": "1K"}, "log_limit: '1K' cannot be: the least is 1M"),
        ({"keep_checkpoints": 0}, "'keep_checkpoints' must be 1 or more, not 0"),
    ],
)
def test_what_no_job_can_ask_for(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        asking.make({"command": ["x"], **fields}, "here")


def test_a_submit_that_finds_the_disk_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    (tmp_path / "inbox" / "0").mkdir()
    whole = {name: getattr(Store, name) for name in ("put", "rename", "sync_folder")}
    for what, where in (("put", "jobs"), ("rename", "jobs"), ("sync_folder", ""), ("put", "inbox")):
        with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space"):
            patch.setattr(Store, what, full_disk(whole[what], where))
            submitting.submit(run, [Job("j", ("x",)), Job("k", ("x",))])
        assert os.listdir(tmp_path / layout.jobs.JOBS) == [], (what, where)
        assert os.listdir(tmp_path / "inbox" / "0") == [], (what, where)
    tokens = submitting.submit(run, [Job("j", ("x",)), Job("k", ("x",))])
    assert len(os.listdir(tmp_path / "inbox" / "0")) == len(tokens) == 2


def full_disk(real: Any, where: str) -> Any:
    """An operation of the store that finds the disk full in some folders."""

    def fails(store: Store, path: str, *more: Any, **options: Any) -> Any:
        if where in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(store, path, *more, **options)

    return fails


def test_a_limit_of_the_log_is_a_size_or_none() -> None:
    for text, limit in (("64M", 64 << 20), ("0", 0), (0, 0), (2 << 20, 2 << 20)):
        (job,) = asking.make({"command": ["x"], "log_limit": text}, "here")
        assert job.log_limit == limit


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
