"""Names of jobs, attempts, episodes, rounds and groups: each number and name has one spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.protocol import layout
from fsworker.protocol.layout import groups, jobs
from fsworker.protocol.layout.jobs import Attempt

pytestmark = pytest.mark.unit

INC = "0123456789ab"
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
numbers = st.integers(0, 10**10 - 1)


@given(names, names, numbers)
def test_what_is_written_is_read_back(group: str, job: str, number: int) -> None:
    assert jobs.parse_after_name(jobs.after_name(number)) == number
    assert jobs.parse_before_name(jobs.before_name(number)) == number
    assert groups.parse_four(groups.round_dir(group, number).rpartition("/")[2]) == number
    assert groups.parse_archive_name(groups.archive_file(group, number).split("/")[-1]) == number
    assert groups.parse_group_name(groups.group_dir(group).split("/")[2]) == group
    assert jobs.parse_job_name(jobs.job_dir(job).split("/")[2]) == job
    assert jobs.parse_job_name(groups.upload_dir(group, number, job).split("/")[-1]) == job
    assert groups.parse_unlocked_beat(groups.unlocked_beat(INC).rpartition("/")[2]) == INC
    refusal = groups.refusal_file(group, number, job).rpartition("/")[2]
    assert groups.parse_refusal_name(refusal) == job
    attempt = Attempt(number, INC)
    assert jobs.parse_attempt_name(jobs.attempt_dir(job, attempt).rpartition("/")[2]) == attempt
    batch = layout.batch_id(job, INC, number)
    token = jobs.job_token(job, batch, attempt).rpartition("/")[2]
    assert jobs.parse_job_token(token) == (batch, attempt)


@pytest.mark.parametrize("part", ["%ED%A0%80", "%FF", "%61aa-1", "a" * 161, "a" * 250, "a.b"])
def test_folders_of_others_are_no_groups_jobs_or_refusals(part: str) -> None:
    assert groups.parse_group_name(part) is None
    assert jobs.parse_job_name(part) is None
    assert groups.parse_refusal_name(f"{part}.json") is None


@given(names, names)
def test_no_name_leaves_its_folder(group: str, job: str) -> None:
    for path in (
        groups.upload_dir(group, 1, job),
        groups.refusal_file(group, 1, job),
        groups.round_dir(group, 1),
        jobs.job_final(job, ".pt"),
        jobs.episode_dir(job, 1),
    ):
        assert path.isascii() and "/." not in path and "//" not in path
        assert path.startswith(("outbox/federation/", "outbox/jobs/"))


def test_the_paths_are_those_that_scripts_know() -> None:
    assert groups.upload_dir("g1", 1, "job_1") == (
        "outbox/federation/g1/from_worker/after_ep_0001/job_1"
    )
    assert groups.global_dir("g1", 2) == "outbox/federation/g1/to_worker/before_ep_0002"
    assert groups.round_dir("g1", 1) == "outbox/federation/g1/rounds/0001"
    assert jobs.episode_dir("j", 12345) == "outbox/jobs/j/after_ep_12345"
    assert jobs.job_final("j", ".pt") == "outbox/jobs/j/checkpoint_final.pt"


@pytest.mark.parametrize(
    "name",
    ["after_ep_1", "after_ep_00001", "after_ep_", "after_ep_-001", "after_ep_0001.tmp", "after_ep_١"
     "٢٣٤", ".after_ep_0001", "before_ep_0001", "After_ep_0001", "after_ep_0001\n"],
)  # fmt: skip
def test_other_spellings_are_none(name: str) -> None:
    assert jobs.parse_after_name(name) is None


@pytest.mark.parametrize("name", ["1", "00001", "01234567890123", "0001~", "", "one"])
def test_a_round_has_four_digits_or_those_it_needs(name: str) -> None:
    assert groups.parse_four(name) is None


@pytest.mark.parametrize("name", ["0~x", f"01~{INC}", f"1~{INC.upper()}", f"1.{INC}", INC])
def test_what_is_no_attempt(name: str) -> None:
    assert jobs.parse_attempt_name(name) is None


@pytest.mark.parametrize(
    "name", [".aggregator.json", f".aggregator~{INC}", f".tmp~1~.aggregator~{INC}.json"]
)
def test_what_is_no_beat_of_one_without_a_lock(name: str) -> None:
    assert groups.parse_unlocked_beat(name) is None


@pytest.mark.parametrize("suffix", ["/x", "pt", ".a/b", "..", ".\n"])
def test_an_ending_stays_in_its_folder(suffix: str) -> None:
    if suffix == "..":
        assert jobs.job_final("j", suffix).endswith("checkpoint_final..")
    else:
        with pytest.raises(ValueError, match="ending"):
            jobs.job_final("j", suffix)
