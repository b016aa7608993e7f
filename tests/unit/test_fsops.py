"""Operations on a real disk, and what a network filesystem does to them.

Where a local disk cannot produce a fault (a stale handle, a rename that reports failure), the one
call of `os` that meets it is replaced, and the test says so.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsworker.protocol import fsops
from fsworker.protocol.fsops import Store

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def failing(
    real: Callable[..., Any], times: int, number: int, *, after: bool = False
) -> Callable[..., Any]:
    """`real`, but the first calls fail with `number`; with `after` they do their work as well."""
    left = [times]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            if after:
                real(*args, **kwargs)
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    return call


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_what_is_put_is_read_and_listed(store: Store) -> None:
    assert store.mkdir("a") and not store.mkdir("a")
    store.put("a/x", b"one")
    store.put("a/x", b"2")
    assert store.read("a/x") == b"2"
    store.put("a/big", b"z" * 3_000_000)
    assert len(store.read("a/big")) == 3_000_000
    assert sorted(store.scan("a")) == ["big", "x"]
    assert store.path("") == store.root and store.scan("") == ["a"]


def test_a_file_that_is_replaced_is_never_seen_half_written(store: Store) -> None:
    store.mkdir("a")
    store.publish("a/x", b"old")
    with open(store.path("a/x"), "rb") as reader:
        store.publish("a/x", b"newer")
        assert reader.read() == b"old"
    assert store.read("a/x") == b"newer"
    assert store.scan("a") == ["x"], "no temporary stays behind"


@pytest.mark.parametrize("folder", ["", "a"])
def test_a_file_is_published_at_the_top_too(store: Store, folder: str) -> None:
    store.mkdir("a")
    path = f"{folder}/x" if folder else "x"
    store.publish(path, b"1", durable=False)
    assert store.read(path) == b"1"


def test_rename_and_remove_say_what_happened(store: Store) -> None:
    store.mkdir("a")
    store.put("a/x", b"1")
    store.rename("a/x", "a/y")
    with pytest.raises(FileNotFoundError):
        store.rename("a/x", "a/z")
    with pytest.raises(FileNotFoundError):
        store.rename("a/y", "gone/y")
    assert store.remove("a/y") and not store.remove("a/y")
    store.put("a/x", b"1")
    with pytest.raises(OSError, match="not empty"):
        store.rmdir("a")
    store.remove("a/x")
    store.rmdir("a")
    with pytest.raises(FileNotFoundError):
        store.scan("a")


def test_reading_has_a_limit(store: Store) -> None:
    store.put("x", b"12345")
    assert store.read("x", limit=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes") as caught:
        store.read("x", limit=4)
    assert caught.value.errno == errno.EFBIG


def test_a_file_without_a_size_is_limited_too() -> None:
    """A file of /proc says that it is empty, as one that is being written may."""
    store = Store("/proc/self")
    assert store.read("cmdline")
    with pytest.raises(OSError, match="larger than 3 bytes"):
        store.read("cmdline", limit=3)


def test_times_are_those_of_the_file_server(store: Store) -> None:
    store.mkdir("a")
    store.put("a/x", b"1")
    before = store.read_with_mtime("a/x")[1]
    now = store.server_time("a")
    assert 0 <= now - before < 5
    os.utime(store.path("a/x"), (1e9, 1e9))
    assert store.read_with_mtime("a/x") == (b"1", 1e9)
    assert store.scan("a") == ["x"], "the probe is removed"


def test_lines_are_appended_whole(store: Store) -> None:
    store.append_line("log", b"one")
    store.append_line("log", b"two\n")
    assert store.read("log") == b"one\ntwo\n"


def test_a_private_root_stays_private(store: Store) -> None:
    before = os.umask(0)
    try:
        store.mkdir("a")
        store.put("a/x", b"1")
        store.append_line("a/log", b"1")
    finally:
        os.umask(before)
    assert (mode(store.path("a")), mode(store.path("a/x"))) == (0o700, 0o600)
    assert mode(store.path("a/log")) == 0o600


@pytest.mark.usefixtures("narrow_umask")
def test_a_root_that_a_group_shares_stays_shared_under_any_umask(store: Store) -> None:
    os.chmod(store.root, 0o2770)
    store.mkdir("a")
    store.put("a/x", b"1")
    store.publish("a/y", b"1")
    assert mode(store.path("a")) == 0o2770
    assert mode(store.path("a/x")) == mode(store.path("a/y")) == 0o660


# -- What a local disk cannot do: the call of `os` that would meet it is replaced.


@pytest.mark.parametrize("call", ["listdir", "open"])
def test_a_stale_handle_is_opened_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store.put("x", b"1")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(os, call, failing(getattr(os, call), 3, errno.ESTALE))
    assert (store.scan("") if call == "listdir" else store.read("x")) in (["x"], b"1")
    assert sum(store.calls.values()) == 1 + 4, "each attempt is a call"


def test_a_handle_that_stays_stale_is_an_error_in_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(os, "listdir", failing(os.listdir, 99, errno.ESTALE))
    with pytest.raises(OSError, match="Stale") as caught:
        store.scan("")
    assert caught.value.errno == errno.ESTALE
    assert store.calls["list"] == fsops.STALE_RETRIES


def test_other_errors_are_not_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", failing(os.listdir, 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        store.scan("")
    assert store.calls["list"] == 1


def test_a_publication_that_reports_failure_but_happened_is_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "rename", failing(os.rename, 1, errno.EIO, after=True))
    store.publish("x", b"1")
    assert store.read("x") == b"1" and store.scan("") == ["x"]


def test_a_publication_that_failed_leaves_the_old_and_no_temporary(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish("x", b"old")
    monkeypatch.setattr(os, "rename", failing(os.rename, 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        store.publish("x", b"new")
    assert store.read("x") == b"old" and store.scan("") == ["x"]


@pytest.mark.parametrize("call", ["write", "fsync", "close"])
def test_nothing_counts_as_written_before_fsync_and_close(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, failing(getattr(os, call), 1, errno.EDQUOT, after=True))
    with pytest.raises(OSError, match="quota"):
        store.publish("x", b"1")
    assert store.scan("") == []


def test_a_write_that_takes_only_a_part_is_continued(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    store.put("x", b"12345678")
    assert store.read("x") == b"12345678"


@pytest.mark.parametrize(("number", "known"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_folder_that_cannot_be_synced_is_no_error_but_a_bad_disk_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, known: bool
) -> None:
    monkeypatch.setattr(os, "fsync", failing(os.fsync, 1, number))
    if known:
        store.sync_folder("")
    else:
        with pytest.raises(OSError, match="Input/output"):
            store.sync_folder("")


# -- Real faults.


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Store]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tiny filesystem to fill needs root")
    mount = tmp_path / "tiny"
    mount.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(mount)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tiny filesystem cannot be mounted here: {done.stderr.strip()}")
    yield Store(mount)
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_an_error_and_keeps_what_was_there(tiny: Store) -> None:
    tiny.publish("x", b"old")
    with pytest.raises(OSError, match="No space") as caught:
        tiny.publish("x", b"n" * 200_000)
    assert caught.value.errno == errno.ENOSPC
    assert tiny.read("x") == b"old" and tiny.scan("") == ["x"]
    told = fsops.storage_error(caught.value, "write", tiny.path("x"))
    assert str(told) == (
        f"cannot write {tiny.path('x')}: No space left on device: free space on that filesystem"
    )
    assert told.exit_code == 7
    tiny.publish("x", b"new")
    assert tiny.read("x") == b"new"


def test_a_file_that_does_not_fit_leaves_the_room_to_others(tiny: Store) -> None:
    tiny.put("small", b"kept")
    with pytest.raises(OSError, match="No space"):
        tiny.put("large", b"n" * 200_000)
    assert tiny.scan("") == ["small"]
    tiny.publish("beat", b"b" * 30_000)
    with pytest.raises(OSError, match="No space"):
        tiny.publish("beat", b"b" * 200_000)
    assert sorted(tiny.scan("")) == ["beat", "small"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "close"])
def test_only_a_certain_refusal_removes_what_was_written(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    monkeypatch.setattr(os, call, failing(getattr(os, call), 1, number))
    with pytest.raises(OSError, match=os.strerror(number)):
        store.put("x", b"data")
    monkeypatch.undo()
    assert store.scan("") == (["x"] if number == errno.EIO else [])


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_server_that_refuses_a_file_at_its_end_too_leaves_nothing_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for name in (call, "close"):
        monkeypatch.setattr(os, name, failing(getattr(os, name), 1, errno.EDQUOT, after=True))
    with pytest.raises(OSError, match="quota"):
        store.put("x", b"data")
    monkeypatch.undo()
    assert store.scan("") == []


@pytest.mark.parametrize("calls", [("write",), ("fsync",), ("fsync", "close"), ("write", "close")])
def test_a_probe_that_is_refused_is_not_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...]
) -> None:
    store.mkdir("a")
    for name in calls:
        monkeypatch.setattr(os, name, failing(getattr(os, name), 1, errno.EDQUOT, after=True))
    with pytest.raises(OSError, match="quota"):
        store.server_time("a")
    monkeypatch.undo()
    assert store.scan("a") == []


def test_what_cannot_be_removed_quietly_is_left(store: Store) -> None:
    store.mkdir("a")
    store.remove_quietly("a")
    store.remove_quietly("never")
    assert store.scan("") == ["a"]


def test_a_probe_is_not_kept_when_time_is_asked_often(store: Store) -> None:
    store.mkdir("a")
    times = [store.server_time("a") for _ in range(20)]
    assert times == sorted(times) and abs(times[-1] - time.time()) < 5
    assert store.scan("a") == []
