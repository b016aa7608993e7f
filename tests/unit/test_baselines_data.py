"""What stands beside the tensors in a zip of stable-baselines3: it runs when it is loaded."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import zipfile
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedavg import strategies
from fedavg.checkpoint import UnsupportedCheckpoint, open_checkpoint
from fedavg.formats.agreed import agreed
from fedavg.formats.inert import is_inert
from fedavg.formats.stablebaselines import BaselinesZip
from fedavg.merging import Contribution, merge
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from tests.support.rounds import Shell, keep, make_group, upload

pytestmark = pytest.mark.unit


def slower(progress: float, rate: float = 1e-4) -> float:
    """A schedule of one's own."""
    return rate * progress


def kept(value: object, data: bytes | None = None) -> dict[str, str]:
    """A value as stable-baselines3 writes one that JSON does not know."""
    dumped = pickle.dumps(value) if data is None else data
    return {":type:": str(type(value)), ":serialized:": base64.b64encode(dumped).decode()}


def class_of(module: str, name: str) -> bytes:
    """The pickle of a class that is not installed here."""
    texts = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() + b"\x94" for t in (module, name))
    return b"\x80\x05" + texts + b"\x93\x94."


TEXT = b"\x8c\x05numpy"
POLICY = class_of("stable_baselines3.dqn.policies", "DQNPolicy")


def document(seed: int, **changes: object) -> dict[str, Any]:
    """What a worker's own file says after some steps: much of it is like nobody else's."""
    dice = np.random.default_rng(seed)
    return {
        "policy_class": kept(object, POLICY),
        "lr_schedule": kept(slower),
        "num_timesteps": 100 * seed,
        "start_time": 1_700_000_000 + seed,
        "gamma": 0.99,
        "_last_obs": kept(dice.standard_normal((4, 8))),
        "ep_info_buffer": kept(deque([{"r": np.float32(seed), "l": 5, "t": 0.5}], maxlen=100)),
        "dice": kept(dice),
        **changes,
    }


def writes(data: object, value: float = 1.0, **more: bytes) -> Callable[[str], None]:
    def write(path: str) -> None:
        inner = io.BytesIO()
        torch.save({"q_net.0.weight": torch.full((2, 2), value)}, inner)
        with zipfile.ZipFile(path, "w") as archive:
            if data is not None:
                archive.writestr("data", data if isinstance(data, bytes) else json.dumps(data))
            archive.writestr("policy.pth", inner.getvalue())
            archive.writestr("_stable_baselines3_version", "2.7.0")
            archive.writestr("system_info.txt", f"- host {value}")
            for name, content in more.items():
                archive.writestr(name, content)

    return write


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


def baselines(store: Store, job: str, episode: int, data: object, value: float = 1.0) -> None:
    upload(store, "g", job, episode, writes(data, value), name="checkpoint.zip")


def published(store: Store, episode: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(store.path(f"{groups.global_dir('g', episode)}/global_weights.zip"))


def load(archive: zipfile.ZipFile) -> dict[str, Any]:
    """As stable-baselines3 does, but for the classes that are not installed here."""
    found = json.loads(archive.read("data"))
    for name, value in found.items():
        if isinstance(value, dict) and ":serialized:" in value and name != "policy_class":
            found[name] = pickle.loads(base64.b64decode(value[":serialized:"]))
    return dict(found)


def weight(archive: zipfile.ZipFile) -> float:
    inner = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    return float(inner["q_net.0.weight"][0, 0])


def test_no_participant_puts_code_into_the_model_of_a_later_round(
    store: Store, tmp_path: Path
) -> None:
    make_group(store, "ab")
    for seed, job in enumerate("ab"):
        baselines(store, job, 1, document(seed))
    keep(store)
    evil = document(7, policy_class=kept(Shell(f"touch {tmp_path}/ran")), more=kept(Shell("true")))
    baselines(store, "a", 2, evil, 2.0)
    baselines(store, "b", 2, document(2), 4.0)
    keep(store)
    with published(store, 2) as first, published(store, 3) as second:
        assert second.read("data") == first.read("data")
        assert second.read("system_info.txt") == first.read("system_info.txt")
        load(second)
        assert weight(second) == 3.0
    assert not GroupEye(store, "g").refusals(2) and not os.path.exists(tmp_path / "ran")


@pytest.mark.parametrize("jobs", ["ab", "abc"])
def test_no_participant_puts_code_into_the_first_model(
    store: Store, tmp_path: Path, jobs: str
) -> None:
    make_group(store, jobs)
    code = kept(Shell(f"touch {tmp_path}/ran"))
    baselines(store, "a", 1, document(0, policy_class=code, _last_obs=code, more=code))
    for seed, job in enumerate(jobs[1:], 1):
        baselines(store, job, 1, document(seed))
    keep(store)
    with published(store, 2) as archive:
        found = load(archive)
    assert found["policy_class"] == document(0)["policy_class"]
    assert "more" not in found and found["_last_obs"].shape == (4, 8)
    assert not os.path.exists(tmp_path / "ran")


def test_honest_files_differ_and_are_merged(store: Store) -> None:
    make_group(store, "abc")
    for seed, job in enumerate("abc", 1):
        baselines(store, job, 1, document(seed), float(seed))
    keep(store)
    with published(store, 2) as archive:
        found = load(archive)
        assert weight(archive) == 2.0
        assert archive.namelist()[0] == "data" and archive.testzip() is None
    assert list(found) == list(document(1))
    assert found["lr_schedule"](1.0) == 1e-4 and found["num_timesteps"] == 100
    assert found["ep_info_buffer"][0]["r"] == 1 and found["gamma"] == 0.99


def test_krum_chooses_a_model_and_not_its_code(tmp_path: Path) -> None:
    code = kept(Shell(f"touch {tmp_path}/ran"))
    opened = {}
    for name, value in {"a": 1.0, "b": 0.9, "c": 1.1, "d": 5.0}.items():
        data = document(1, policy_class=code) if name == "a" else document(1)
        writes(data, value)(str(tmp_path / name))
        opened[name] = open_checkpoint(tmp_path / name)
    inputs = [Contribution(name, model) for name, model in opened.items()]
    merged = merge(strategies.rule("krum", {"f": 0}), inputs, str(tmp_path / "out"))
    assert [*merged.weights] == ["a"]
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert json.loads(archive.read("data"))["policy_class"] == document(1)["policy_class"]


def test_what_differs_and_may_run_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = []
    for name in "ab":
        rate = float(ord(name))
        schedule = kept(partial(slower, rate=rate))
        writes(document(1, lr_schedule=schedule))(str(tmp_path / name))
        inputs.append(Contribution(name, open_checkpoint(tmp_path / name)))
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"))
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert set(document(1)) - set(load(archive)) == {"lr_schedule"}
    assert "'lr_schedule' is left out of the output" in caplog.text


def test_a_base_gives_what_is_not_merged(tmp_path: Path) -> None:
    for name, seed in (("base", 1), ("a", 2), ("b", 3)):
        writes(document(seed), float(seed))(str(tmp_path / name))
    inputs = [Contribution(name, open_checkpoint(tmp_path / name)) for name in "ab"]
    base = open_checkpoint(tmp_path / "base")
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"), base=base)
    with zipfile.ZipFile(tmp_path / "out") as out, zipfile.ZipFile(tmp_path / "base") as before:
        for name in ("data", "system_info.txt"):
            assert out.read(name) == before.read(name)
        assert weight(out) == 2.5


@pytest.mark.parametrize(
    "data",
    [None, b"", b"garbage", b"[1]", b'{"a": 1, "a": 2}', b'{"a": {":serialized:": 5}}',
     b'{"a": {":serialized:": "%%"}}', b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_a_garbled_document_does_not_count(tmp_path: Path, data: bytes | None) -> None:
    inputs = []
    for name, what in (("a", data), ("b", document(1))):
        writes(what)(str(tmp_path / name))
        inputs.append(Contribution(name, open_checkpoint(tmp_path / name)))
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"))
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert load(archive)["gamma"] == 0.99


@pytest.mark.parametrize("honest", ["too large", "without"])
def test_who_has_no_say_counts_among_all(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, honest: str
) -> None:
    make_group(store, "abc")
    code = kept(Shell(f"touch {tmp_path}/ran"))
    frames = kept(np.zeros(7 << 20, np.uint8))  # 9.3 MiB as text
    for seed, job in enumerate("ab"):
        large = document(seed, _last_obs=frames)
        baselines(store, job, 1, large if honest == "too large" else None)
    baselines(store, "c", 1, document(2, policy_class=code, more=code))
    keep(store)
    with published(store, 2) as archive:
        found = load(archive)
    assert "more" not in found and "policy_class" not in found
    assert found["gamma"] == 0.99 and found["_last_obs"].shape == (4, 8)  # nothing in these runs
    assert not os.path.exists(tmp_path / "ran")
    silent = "the `data` of 'a', 'b' has no say in the output: it is more than 8 MiB"
    assert (silent in caplog.text) == (honest == "too large")


def test_a_document_of_half_of_all_is_not_most(tmp_path: Path) -> None:
    code = json.dumps({"more": kept(Shell("true")), "gamma": 0.5}).encode()
    for others in ((None, None), (b"garbage", None), (b"x", b"y"), (None, b'{"gamma": 0.9}')):
        documents = dict(zip("abcd", (code, code, *others), strict=True))
        found = agreed(documents)
        assert json.loads(found.document or b"") == {"gamma": 0.5}
        assert found.left_out == ("more",)
        assert found.unheard == tuple(n for n in "cd" if b"gamma" not in (documents[n] or b""))
    assert agreed({"a": code, "b": code, "c": None}).document == code


def test_where_nobody_has_a_say_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = document(1, _last_obs=kept(np.zeros(7 << 20, np.uint8)))
    for name, data in (("a", large), ("b", b"garbage"), ("c", None)):
        writes(data)(str(tmp_path / name))
    opened = {name: open_checkpoint(tmp_path / name) for name in "abc"}
    inputs = [Contribution(name, model) for name, model in opened.items()]
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"))
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert "data" not in archive.namelist() and weight(archive) == 1.0
    words = "the `data` of 'a', 'b' is left out, the output has none: it is more than 8 MiB"
    assert words in caplog.text and "exclude=['_last_obs']" in caplog.text


def test_who_is_alone_keeps_what_he_has(tmp_path: Path) -> None:
    large = json.dumps(document(1, _last_obs=kept(np.zeros(7 << 20, np.uint8)))).encode()
    writes(large)(str(tmp_path / "a"))
    inputs = [Contribution("a", open_checkpoint(tmp_path / "a"))]
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"))
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert archive.read("data") == large


def test_nobody_has_a_document(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        writes(None)(str(tmp_path / name))
    inputs = [Contribution(name, open_checkpoint(tmp_path / name)) for name in "ab"]
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "out"))
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert "data" not in archive.namelist()
    assert not caplog.records


def test_a_document_is_read_up_to_its_limit(tmp_path: Path) -> None:
    writes(b"x" * 10)(str(tmp_path / "a"))
    with open_checkpoint(tmp_path / "a") as model:
        assert isinstance(model, BaselinesZip)
        assert model.small("data", 10) == b"x" * 10
        assert model.small("data", 9) is None and model.small("none", 10) is None


def test_two_members_with_one_key_are_refused(tmp_path: Path) -> None:
    inner = io.BytesIO()
    torch.save({"q_net": {"0.weight": torch.ones(2)}}, inner)
    outer = io.BytesIO()
    torch.save({"0.weight": torch.ones(2)}, outer)
    path = tmp_path / "a"
    writes(None, **{"two.pth": inner.getvalue(), "two.q_net.pth": outer.getvalue()})(str(path))
    with pytest.raises(UnsupportedCheckpoint, match=r"two of its members have 'two\.q_net"):
        open_checkpoint(path)


def test_nobody_s_document_can_be_read() -> None:
    assert agreed({"a": b"x", "b": b"y"}).document is None
    assert agreed({"a": b"x", "b": b"y", "c": b"x"}).document == b"x"


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_data_is_inert(protocol: int) -> None:
    for value in (
        np.zeros((3, 4), np.float32), np.array([True]), np.int64(3), deque([1.0]), [1, "a", b"b"],
        np.random.default_rng(1), np.random.RandomState(1), {"a": (1, 2)}, np.zeros(3000),
        [np.zeros(2)] * 300,
    ):  # fmt: skip
        assert is_inert(pickle.dumps(value, protocol))
    assert is_inert(POLICY)


def odd_name(first: bytes, second: bytes) -> bytes:
    return b"\x80\x04" + first + second + b"\x93)R."


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Shell("true")), pickle.dumps(Shell("true"), 2), pickle.dumps(slower),
        pickle.dumps(print), pickle.dumps(np.array([Shell("true")])), pickle.dumps(deque([print])),
        POLICY[:-1] + b")R.", POLICY[:-1] + b"N}b.", POLICY[:-1] + TEXT + b"\x8c\x07ndarray\x930.",
        b"", b"no pickle", b"\x80\x05K\x01", pickle.dumps(1)[:-1],
        b"cposix\nsystem\n.", b"(iposix\nsystem\n.", b"(cposix\nsystem\no.", b"\x82\x01.", b"P1\n.",
        odd_name(TEXT, b"K\x01\x8c\x07ndarray0"),
        odd_name(TEXT + b"\x8c\x07ndarray0", b"\x8c\x05posix\x8c\x06system00"),
        odd_name(b"\x8c\x05posix\x94\x8c\x06system\x94", b"h\x00h\x01"),
        odd_name(b"\x8c\x05posix" + TEXT + b"q\x00", b"0\x8c\x06system"),
        b"\x80\x04" + b"K\x010" * 60_000 + b"N.",
    ],
)  # fmt: skip
def test_what_may_run_is_not_inert(data: bytes) -> None:
    assert not is_inert(data)
