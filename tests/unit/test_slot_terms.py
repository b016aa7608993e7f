"""What slots get: from options, settings and workers-json to the command line of the worker."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ctl import config, hosts, launching, planning, scaling
from ctl.planning import Wish
from fsworker.errors import FleetError, UsageError
from fsworker.protocol.records import slots
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.slots import SlotTerms

pytestmark = pytest.mark.unit


def plan(tmp_path: Path, wish: Wish | None = None, **environ: str) -> planning.Plan:
    base = {"HOME": str(tmp_path), "FLEET_FN": "a.b:c", "FLEET_LAUNCHER": "local"}
    settings = config.load(None, base | environ, str(tmp_path))
    allowed = hosts.Allowed([], "FLEET_HOSTS")
    return planning.make(wish or Wish(), settings, allowed, str(tmp_path / "run"), "id1")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1M", 1 << 20), ("512m", 512 << 20), ("1.5G", 3 << 29), ("2GiB", 2 << 30),
        ("2 GB", 2 << 30), ("1048576", 1 << 20), (1 << 30, 1 << 30), ("1T", 1 << 40),
    ],
)  # fmt: skip
def test_sizes_as_people_write_them(text: object, count: int) -> None:
    assert slots.size(text) == count


@pytest.mark.parametrize("text", ["", "2X", "-1G", "1e9", "0", "12", True, None, "9999999T", "1.G"])
def test_what_is_no_size_is_said(text: object) -> None:
    with pytest.raises(ValueError, match=r"is not a size|cannot be"):
        slots.size(text)


def test_sizes_in_words() -> None:
    said = [slots.human_size(n) for n in (100, 1 << 20, 3 << 29, 1 << 40, 1000 << 40)]
    assert said == ["100 B", "1 MiB", "1.5 GiB", "1 TiB", "1000 TiB"]


def test_a_worker_has_the_usual_terms_but_for_what_its_entry_says(tmp_path: Path) -> None:
    text = json.dumps([
        {"host": "n1"},
        {"host": "n2", "slot_mem": "2G", "gpus": 2, "slots_per_gpu": 3, "slot_async": 8},
        {"host": "n3", "gpus": ["MIG-1", "GPU-2"]},
    ])  # fmt: skip
    wish = Wish(workers_json=text, flags={"slot_mem": 1 << 30})
    made = plan(tmp_path, wish, FLEET_GPUS="4", FLEET_SLOT_ASYNC="2")
    assert [w.slots for w in made.manifest.workers] == [
        SlotTerms(1 << 30, "4", None, 2),
        SlotTerms(2 << 30, "2", 3, 8),
        SlotTerms(1 << 30, "MIG-1,GPU-2", None, 2),
    ]
    more = scaling.plan(made.meta, [], add={"n4": None})
    assert more.meta.workers[-1].slots in {w.slots for w in made.meta.workers}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"slot_mem": "lots"}, "worker 0: field 'slot_mem': 'lots' is not a size"),
        ({"gpus": []}, "field 'gpus'"),
        ({"gpus": True}, "names no GPUs"),
        ({"slots_per_gpu": 0}, "field 'slots_per_gpu'"),
        ({"slot_async": 1000}, "is more than 100"),
    ],
)
def test_an_entry_that_cannot_be_is_named(tmp_path: Path, item: object, words: str) -> None:
    assert isinstance(item, dict)
    with pytest.raises(UsageError, match=words):
        plan(tmp_path, Wish(workers_json=json.dumps([{"host": "n1", **item}])))


def test_more_places_than_a_worker_can_have_are_refused(tmp_path: Path) -> None:
    wish = Wish(hosts="n1", flags={"slot_async": 100, "concurrency": 41})
    with pytest.raises(UsageError, match="41 slots of 100 coroutines are more than 4096"):
        plan(tmp_path, wish)


def test_many_slots_may_have_their_files_open() -> None:
    code = (
        "import resource; from fsworker.loop import surroundings; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2000)); surroundings.need_files(1000); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0]); surroundings.need_files(3000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert int(done.stdout) >= 1000
    assert "3000 slots need" in done.stderr and "lower the concurrency" in done.stderr


def test_the_host_is_asked_for_exactly_these_terms(tmp_path: Path) -> None:
    made = plan(tmp_path, Wish(hosts="n1", flags={"gpus": "0,1", "slot_mem": 1 << 30}))
    sent = json.loads(json.dumps({**asdict(launching.request_for(made.meta, "n1")), "host": "n1"}))
    asked = LaunchRequest.parse({**sent, "marker": "x", "newer": 1})
    argv = asked.worker_argv(["/usr/bin/python3", "-m", "fsworker"])
    assert argv[-4:] == ["--slot-mem", str(1 << 30), "--gpus", "0,1"]
    assert argv[argv.index("--host") + 1] == "n1"


@pytest.mark.parametrize(
    "fields", [{}, {"root": "r", "launch": 1, "shard": 0}, {"slots": {"memory": "x"}}]
)
def test_a_request_that_cannot_be_is_refused_by_its_field(fields: dict[str, object]) -> None:
    good = {"root": "/r", "launch": 1, "shard": 0}
    with pytest.raises(FleetError, match=r"the start request|absolute"):
        LaunchRequest.parse(fields if not fields or "root" in fields else {**good, **fields})


def test_the_worker_reads_the_same_levels_and_sizes() -> None:
    argv = [sys.executable, "-m", "fsworker", "run", "--root", "relative", "--host", "n1"]
    good = subprocess.run(
        [*argv, "--log-level", "CRITICAL", "--slot-mem", "1.5G", "--gpus", "0"],
        capture_output=True,
        text=True,
    )
    assert "must be an absolute path" in good.stderr
    bad = subprocess.run([*argv, "--slot-mem", "lots"], capture_output=True, text=True)
    assert bad.returncode == 2 and "'lots' is not a size" in bad.stderr
