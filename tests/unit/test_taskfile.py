"""Task files, and submitting one and taking its results though killed at every step."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctl import gather, roots, streams, submission
from ctl.spool import Spool
from ctl.streams import Sent, Submission, Taken
from ctl.taskfile import TaskFile, fields_of, to_json
from fsworker.errors import (
    Busy,
    DeadlineExceeded,
    FleetError,
    FormatError,
    NoWorkers,
    StorageError,
    UsageError,
)
from fsworker.protocol import layout, packing
from fsworker.protocol.fsops import Store
from tests.support.small_worker import SmallWorker, make_run

FN = "tests.fn:first"


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine crashes here, and a disk that is busy would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


# -- lines


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("5", [None, [5]]),
        ("null", [None, [None]]),
        ('"text"', [None, ["text"]]),
        ("[1, 2]", [None, [[1, 2]]]),
        ('{"prompt": "p", "answer": 4}', [None, [{"prompt": "p", "answer": 4}]]),
        ('{"id": 1, "timeout": 2}', [None, [{"id": 1, "timeout": 2}]]),
        ("{}", [None, [{}]]),
        ('{"args": [1, 2]}', [None, [1, 2]]),
        ('{"args": []}', [None, []]),
        ('{"kwargs": {"a": 1}}', [None, [], {"a": 1}]),
        ('{"args": [1], "kwargs": {"a": 1}, "id": "x"}', ["x", [1], {"a": 1}]),
        ('{"args": [1], "id": 0, "timeout": 1.5}', [0, [1], {}, {"timeout": 1.5}]),
        ('{"args": [{"args": 1}]}', [None, [{"args": 1}]]),
    ],
)
def test_what_a_line_means(line: str, fields: list[Any]) -> None:
    assert fields_of(json.loads(line)) == fields


def test_a_line_of_keyword_arguments() -> None:
    assert fields_of({"args": 1, "b": 2}, keywords=True) == [None, [], {"args": 1, "b": 2}]
    with pytest.raises(ValueError, match="must be an object"):
        fields_of([1], keywords=True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "Expecting"),
        (b"[1, NaN]", "NaN is not a JSON value"),
        (b"\xff", "utf-8"),
        (b"[" * 100_000, "nested too deep|recursion"),
        (b'{"args": [1], "answer": 2}', "cannot have 'answer'"),
        (b'{"args": 1}', "`args` must be a list"),
        (b'{"args": [], "kwargs": []}', "`kwargs` must be an object"),
        (b'{"args": [], "id": 1.5}', "`id` must be"),
        (b'{"args": [], "id": true}', "`id` must be"),
        (b'{"args": [], "id": "a\\u0000b"}', "`id` holds a NUL character"),
        (b'{"args": [], "timeout": 0}', "`timeout` must be"),
        (b'{"args": [], "timeout": "1"}', "`timeout` must be"),
        (b'["\\ud800"]', "lone surrogate"),
        (b"1" * 30, "an integer outside"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"1\n\n" + line + b"\n2\n")
    tasks = TaskFile(str(path))
    with pytest.raises(UsageError, match=rf"{path}, line 3: .*({why})"):
        tasks.cut(10, 10**6)
    tasks.close()


def test_a_file_is_read_whatever_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf1\r\n\r\n 2 \n[3]")
    tasks = TaskFile(str(path))
    assert [packing.unpack(r)[1] for r in tasks.records()] == [[1], [2], [[3]]]
    assert tasks.count() == 3 and tasks.cut(2, 10**6) == (2, 3)
    tasks.close()


def test_batches_are_cut_by_number_and_by_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps("x" * n) + "\n" for n in (10, 10, 500, 10, 400, 400, 10)))
    tasks = TaskFile(str(path))
    assert tasks.cut(2, 10**6) == (2, 4, 6, 7)
    # The fifth would make 416 bytes of strings and more of packing: 450 hold it, not the sixth.
    assert tasks.cut(100, 450) == (2, 3, 5, 7)
    assert tasks.cut(100, 10**6) == (7,)
    tasks.close()


def test_files_that_cannot_be_tasks(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    tasks = TaskFile(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="holds no task"):
        tasks.cut(1, 1000)
    tasks.close()
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(UsageError, match=f"cannot read {path}"):
            TaskFile(str(path))
    os.mkfifo(tmp_path / "pipe")
    keep_open = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(UsageError, match="read twice"):
        TaskFile(str(tmp_path / "pipe"))
    os.close(keep_open)


# -- values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None, True, "é"]}, '{"a": [1, null, true, "é"]}'),
        ((1, (2,)), "[1, [2]]"),
        (b"\x00", '{"__repr__": "b\'\\\\x00\'"}'),
        ([float("nan"), 1.5], '[{"__repr__": "nan"}, 1.5]'),
        ({1: 2}, '{"1": 2}'),
        ({(1, 2): 3}, '{"(1, 2)": 3}'),
        ("\ud800", '"\\ud800"'),
    ],
)
def test_values_as_json(value: Any, text: str) -> None:
    assert to_json(value) == text
    json.loads(to_json(value))


def test_numpy_values_as_json() -> None:
    np = pytest.importorskip("numpy")
    value = {"a": np.arange(4).reshape(2, 2), "s": np.float32(0.5)}
    assert to_json(value) == '{"a": [[0, 1], [2, 3]], "s": 0.5}'


# -- submit and results


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", (FN, "tests.fn:second"))


def _file(tmp_path: Path, count: int) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"args": [i], "id": f"t{i}"}) + "\n" for i in range(count)))
    return str(path)


def _submit(root: Path, path: str, size: int | None = None, **options: Any) -> Submission:
    run = roots.open_run(str(root))
    tasks = TaskFile(path, keywords=options.pop("keywords", False))
    try:
        stream, fn = options.get("stream"), options.get("fn")
        asked = submission.ask(run, tasks, stream, fn, options.get("timeout"))
        with streams.locked(run.store, asked.stream, "lock"):
            wanted = submission.begin(run, tasks, asked, size)
            submission.carry_out(run, tasks, wanted, lambda done: None)
    finally:
        tasks.close()
    return wanted


def _gather(root: Path, out: Path, **options: Any) -> Taken:
    run = roots.open_run(str(root))
    wanted = gather.find(run, options.pop("stream", None))
    limits = {"timeout": 20.0, "no_worker_timeout": 20.0, **options}
    return gather.gather(run, wanted, str(out), progress=lambda done: None, **limits)


def _serve(root: Path, fn: Callable[..., Any] = lambda x: x) -> Counter[Any]:
    """Execute all that is pending; how often each task was executed."""
    ran: Counter[Any] = Counter()

    def counted(value: Any) -> Any:
        ran[value] += 1
        return fn(value)

    SmallWorker(root, {FN: counted, "tests.fn:second": counted}).serve_once()
    return ran


def _rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_results_come_in_the_order_of_the_input(root: Path, tmp_path: Path) -> None:
    def grade(value: int) -> Any:
        if value == 3:
            raise ValueError("plainly wrong")
        return (value, b"")

    wanted = _submit(root, _file(tmp_path, 10), size=4)
    assert len(wanted.ends) == 3 and len(_serve(root, grade)) == 10
    taken = _gather(root, tmp_path / "out")
    assert taken.complete and taken.failed == 1
    rows = _rows(tmp_path / "out")
    assert [(r["index"], r["id"]) for r in rows] == [(i, f"t{i}") for i in range(10)]
    assert rows[4] == {"index": 4, "id": "t4", "status": "ok", "value": [4, {"__repr__": "b''"}]}
    assert rows[3]["status"] == "error" and rows[3]["error"]["type"] == "ValueError"
    assert sorted(os.listdir(tmp_path)) == ["out", "run", "tasks.jsonl"]
    assert os.listdir(root / layout.OUTBOX) == []
    assert _gather(root, tmp_path / "out") == taken


def test_few_tasks_are_spread_and_many_are_packed(root: Path, tmp_path: Path) -> None:
    assert len(_submit(root, _file(tmp_path, 20)).ends) == 20
    wanted = _submit(root, _file(tmp_path, 20_000))
    assert len(wanted.ends) == 79 and set(wanted.shards) == {0, 1}


def test_the_same_file_twice_is_one_submission(root: Path, tmp_path: Path) -> None:
    path = _file(tmp_path, 5)
    first = _submit(root, path)
    assert _submit(root, path) == first and first.stream.startswith("tasks-")
    assert sum(_serve(root).values()) == 5
    assert _submit(root, path) == first
    assert _serve(root) == {}
    again = _submit(root, path, stream="again")
    assert again.stream == "again" and sum(_serve(root).values()) == 5


def test_a_stream_has_one_file_function_and_timeout(root: Path, tmp_path: Path) -> None:
    path = _file(tmp_path, 5)
    _submit(root, path, stream="s")
    with pytest.raises(UsageError, match=r"with the function tests\.fn:first"):
        _submit(root, path, stream="s", fn="tests.fn:second")
    with pytest.raises(UsageError, match="with the timeout None"):
        _submit(root, path, stream="s", timeout=5.0)
    _file(tmp_path, 6)
    with pytest.raises(UsageError, match=f"with other tasks, from {path}: give --stream"):
        _submit(root, path, stream="s")
    with pytest.raises(UsageError, match="does not serve"):
        _submit(root, path, fn="os:system")
    with pytest.raises(UsageError, match="--stream"):
        _submit(root, path, stream="x" * 300)


def test_nothing_is_submitted_when_a_line_is_bad(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("1\n" * 1000 + "x\n")
    with pytest.raises(UsageError, match="line 1001"):
        _submit(root, str(path))
    assert not os.listdir(root / "inbox/0") + os.listdir(root / "inbox/1")
    assert streams.names(Store(root)) == []


class Killed(BaseException):
    """The process is no more."""


@contextmanager
def _killed_at(step: int, after: bool) -> Iterator[Counter[str]]:
    """Die before or after the `step`-th operation on the root or the spool. Gives the count."""
    seen: Counter[str] = Counter()
    patch = pytest.MonkeyPatch()

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen["ops"] += 1
            if seen["ops"] == step and not after:
                raise Killed
            answer = real(*args, **kwargs)
            if seen["ops"] == step:
                raise Killed
            return answer

        return call

    def close(spool: Spool) -> None:
        if (
            seen["ops"] >= step and not spool._file.closed
        ):  # what a dead process had not flushed is lost
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, spool._file.fileno())
            os.close(null)
        spool._file.close()

    patch.setattr(Spool, "close", close)
    for name in ("put", "rename", "remove", "sync_folder", "mkdir", "rmdir"):
        patch.setattr(Store, name, mortal(getattr(Store, name)))
    for name in ("keep", "sync", "finish", "remove"):
        patch.setattr(Spool, name, mortal(getattr(Spool, name)))
    try:
        yield seen
    finally:
        patch.undo()


@pytest.mark.parametrize("after", [False, True])
def test_submitting_survives_being_killed_at_every_step(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "WINDOW", 2)
    path = _file(tmp_path, 7)
    for step in range(1, 500):
        root = make_run(tmp_path / f"run{step}", (FN,))
        ran: Counter[Any] = Counter()
        with _killed_at(step, after) as seen:
            try:
                _submit(root, path, size=2, stream="s")
            except Killed:
                pass
        # Workers take what they see at once, so that names that are used twice would show.
        ran += _serve(root)
        if seen["ops"] < step:
            break
        _submit(root, path, size=2, stream="s")
        ran += _serve(root)
        assert ran == Counter(range(7)), f"killed at step {step}"
    else:
        raise AssertionError("the submission never ended")
    assert step > 30


@pytest.mark.parametrize("after", [False, True])
def test_taking_results_survives_being_killed_at_every_step(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "AT_ONCE", 2)
    path = _file(tmp_path, 7)
    for step in range(1, 500):
        root, out = make_run(tmp_path / f"run{step}", (FN,)), tmp_path / f"out{step}"
        _submit(root, path, size=2, stream="s")
        _serve(root)
        with _killed_at(step, after) as seen:
            try:
                _gather(root, out)
            except Killed:
                pass
        ended = seen["ops"] < step
        _gather(root, out)
        assert [r["value"] for r in _rows(out)] == list(range(7)), f"killed at step {step}"
        assert not os.path.exists(f"{out}.partial") and not os.listdir(root / layout.OUTBOX)
        if ended:
            break
    else:
        raise AssertionError("it never ended")
    assert step > 15


def test_half_a_line_was_never_kept(root: Path, tmp_path: Path) -> None:
    wanted = _submit(root, _file(tmp_path, 4), size=2, stream="s")
    _serve(root)
    out = tmp_path / "out"
    kept = Spool(str(out), wanted)
    kept.keep(0, [[0, "t0", "ok", "kept"], [1, "t1", "ok", "kept"]])
    kept.sync()
    kept.close()
    whole = Path(kept.path).read_bytes()
    for cut in range(len(whole)):
        Path(kept.path).write_bytes(whole[:cut])
        again = Spool(str(out), wanted)
        assert len(again) == 0 and not again.complete
        again.close()
    Path(kept.path).write_bytes(whole + b'{"batch": 1, "rows"')
    _gather(root, out)
    assert [r["value"] for r in _rows(out)] == ["kept", "kept", 2, 3]


def test_a_partial_file_of_something_else_is_refused(root: Path, tmp_path: Path) -> None:
    wanted = _submit(root, _file(tmp_path, 4), stream="s")
    out = tmp_path / "out"
    Spool(str(out), _submit(root, _file(tmp_path, 5), stream="other")).close()
    with pytest.raises(UsageError, match=r"does not hold results of stream 's'"):
        Spool(str(out), wanted)
    Path(f"{out}.partial").write_text("what is this\nand this\n")
    with pytest.raises(FormatError, match=r"out\.partial, line 1"):
        Spool(str(out), wanted)
    with pytest.raises(UsageError, match="cannot write"):
        Spool(str(tmp_path / "no" / "out"), wanted)


def test_results_go_to_one_file(root: Path, tmp_path: Path) -> None:
    _submit(root, _file(tmp_path, 4), stream="s")
    with pytest.raises(DeadlineExceeded, match="0 of 4 results of stream 's' are kept"):
        _gather(root, tmp_path / "a", timeout=0.05)
    with pytest.raises(UsageError, match=rf"are taken to {tmp_path}/a "):
        _gather(root, tmp_path / "b")
    os.unlink(tmp_path / "a.partial")
    with pytest.raises(StorageError, match=r"a\.partial is gone"):
        _gather(root, tmp_path / "a")


def test_results_that_were_moved_away_are_missed(root: Path, tmp_path: Path) -> None:
    _submit(root, _file(tmp_path, 4), stream="s")
    _serve(root)
    _gather(root, tmp_path / "a")
    os.unlink(tmp_path / "a")
    with pytest.raises(UsageError, match="which is gone"):
        _gather(root, tmp_path / "a")


def test_a_submission_that_was_not_finished_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "WINDOW", 2)
    path = _file(tmp_path, 8)
    real = streams.write

    def write(store: Store, stream: str, record: Any) -> None:
        if record == Sent(4, 2):
            raise Killed
        real(store, stream, record)

    with monkeypatch.context() as patch:
        patch.setattr(streams, "write", write)
        with pytest.raises(Killed):
            _submit(root, path, size=2, stream="s")
    _serve(root)
    with pytest.raises(
        FleetError, match=r"4 of 8 results.*only 4 tasks were submitted.*--stream s"
    ):
        _gather(root, tmp_path / "out")
    run = roots.open_run(str(root))
    with streams.locked(run.store, "s", "lock"), pytest.raises(DeadlineExceeded):
        _gather(root, tmp_path / "out", timeout=0.1)  # somebody is at it: wait
    _submit(root, path, stream="s")
    _serve(root)
    _gather(root, tmp_path / "out")
    assert [r["value"] for r in _rows(tmp_path / "out")] == list(range(8))


def test_one_at_a_time(root: Path) -> None:
    store = Store(root)
    with streams.locked(store, "s", "lock"):
        with pytest.raises(Busy), streams.locked(store, "s", "lock", patience=0):
            pass
        with streams.locked(store, "s", "results.lock"):
            pass
        assert streams.is_locked(store, "s", "lock")
    assert not streams.is_locked(store, "s", "lock")


def test_nobody_serves(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsworker.client.liveness.LOOK_EVERY", 0.02)
    monkeypatch.setattr("fsworker.client.liveness.QUIET", 0.02)
    _submit(root, _file(tmp_path, 4), stream="s")
    with pytest.raises(NoWorkers):
        _gather(root, tmp_path / "out", no_worker_timeout=0.1)


def test_damaged_and_missing_results_are_told(root: Path, tmp_path: Path) -> None:
    _submit(root, _file(tmp_path, 4), size=2, stream="s")
    worker = SmallWorker(root, {FN: lambda x: x})
    first, second = worker.pending()
    mine, batch = worker.claim(first)
    worker.spoil = lambda token, data: data + b"\0"
    worker.write(mine, worker.execute(mine, batch))
    worker.commit(mine)
    worker.spoil = None
    mine, batch = worker.claim(second)
    worker.write(mine, worker.execute(mine, batch)[1:])
    worker.commit(mine)
    assert _gather(root, tmp_path / "out").failed == 3
    rows = _rows(tmp_path / "out")
    assert [r["status"] for r in rows] == ["invalid", "invalid", "invalid", "ok"]
    assert (
        "is damaged" in rows[0]["error"]["message"] and rows[2]["error"]["type"] == "MissingResult"
    )
    assert len(os.listdir(root / layout.QUARANTINE)) == 2


def test_the_stream_must_be_known(root: Path, tmp_path: Path) -> None:
    run = roots.open_run(str(root))
    with pytest.raises(UsageError, match=r"nothing was submitted to .* yet: use ctl submit"):
        gather.find(run, None)
    _submit(root, _file(tmp_path, 1), stream="a.b/c")
    assert gather.find(run, None).stream == "a.b/c" == streams.names(run.store)[0]
    _submit(root, _file(tmp_path, 1), stream="d")
    with pytest.raises(UsageError, match=r"it has a\.b/c, d"):
        gather.find(run, None)
    with pytest.raises(UsageError, match=r"'e' by `ctl submit`: there are a\.b/c, d"):
        gather.find(run, "e")


def test_a_file_that_changes_meanwhile_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, 4)
    real = submission.carry_out

    def carry_out(*args: Any) -> None:
        with open(path, "a") as file:
            file.write("5\n")
        real(*args)

    monkeypatch.setattr(submission, "carry_out", carry_out)
    with pytest.raises(UsageError, match="changed while it was read"):
        _submit(root, path)
    assert _serve(root) == {}
