"""Records: what is written is read back, and what is not a record is refused by file and field."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.errors import FormatError, spelt
from fsworker.protocol.records.run import (
    Heartbeat,
    HostIdentity,
    Identity,
    LaunchMeta,
    Manifest,
    WorkerSpec,
)
from fsworker.protocol.records.slots import SlotTerms

pytestmark = pytest.mark.unit

PATH = "/root/run/some.json"
WORKERS = (WorkerSpec("n1", 0, 4, SlotTerms(1 << 30, "0,1", 2, 8)), WorkerSpec("n 2/é", 1))
RECORDS: list[Any] = [
    Manifest("r", "m:f", 2, WORKERS, ("m:f", "m:g"), group="lab", task_timeout=1.5),
    LaunchMeta(
        "/a b/run'1 $HOME", "r", WORKERS, 2, "m:f", pythonpath=("/x",), env={"A": "1"},
        launches={"n1": 3}, launcher_options={"port": 22, "keys": [None, True]},
    ),
    Heartbeat("n1", 12, "0123456789ab", 7, 1.0e9, labels=("gpu",), inventory={"cpus": 4}),
    HostIdentity("n1", 3, Identity("n1", "b", "4026", 12, 99), None, "0123456789ab"),
]  # fmt: skip
BEAT: dict[str, Any] = {
    "host": "n1",
    "pid": 12,
    "incarnation": "0123456789ab",
    "seq": 1,
    "heartbeat_at": 1.0,
}


def beat(**changes: Any) -> bytes:
    """A heartbeat's bytes with fields changed; a field set to ... is left out."""
    fields = {k: v for k, v in {**BEAT, **changes}.items() if v is not ...}
    return json.dumps(fields).encode()


def refused(cls: Any, data: bytes) -> str:
    """The sentence with which `data` is refused; it names the file."""
    with pytest.raises(FormatError) as caught:
        cls.from_json(data, PATH)
    assert PATH in str(caught.value) and caught.value.path == PATH
    assert caught.value.exit_code == 8 and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_what_is_written_is_read_back(record: Any) -> None:
    data = record.to_json()
    assert data.endswith(b"}\n") and data.count(b"\n") == 1
    assert json.loads(data)["format"] == "1.0"
    assert type(record).from_json(data, PATH) == record


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.floats(0, 1e12))
def test_heartbeats_come_back(host: str, pid: int, at: float) -> None:
    record = Heartbeat(host, pid, "0123456789ab", 1, at)
    assert Heartbeat.from_json(record.to_json(), PATH) == record


BAD = {
    "empty": (b"", "it is empty"),
    "blank": (b" \n", "it is empty"),
    "cut": (beat()[:-1], "not valid JSON"),
    "NULs": (bytes(300), "not valid JSON"),
    "text": (b"hello", "not valid JSON"),
    "no UTF-8": (b'{"host": "\xff"}', "not valid JSON"),
    "two values": (beat() + beat(), "not valid JSON"),
    "null": (b"null", "must hold a JSON object, not NoneType"),
    "a list": (b"[]", "must hold a JSON object, not list"),
    "a number": (b"7", "must hold a JSON object, not int"),
    "nested too deep": (b"[" * 100_000, "not valid JSON"),
    "NaN": (beat(heartbeat_at=float("nan")), "NaN is not a JSON number"),
    "infinity": (beat(heartbeat_at=float("inf")), "Infinity is not a JSON number"),
    "a number beyond floats": (
        beat(heartbeat_at=1).replace(b'"heartbeat_at": 1', b'"heartbeat_at": 1e999'),
        "'heartbeat_at' must be float",
    ),
    "a missing field": (beat(pid=...), "field 'pid' is missing"),
    "a text for a number": (beat(pid="12"), "'pid' must be int, not str '12'"),
    "a float for an integer": (beat(pid=12.0), "'pid' must be int, not float"),
    "a boolean for an integer": (beat(pid=True), "'pid' must be int, not bool"),
    "null for an integer": (beat(pid=None), "'pid' must be int, not NoneType"),
    "a number for a text": (beat(host=7), "'host' must be str, not int"),
    "a boolean for seconds": (beat(heartbeat_at=True), "'heartbeat_at' must be float"),
    "a text for seconds": (beat(heartbeat_at="2026-10-25T02:30:00"), "'heartbeat_at' must be"),
    "a number for a boolean": (beat(ready=1), "'ready' must be bool, not int"),
    "a text for a list": (beat(labels="gpu"), "'labels' must be tuple, not str"),
    "a number in a list": (beat(labels=["a", 1]), "'labels[1]' must be str, not int"),
    "a list for a map": (beat(inventory=[]), "'inventory' must be dict, not list"),
    "a lone surrogate": (beat(host="\ud800"), r"'host' holds '\ud800', a text with a lone surr"),
    "a lone surrogate in a list": (beat(labels=["a", "x\udfff"]), "'labels[1]' holds"),
    "a lone surrogate far inside": (
        beat(inventory={"a": [[{"b": "\udcff"}]]}),
        "'inventory.a' hol",
    ),
    "a lone surrogate for a name": (beat(inventory={"\udcff": 1}), "'inventory' holds"),
    "a lone surrogate for a name inside": (beat(inventory={"a": {"\udcff": 1}}), "'inventory.a' h"),
    "a newer major version": (beat(format="2.0"), "version 2.0, this shardfleet reads version 1.0"),
    "a version that is none": (beat(format=None), "version None"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes_are_refused_with_file_and_field(name: str) -> None:
    data, told = BAD[name]
    assert told in refused(Heartbeat, data)


def test_errors_say_where_in_a_nested_record() -> None:
    fields = json.loads(RECORDS[0].to_json())
    fields["workers"][1]["shard"] = "1"
    assert "'workers[1].shard' must be int" in refused(Manifest, json.dumps(fields).encode())
    del fields["workers"][1]["shard"]
    assert "'workers[1].shard' is missing" in refused(Manifest, json.dumps(fields).encode())
    fields = json.loads(RECORDS[3].to_json())
    fields["wrapper"]["pid"] = None
    assert "'wrapper.pid' must be int" in refused(HostIdentity, json.dumps(fields).encode())
    fields = json.loads(RECORDS[1].to_json())
    fields["env"]["A"] = 1
    assert "'env.A' must be str" in refused(LaunchMeta, json.dumps(fields).encode())


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_unknown_fields_and_newer_minor_versions_are_read(record: Any) -> None:
    fields = {**json.loads(record.to_json()), "format": "1.9", "future_field": {"keep": True}}
    assert type(record).from_json(json.dumps(fields).encode(), PATH) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_every_cut_is_refused(record: Any) -> None:
    data = record.to_json().rstrip()
    for size in range(len(data)):
        refused(type(record), data[:size])


def test_files_of_scripts_that_know_no_format_are_read() -> None:
    found = Heartbeat.from_json(b"\xef\xbb\xbf" + beat(heartbeat_at=3), PATH)
    assert found.heartbeat_at == 3.0 and type(found.heartbeat_at) is float
    assert not found.ready


@given(st.text(st.characters()), st.text(st.characters(categories=["Cs"]), max_size=3))
def test_a_name_that_no_file_can_hold_is_spelt_out_and_read_as_text(text: str, lone: str) -> None:
    written = Heartbeat(text + lone, 1, "0123456789ab", 1, 1.0, inventory={lone: [lone]})
    spelled = spelt(lone)
    assert lone == "" or spelled.startswith(r"\ud")
    found = Heartbeat.from_json(written.to_json(), PATH)
    assert found == replace(written, host=spelt(text) + spelled, inventory={spelled: [spelled]})


def test_an_error_about_any_file_can_be_written_down() -> None:
    name = os.fsdecode(b"/root/\xff")
    told = str(FormatError(f"{name} is damaged", path=name))
    assert told == r"/root/\udcff is damaged" and told.encode()


def test_what_is_nested_as_deep_as_json_may_be_is_read() -> None:
    deep = b'{"a":' * 900 + b'"\xc3\xa9"' + b"}" * 900
    data = beat(inventory={}).replace(b'"inventory": {}', b'"inventory": ' + deep)
    assert Heartbeat.from_json(data, PATH).inventory


def test_a_record_that_no_json_can_hold_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Heartbeat("n1", 1, "0123456789ab", 1, float("nan")).to_json()


def test_the_manifest_has_the_names_that_scripts_know() -> None:
    fields = json.loads(RECORDS[0].to_json())
    known = {"experiment_name", "trial_name", "run_id", "reward_fn", "shard_count", "workers"}
    assert known <= fields.keys()
    worker = {"host": "n1", "shard": 0, "concurrency": 4}
    assert worker.items() <= fields["workers"][0].items()
    assert asdict(WorkerSpec("n1", 0))["concurrency"] == 48
