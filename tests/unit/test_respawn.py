"""The rules and files of a worker's lives: pauses, bounded logs, pid files, stop intents."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from fsworker.errors import FormatError, NotRunning
from fsworker.life import boundlog, lifefiles
from fsworker.life.backoff import Backoff
from fsworker.life.boundlog import BoundHandler, BoundLog, StderrHandler
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import HostIdentity, Identity
from tests.support.roots import make_root

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("lives", "pauses"),
    [
        ([0, 0, 0, 0, 0, 0, 0], [2, 4, 8, 16, 32, 60, 60]),
        ([29.9, 29.9, 30.0, 0, 0], [2, 4, 2, 2, 4]),
        ([100, 100, 100], [2, 2, 2]),
        ([0] * 2000, [2, 4, 8, 16, 32] + [60] * 1995),
    ],
)
def test_pauses_grow_with_short_lives_and_begin_anew_after_a_healthy_one(
    lives: list[float], pauses: list[float]
) -> None:
    short, seen = 0, []
    for lived in lives:
        short, pause = Backoff().after(short, lived)
        seen.append(pause)
    assert seen == pauses


def test_a_log_is_cut_to_its_newest_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for i in range(1000):
            os.write(writer, b"line %06d\n" % i)
        log = BoundLog(str(path), limit=10_000)
        log.tend()
        os.write(writer, b"after\n")
        log.tend()
        log.close()
    finally:
        os.close(writer)
    lines = path.read_text().splitlines()
    assert "cut" in lines[0]
    assert lines[1:] == [f"line {i:06d}" for i in range(1000 - len(lines) + 2, 1000)] + ["after"]
    assert 300 < len(lines) < 500, "half the limit is kept"


def test_a_log_within_its_limit_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100)
    with path.open("r+b", buffering=0) as file:
        assert not boundlog.cut_in_place(file.fileno(), 100, 50)
        assert boundlog.cut_in_place(file.fileno(), 99, 50)


def test_one_endless_line_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000)
    log = BoundLog(str(path), limit=1000)
    log.tend()
    log.close()
    assert path.stat().st_size < 1000


def test_a_log_that_cannot_be_written_is_no_error_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "log"
    log = BoundLog(str(path))
    log.write(b"dropped\n")
    log.tend()
    assert log.open() is None
    path.parent.mkdir()
    log.write(b"one\n")
    path.unlink()
    log.tend()
    log.write(b"two\n")
    log.close()
    assert path.read_bytes() == b"two\n", "it follows its path when the file was deleted"


@pytest.mark.parametrize(("shared", "mode"), [(0o2770, 0o660), (0o700, 0o600)])
def test_a_log_is_as_shared_as_its_root_whatever_the_umask(
    tmp_path: Path, shared: int, mode: int
) -> None:
    root = make_root(tmp_path / "r")
    root.chmod(shared)
    before = os.umask(0o077)
    try:
        log = BoundLog.of(Store(root), "n1", "log")
        log.write(b"x\n")
        log.close()
    finally:
        os.umask(before)
    assert (root / "ctl" / "n1.log").stat().st_mode & 0o777 == mode


def test_a_full_disk_drops_lines_of_a_log_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = BoundLog("/dev/full")
    logger = logging.getLogger("test.full")
    logger.propagate = False  # what no encoding can hold must not reach the test runner's report
    handler = BoundHandler(log)
    logger.addHandler(handler)
    try:
        logger.error("nobody reads this \udcff")
    finally:
        logger.removeHandler(handler)
        log.close()
    assert "Traceback" not in capsys.readouterr().err


def test_a_log_that_was_refused_goes_on_with_its_next_line_and_holds_no_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a mount that tells at a write that the one before it was over quota."""
    real, refusals = os.write, [1, 2, 3]  # both tries of the first line, one of the second

    def write(fd: int, data: bytes) -> int:
        if fd == 2 and refusals:
            raise OSError(errno.EDQUOT, f"Disk quota exceeded {refusals.pop()}")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    handler = StderrHandler()
    for line in ("dropped", "written \udcff", "and on"):
        handler.handle(logging.LogRecord("test", logging.INFO, "", 0, line, None, None))
    assert capfd.readouterr().err == "written \\udcff\nand on\n"


@pytest.mark.parametrize(
    "content",
    [b"0", b"-1", b"1", b"", b"123abc", b"12 13", b"+5", b"0x10", b"9999999999999", b"\xb2", b"\0"],
)
def test_a_bad_pid_file_names_nobody(tmp_path: Path, content: bytes) -> None:
    root = make_root(tmp_path / "r")
    (root / "ctl" / "n1.pid").write_bytes(content)
    assert lifefiles.read_pid(Store(root), "ctl/n1.pid") is None


def test_pid_files_are_bare_numbers_and_only_ones_own_are_withdrawn(tmp_path: Path) -> None:
    root = make_root(tmp_path / "r")
    store = Store(root)
    who = HostIdentity("n1", 3, Identity("n1", "b", "p", 100, 5), Identity("n1", "b", "p", 101, 6))
    lifefiles.publish(store, who)
    wrap, pid = root / "ctl" / "n1.wrap.pid", root / "ctl" / "n1.pid"
    assert (wrap.read_text(), pid.read_text()) == ("100\n", "101\n")
    assert lifefiles.read_identity(store, "n1") == who
    pid.write_text("102\n")
    lifefiles.withdraw(store, "n1", [100, 101])
    assert not wrap.exists()
    assert pid.read_text() == "102\n", "a successor's"
    lifefiles.withdraw(store, "n1", [100, 101])


def test_without_a_wrapper_there_is_no_wrapper_file(tmp_path: Path) -> None:
    root = make_root(tmp_path / "r")
    me = Identity("n1", "b", "p", 101, 6)
    lifefiles.publish(Store(root), HostIdentity("n1", 3, worker=me))
    assert sorted(p.name for p in (root / "ctl").iterdir() if p.is_file()) == [
        "n1.identity.json",
        "n1.pid",
    ]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [(b"", True), (b"7", True), (b"8\n", True), (b"6", False), (b"now!", True), (b"\xff", True)],
)
def test_a_stop_intent_covers_launches(tmp_path: Path, content: bytes, wanted: bool) -> None:
    root = make_root(tmp_path / "r")
    (root / "ctl" / "n1.stop").write_bytes(content)
    assert lifefiles.stop_wanted(Store(root), "n1", 7) is wanted
    assert lifefiles.stop_wanted(Store(root), "n10", 7) is False


def test_no_stop_intent_is_seen_by_listing_the_folder(tmp_path: Path) -> None:
    store = Store(make_root(tmp_path / "r"))
    assert not lifefiles.stop_wanted(store, "n1", 7)
    assert dict(store.calls) == {"list": 1}
    (tmp_path / "r" / "ctl" / "n1.stop").touch()
    assert not lifefiles.stop_wanted(store, "n1", 7, present=["n2.stop"])
    assert lifefiles.stop_wanted(store, "n1", 7, present=["n1.stop"])


def test_an_identity_of_another_host_is_not_believed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "r")
    store = Store(root)
    assert lifefiles.read_identity(store, "n1") is None
    (root / "ctl" / "n1.identity.json").write_bytes(HostIdentity("n2", 1).to_json())
    with pytest.raises(FormatError, match=r"n1\.identity\.json speaks of host 'n2'"):
        lifefiles.read_identity(store, "n1")


def test_a_root_without_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match=r"manifest\.json"):
        lifefiles.read_manifest(Store(tmp_path))
