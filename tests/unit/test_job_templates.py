"""Command line and environment of a training process: pure, so tried as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ctl.jobs import asking
from fsworker.errors import FormatError, UsageError
from fsworker.jobs import environment, templates
from fsworker.jobs.templates import Turn
from fsworker.protocol.records.job import Job, new_job_id
from fsworker.slots import link

pytestmark = pytest.mark.unit

JOB = Job(
    "job_1",
    ("python", "train.py"),
    episodes=20,
    trace="/t/load.msgpack",
    agent="dqn",
    steps=100,
    duration=1.5,
    params={"lr": "0.1"},
)
FRESH, LATER = Turn(1, 20, "/a/checkpoint.pt"), Turn(3, 1, "/a/checkpoint.pt", "/w/x.pt")


@pytest.mark.parametrize(
    ("words", "turn", "expected"),
    [
        (["--episodes", "{episodes}"], FRESH, ["--episodes", "20"]),
        (["--episodes", "{episodes}"], LATER, ["--episodes", "1"]),
        (["{episode}/{total}"], LATER, ["3/20"]),
        (["{transfer}"], FRESH, []),
        (["{transfer}"], LATER, ["--load", "/w/x.pt", "--transfer"]),
        (["{weights}"], FRESH, [""]),
        (["{weights}"], LATER, ["/w/x.pt"]),
        (["--save={checkpoint}"], FRESH, ["--save=/a/checkpoint.pt"]),
        (["{trace}", "{agent}", "{steps}", "{duration}", "{lr}", "{job}"], FRESH,
         ["/t/load.msgpack", "dqn", "100", "1.5", "0.1", "job_1"]),
        (['{{"a": {{}}}}', "a b"], FRESH, ['{"a": {}}', "a b"]),
    ],
)  # fmt: skip
def test_a_command_is_filled_in(words: list[str], turn: Turn, expected: list[str]) -> None:
    assert templates.command(replace(JOB, command=("x", *words)), turn) == ["x", *expected]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("{nothing}", "there is no {nothing}"),
        ("{namespace}", "the job has no namespace: give --namespace"),
        ("a{transfer}", "give it as one of its own"),
        ("{", "has a single '{'"),
        ("a } b", "has a single '}'"),
    ],
)
def test_what_cannot_be_filled_in_is_said_at_submit(word: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        templates.check(replace(JOB, command=("x", word)))
    assert says in str(caught.value)


def test_a_job_gets_only_the_secrets_that_it_asks_for() -> None:
    host = {"PATH": "/bin", "A": "1", "B": "2", "FLEET_LIFE_FD": "7", "FLEET_PASS_ENV": "A,B"}
    env = environment.of_host(replace(JOB, pass_env=("A",)), host, ["/repo"])
    assert env["A"] == "1" and "B" not in env
    assert "FLEET_LIFE_FD" not in env and "FLEET_PASS_ENV" not in env
    assert env["PYTHONPATH"] == "/repo" and env["FLEET_PARAM_LR"] == "0.1"
    assert environment.missing(replace(JOB, pass_env=("A", "C")), host) == ["C"]


def test_tasks_get_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_PASS_ENV", "A_SECRET,ANOTHER")
    monkeypatch.setenv("A_SECRET", "x")
    monkeypatch.setenv("NO_SECRET", "y")
    env = link.slot_environment({})
    assert env["NO_SECRET"] == "y" and not {"A_SECRET", "FLEET_PASS_ENV"} & env.keys()
    monkeypatch.delenv("FLEET_PASS_ENV")
    assert link.slot_environment({})["A_SECRET"] == "x"


def test_each_process_is_told_its_turn() -> None:
    env = environment.of_turn({"FLEET_WEIGHTS": "/old"}, FRESH, 4)
    assert "FLEET_WEIGHTS" not in env
    assert env["FLEET_EPISODE"] == "1" and env["FLEET_JOB_ATTEMPT"] == "4"
    assert environment.of_turn({}, LATER, 4)["FLEET_WEIGHTS"] == "/w/x.pt"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"job_id": "../x"}, "field 'job_id'"),
        ({"job_id": ".x"}, "field 'job_id'"),
        ({"job_id": "x" * 101}, "field 'job_id'"),
        ({"command": ()}, "field 'command' is empty"),
        ({"command": ("a\0b",)}, "NUL"),
        ({"episodes": 0}, "field 'episodes'"),
        ({"timeout_seconds": 0.0}, "field 'timeout_seconds'"),
        ({"grace": -1.0}, "field 'grace'"),
        ({"params": {"episode": "1"}}, "'episode' cannot be the name"),
        ({"params": {"a b": "1"}}, "'a b' cannot be the name"),
        ({"pass_env": ("A=B",)}, "'A=B' is not the name of a variable"),
        ({"checkpoint": "../x.pt"}, "field 'checkpoint'"),
        ({"weights": "/w", "after": "j"}, "both say"),
        ({"federation_group_id": "g"}, "go together"),
        ({"federation_group_id": "g", "federation_size": 0}, "field 'federation_size'"),
    ],
)
def test_a_job_that_cannot_be_is_named_by_its_field(changes: dict[str, Any], says: str) -> None:
    job = replace(JOB, **changes)
    assert says in str(job.problem())
    with pytest.raises(FormatError, match=r"job\.json: "):
        Job.from_json(job.to_json(), "job.json")


def test_a_job_reads_as_it_was_written_and_ignores_what_is_new() -> None:
    assert Job.from_json(JOB.to_json(), "x") == JOB
    more = JOB.to_json().replace(b'"job_id"', b'"novelty": 1, "job_id"')
    assert Job.from_json(more, "x") == JOB
    assert new_job_id().startswith("job_20") and len(new_job_id()) == 26


TOML = """
command = ["train", "{transfer}"]
episodes = 3
timeout = "2h"
federation-group = "g"
federation_size = 2
trace = "load.msgpack"
count = 2
[params]
lr = 0.5
"""


def test_a_file_and_the_command_line_make_the_same_jobs(tmp_path: Any) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TOML)
    jobs = asking.make({**asking.read_file(str(path)), "agent": "greedy"}, "x")
    assert len({job.job_id for job in jobs}) == 2
    job = jobs[0]
    assert (job.episodes, job.timeout_seconds, job.federation_group_id) == (3, 7200.0, "g")
    assert (job.params, job.trace) == ({"lr": "0.5"}, str(tmp_path / "load.msgpack"))
    assert (job.checkpoint, job.cwd) == ("checkpoint.json", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('episodez = 1\ncommand = ["a"]', "did you mean episodes?"),
        ("episodes = 1", "field 'command' is missing"),
        ('command = "a b"', "field 'command' must be tuple"),
        ('command = ["a"]\nepisodes = "many"', "field 'episodes' must be int"),
        ('command = ["a"]\ntimeout = "soon"', "is not a duration"),
        ('command = ["a"]\ncount = 0', "count must be 1 to"),
        ("command = [", "is not valid TOML"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Any, text: str, says: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        asking.make(asking.read_file(str(path)), str(path))
    assert says in str(caught.value)
