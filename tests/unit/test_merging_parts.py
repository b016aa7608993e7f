"""The parts around a merge: memory, threads, errors amid writing, the command, FedProx."""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedavg.checkpoint import open_checkpoint
from fedavg.cli import main
from fedavg.engine.crew import InOrder, work_off
from fedavg.fedprox import add_proximal_gradient, proximal_term, snapshot
from fsworker.errors import UsageError
from tests.support.waiting import wait_until

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]

# -- memory

MERGE_A_LARGE_ONE = """
import json, os, resource, struct, sys
import torch
from fedavg.checkpoint import open_checkpoint
from fedavg.merging import Contribution, merge
from fedavg.strategies import rule

path, size = sys.argv[1] + "/model.safetensors", int(sys.argv[2])
entry = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
header = json.dumps({"w": entry}).encode()
with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header)
    file.truncate(8 + len(header) + size)  # zeros that take no room
inputs = [Contribution(str(i), open_checkpoint(path)) for i in range(int(sys.argv[3]))]
of = rule(sys.argv[4])
torch.zeros(1000) @ torch.zeros(1000)  # what torch needs once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
merge(of, inputs, path + ".out", digests=False)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize(
    ("size", "count", "name", "bound"),
    [(192, 3, "fedavg", 128), (32, 32, "fedavg", 128), (32, 8, "trimmed-mean", 160)],
)
def test_memory_grows_with_neither_size_nor_number(
    tmp_path: Path, size: int, count: int, name: str, bound: int
) -> None:
    """MiB of a model, participants, and the MiB by which the process may grow."""
    done = subprocess.run(
        [sys.executable, "-c", MERGE_A_LARGE_ONE, str(tmp_path), str(size << 20), str(count), name],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < bound


@pytest.mark.parametrize(("format", "most"), [("safetensors", 1100), ("pt", 900), ("json", 700)])
def test_what_is_known_of_a_tensor_takes_as_much_as_the_documents_say(
    tmp_path: Path, format: str, most: int
) -> None:
    """In bytes, for each tensor of each file that is open."""
    path, count = str(tmp_path / f"model.{format}"), 2000
    tree = {f"model.layers.{i}.weight": torch.ones(2) for i in range(count)}
    if format == "json":
        Path(path).write_text(json.dumps({key: [1.0, 2.0] for key in tree}))
    else:
        save_file(tree, path) if format == "safetensors" else torch.save(tree, path)
    open_checkpoint(path).close()  # what is made once
    tracemalloc.start()
    try:
        with open_checkpoint(path) as opened:
            gc.collect()
            assert len(opened.entries) == count
            assert 100 < tracemalloc.get_traced_memory()[0] / count < most
    finally:
        tracemalloc.stop()


# -- threads


def test_of_several_errors_the_first_item_s_is_raised() -> None:
    both = threading.Barrier(2)

    def make() -> Any:
        def work(item: int) -> None:
            both.wait(120)
            raise ValueError(item)

        return work

    for _ in range(20):
        with pytest.raises(ValueError, match=r"^0$"):
            work_off(range(100), make, 2)


def test_nothing_is_begun_after_an_error() -> None:
    seen = []

    def work(item: int) -> None:
        seen.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        work_off(range(100), lambda: work, 1)
    assert seen == [0]


def test_the_number_of_torchs_threads_is_as_before() -> None:
    before = torch.get_num_threads()
    inside: list[int] = []
    work_off([0], lambda: lambda item: inside.append(torch.get_num_threads()), 1)
    assert inside == [1] and torch.get_num_threads() == before


def test_results_are_taken_in_their_order() -> None:
    taken: list[str] = []
    ordered = InOrder(taken.append)
    for index in (2, 0, 3, 1):
        ordered.put(index, str(index))
    assert taken == ["0", "1", "2", "3"]


# -- the command


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    paths = []
    for i, name in enumerate("abc"):
        path = tmp_path / f"{name}.pt"
        torch.save({"w": torch.full((4,), float(i)), "step": torch.tensor(i)}, path)
        paths.append(str(path))
    return paths


def test_merge_writes_a_file_and_says_who_took_part(
    three: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.pt"
    assert main(["merge", *three, "-o", str(out), "--weights", "10,30,0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weights"] == {three[0]: 0.25, three[1]: 0.75}
    assert torch.load(out)["w"].tolist() == [0.75] * 4
    assert main(["merge", *three, "-o", str(out), "--force"]) == 0
    assert torch.load(out)["w"].tolist() == [1.0] * 4
    assert f"{three[2]}: 33.33%" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "b.pt", "c.pt", "out.pt"]


def test_merge_keeps_an_optimiser_state(three: list[str], tmp_path: Path) -> None:
    for turn in range(2):
        state = ["--state-in", str(tmp_path / "0.state")] if turn else []
        argv = ["merge", *three, "-o", str(tmp_path / f"{turn}.pt"), "--base", three[0]]
        argv += ["--rule", "fedavgm", "--set", "lr=0.5", "--set", "beta=0.5"]
        assert main([*argv, "--state-out", str(tmp_path / f"{turn}.state"), *state]) == 0
    assert torch.load(tmp_path / "0.pt")["w"].tolist() == [0.5] * 4
    assert torch.load(tmp_path / "1.pt")["w"].tolist() == [0.75] * 4


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["--weights", "0,0,0"], 2, "there is nothing to merge, and the old model stays"),
        (["--weights", "1,nan,1"], 2, "b.pt: the sample count nan is no number of samples"),
        (["--weights", "1,-1,1"], 2, "b.pt: the sample count -1.0 is no number of samples"),
        (["--weights", "1,2"], 2, "--weights has 2 numbers for 3 files"),
        (["--weights", "1,x,2"], 2, "give numbers with commas between them"),
        (["--rule", "best"], 2, "there is no merge rule 'best'"),
        (["--rule", "fedadam", "--state-out", "s"], 2, "give that base"),
        (["--rule", "krum", "--set", "f=1"], 2, "needs 5 of them, here are 3"),
        (["--set", "lr"], 2, "give it as NAME=NUMBER"),
        (["--key", "w"], 2, "give it as PATTERN=ACTION"),
        (["--key", "w=double"], 2, "there is no action 'double'"),
        (["--state-out", "s"], 2, "--state-out: fedavg keeps no optimiser state: leave out"),
        (
            ["--rule", "fedbuff", "--base", "a.pt", "--staleness", "0,1e400,0"],
            2,
            "b.pt: a staleness of inf rounds",
        ),
        (
            ["--rule", "fedbuff", "--base", "a.pt", "--staleness", "0,0,nan"],
            2,
            "c.pt: a staleness of nan rounds",
        ),
        (["--staleness", "0,1,2"], 2, "--staleness: fedavg does not weigh by age"),
        (["--base", "a.pt"], 2, "--base: fedavg does not look at the model before"),
        (["--lora", "factors"], 2, "--lora: there are no factors of low-rank adapters"),
        (["--key", "v=max", "--key", "step=max"], 2, "--key v=max: no key is like that: leave"),
        (["nowhere.pt"], 2, "nowhere.pt: there is no such file or folder"),
        ([""], 2, "a file to read has no name"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_nothing(
    three: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir())
    found = main(["merge", *three, "-o", "out.pt", *argv])
    told = capsys.readouterr()
    assert says in told.err and told.err.count("\n") == 1 and told.out == ""
    assert found == code
    assert sorted(os.listdir()) == before


ADAPTER = {"q.lora_A.weight": torch.ones(2, 6), "q.lora_B.weight": torch.ones(5, 2)}
TIED = torch.arange(4.0)
MODEL = {**ADAPTER, "w": TIED, "x": TIED, "i": torch.ones(2, dtype=torch.int64), "n": 3}
PRODUCT, FACTORS = ["--lora", "product"], ["--lora", "factors"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            [*PRODUCT, "--key", "*lora_A*=first"],
            "--key *lora_A*=first: factors are merged by their",
        ),
        ([*FACTORS, "--key", "*lora_A*=first"], None),
        ([*PRODUCT, "--key", "*=first"], None),
        ([*FACTORS, "--key", "w=first"], None),
        ([*FACTORS, "--key", "x=first"], "--key x=first: it changes no key that is like that"),
        ([*FACTORS, "--key", "i=mean"], "--key i=mean: it changes no key that is like that"),
        ([*FACTORS, "--key", "i=max", "--key", "n=max"], None),
        ([*FACTORS, "--key", "w*=first", "--key", "w=mean"], "--key w=mean: it changes no key"),
        ([*FACTORS, "--key", "n=max", "--key", "n*=first"], "--key n*=first: it changes no key"),
        ([*FACTORS, "--key", "w=mean", "--key", "*=first"], None),
        ([*FACTORS, "--key", "i*=mean", "--key", "i=first"], "--key i*=mean: it changes no key"),
    ],
)
def test_a_pattern_that_decides_about_nothing_is_of_no_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], says: str | None
) -> None:
    paths = [str(tmp_path / name) for name in ("a.pt", "b.pt")]
    for path in paths:
        torch.save(MODEL, path)
    code = main(["merge", *paths, "-o", str(tmp_path / "out.pt"), *argv])
    told = capsys.readouterr().err
    assert code == (0 if says is None else 2), told
    if says is not None:
        assert says in told and told.count("\n") == 1 and told.count("--key") == 1


def test_names_that_are_no_text_break_no_sentence_and_steer_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "a\nb\x1b[31m\u202e\udcff"
    models = [{key: torch.zeros(1)}, {key: torch.full((1,), torch.nan)}, {"w": torch.zeros(1)}]
    paths = [str(tmp_path / f"{i}.pt") for i in range(3)]
    for path, model in zip(paths, models, strict=True):
        torch.save(model, path)
    for pair in (paths[:2], paths[::2]):
        assert main(["merge", *pair, "-o", str(tmp_path / "out")]) == 5
        told = capsys.readouterr().err
        assert "a\\nb\\x1b[31m\\u202e\\udcff" in told and told[:-1].isprintable(), told


def test_merge_names_who_is_not_finite(
    three: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(
        {"w": torch.tensor([0.0, 1.0, float("nan"), 2.0]), "step": torch.tensor(1)}, three[1]
    )
    assert main(["merge", *three, "-o", str(tmp_path / "out.pt"), "--json"]) == 5
    told = json.loads(capsys.readouterr().out)
    assert (told["participant"], told["key"], told["exit_code"]) == (three[1], "w", 5)


def test_merge_replaces_nothing_unasked(
    three: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(three[2]).read_bytes()
    assert main(["merge", *three, "-o", three[2]]) == 5
    assert "exists: --force replaces it" in capsys.readouterr().err
    assert Path(three[2]).read_bytes() == before


def test_merge_replaces_nothing_but_files_even_by_force(
    three: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        assert main(["merge", *three, "-o", str(path), "--force"]) == 5
        assert f"{path} exists: it is no regular file" in capsys.readouterr().err
    assert pipe.is_fifo() and link.is_symlink()
    assert main(["merge", *three, "-o", ""]) == 2
    assert "an output has no name" in capsys.readouterr().err
    both = ["-o", str(tmp_path / "x"), "--state-out", str(tmp_path / "x"), "--base", three[0]]
    assert main(["merge", *three, "--rule", "fedavgm", *both]) == 2
    assert "-o and --state-out name one file" in capsys.readouterr().err


def test_merge_undoes_what_it_began_where_the_disk_is_full(
    three: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    torch.save({"w": torch.zeros(1 << 20)}, three[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        code = main(["merge", three[0], "-o", str(tmp_path / "out.pt")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 7 and "out.pt" in capsys.readouterr().err
    assert not [p.name for p in tmp_path.iterdir() if "out" in p.name]


def test_merge_ended_by_term_leaves_nothing(tmp_path: Path) -> None:
    size, large, out = 256 << 20, tmp_path / "large.safetensors", tmp_path / "out.safetensors"
    entry = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"w": entry}).encode()
    with large.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    argv = [sys.executable, "-m", "fedavg", "merge", *[str(large)] * 64, "-o", str(out)]
    with subprocess.Popen(argv, cwd=REPO, stderr=subprocess.PIPE, text=True) as child:
        wait_until(lambda: len(list(tmp_path.iterdir())) > 1, what="an output")
        child.send_signal(signal.SIGTERM)
        assert child.wait(120) == 143
        assert child.stderr is not None and child.stderr.read() == "fedavg: interrupted\n"
    assert list(tmp_path.iterdir()) == [large]


# -- FedProx


def test_the_proximal_gradient_is_that_of_the_term() -> None:
    torch.manual_seed(0)
    model, twin = nn.Linear(4, 3), nn.Linear(4, 3)
    twin.load_state_dict(model.state_dict())
    anchor = {name: value + 0.1 for name, value in snapshot(model).items()}
    x = torch.randn(5, 4)
    model(x).square().mean().backward()
    add_proximal_gradient(model, anchor, mu=0.3)
    (twin(x).square().mean() + proximal_term(twin, anchor, 0.3)).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_unused_and_frozen_parameters_get_no_proximal_gradient() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].requires_grad_(False)
    anchor = snapshot(model)
    assert sorted(anchor) == ["0.bias", "0.weight"]
    add_proximal_gradient(model, anchor, mu=1.0)
    assert all(p.grad is None for p in model.parameters())
    model[0](torch.ones(1, 2)).sum().backward()
    with pytest.raises(UsageError, match=r"no parameter 0.bias"):
        add_proximal_gradient(model, {"0.weight": anchor["0.weight"]}, mu=1.0)
    with pytest.raises(UsageError, match="mu = -1"):
        add_proximal_gradient(model, anchor, mu=-1)
