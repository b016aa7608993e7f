"""Folders as tokens: the first wins whole, and nothing unfinished or altered is ever read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.errors import FormatError, StorageError
from fsworker.protocol import artifacts, fsfolders
from fsworker.protocol.artifacts import DONE, Damaged, Done, FileDigest
from fsworker.protocol.fsops import Store

pytestmark = pytest.mark.unit

INC = "0123456789ab"
TARGET = "outbox/jobs/j/after_ep_0001"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


def make(store: Store, target: str, files: dict[str, bytes], **fields: Any) -> str:
    """A prepared folder with these files and their `done.json`."""
    prepared = artifacts.prepare(store, target)
    for name, data in files.items():
        fsfolders.make_folders(store, f"{prepared}/{name}".rpartition("/")[0])
        store.put(f"{prepared}/{name}", data)
    found = artifacts.digest_files(store, prepared)
    artifacts.write_done(store, prepared, replace(Done("j", 1, INC, 1, found), **fields))
    return prepared


def finish(store: Store, target: str, files: dict[str, bytes], **fields: Any) -> bool:
    return artifacts.publish(store, make(store, target, files, **fields), target)


def visible(store: Store, folder: str) -> list[str]:
    return sorted(n for n in store.scan(folder) if not n.startswith("."))


# -- publishing


def test_a_folder_is_published_whole(store: Store) -> None:
    shards = {"model/0.safetensors": b"a" * 3000, "model/1.safetensors": b"", "index.json": b"{}"}
    prepared = make(store, TARGET, shards, samples=7, base="f" * 64, rewards=(1.0, None))
    parent = TARGET.rpartition("/")[0]
    assert visible(store, parent) == []
    assert artifacts.publish(store, prepared, TARGET)
    assert store.scan(parent) == ["after_ep_0001"]
    done = artifacts.verify(store, TARGET, full=True)
    assert [f.name for f in done.files] == sorted(shards)
    assert done.files[1].sha256 == hashlib.sha256(b"a" * 3000).hexdigest()
    assert (done.samples, done.base, done.rewards) == (7.0, "f" * 64, (1.0, None))


def test_the_loser_adopts_and_leaves_nothing(store: Store) -> None:
    one, two = make(store, TARGET, {"c.pt": b"one"}), make(store, TARGET, {"c.pt": b"two"})
    assert artifacts.publish(store, two, TARGET)
    assert not artifacts.publish(store, one, TARGET)
    assert store.read(f"{TARGET}/c.pt") == b"two"
    assert store.scan("outbox/jobs/j") == ["after_ep_0001"]


def test_of_many_at_once_one_wins(store: Store) -> None:
    won, gate = [], threading.Barrier(8)

    def run(i: int) -> None:
        mine = Store(store.root)
        prepared = make(mine, TARGET, {"c.pt": b"%d" % i})
        gate.wait()
        if artifacts.publish(mine, prepared, TARGET):
            won.append(b"%d" % i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and store.read(f"{TARGET}/c.pt") == won[0]
    artifacts.verify(store, TARGET, full=True)
    assert store.scan("outbox/jobs/j") == ["after_ep_0001"]


def test_an_empty_folder_is_never_published(store: Store) -> None:
    with pytest.raises(ValueError, match="empty"):
        artifacts.publish(store, artifacts.prepare(store, TARGET), TARGET)


def faulty(
    monkeypatch: pytest.MonkeyPatch, number: int, times: int, meanwhile: Callable[..., None]
) -> None:
    """`os.rename` that fails `times` times with `number`, after `meanwhile(source, target)`."""
    real, left = os.rename, [times]

    def rename(source: str, target: str) -> None:
        if left[0]:
            left[0] -= 1
            meanwhile(source, target)
            raise OSError(number, os.strerror(number))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)


def test_a_rename_that_worked_and_reports_failure_was_ours(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename
    prepared = make(store, TARGET, {"c.pt": b"one"})
    faulty(monkeypatch, errno.EIO, 1, lambda source, target: real(source, target))
    assert artifacts.publish(store, prepared, TARGET)


def test_a_rename_that_failed_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = make(store, TARGET, {"c.pt": b"one"})
    faulty(monkeypatch, errno.ESTALE, 2, lambda *_: None)
    assert artifacts.publish(store, prepared, TARGET)


def test_what_cannot_be_published_is_told_and_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = make(store, TARGET, {"c.pt": b"one"})
    faulty(monkeypatch, errno.EDQUOT, 9, lambda *_: None)
    with pytest.raises(StorageError, match=r"after_ep_0001.*quota"):
        artifacts.publish(store, prepared, TARGET)
    assert prepared.rpartition("/")[2] in store.scan("outbox/jobs/j")


def test_another_one_that_came_first_is_seen_after_any_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename
    prepared, other = make(store, TARGET, {"c.pt": b"one"}), make(store, TARGET, {"c.pt": b"two"})
    meanwhile = lambda *_: real(store.path(other), store.path(TARGET))  # noqa: E731
    faulty(monkeypatch, errno.EIO, 1, meanwhile)
    assert not artifacts.publish(store, prepared, TARGET)
    assert store.read(f"{TARGET}/c.pt") == b"two"


def test_a_shared_root_gets_shared_folders(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o2770)
    before = os.umask(0o077)
    try:
        shared = Store(tmp_path / "root")
        prepared = artifacts.prepare(shared, TARGET)
        os.mkdir(shared.path(f"{prepared}/shards"))
        Path(shared.path(f"{prepared}/shards/0.pt")).write_bytes(b"by a program with umask 077")
        artifacts.publish(shared, prepared, TARGET)
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE(os.stat(shared.path(f"{TARGET}{name}")).st_mode)
        for name in ("", "/shards", "/shards/0.pt")
    ]
    assert modes == [0o2770, 0o2770, 0o660]


# -- reading


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (cut, "c.pt has 999 bytes, not 1000"),
        (Path.unlink, "c.pt is missing"),
        (link, "c.pt is not a regular file"),
        (pipe, "c.pt is not a regular file"),
        (folder, "c.pt is not a regular file"),
    ],
)
@pytest.mark.parametrize("full", [True, False])
def test_what_is_not_as_its_record_says_is_named(
    store: Store, harm: Callable[[Path], None], words: str, full: bool
) -> None:
    finish(store, TARGET, {"c.pt": b"x" * 1000})
    harm(Path(store.path(TARGET)) / "c.pt")
    with pytest.raises(Damaged, match=words) as told:
        artifacts.verify(store, TARGET, full=full)
    assert told.value.path == store.path(f"{TARGET}/c.pt") and told.value.exit_code == 8


def test_other_content_is_found_where_everything_is_read(store: Store) -> None:
    finish(store, TARGET, {"c.pt": b"x" * 1000})
    flip(Path(store.path(TARGET)) / "c.pt")
    artifacts.verify(store, TARGET, full=False)
    with pytest.raises(Damaged, match="other content"):
        artifacts.verify(store, TARGET, full=True)


def test_a_pipe_or_a_link_is_not_digested(store: Store) -> None:
    prepared = artifacts.prepare(store, TARGET)
    os.mkfifo(store.path(f"{prepared}/p"))
    with pytest.raises(Damaged, match="neither a file nor a folder"):
        artifacts.digest_files(store, prepared)
    with pytest.raises(OSError):
        fsfolders.digest(store, f"{prepared}/p")


def done_with(**fields: Any) -> bytes:
    plain = {
        "job": "j",
        "attempt": 1,
        "incarnation": INC,
        "episode": 1,
        "files": [{"name": "c.pt", "size": 1, "sha256": "0" * 64}],
    }
    return json.dumps({**plain, **fields}).encode()


def file_with(**fields: Any) -> bytes:
    return done_with(files=[{"name": "c.pt", "size": 1, "sha256": "0" * 64, **fields}])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\0" * 64, "not valid JSON"),
        (b"null", "must hold a JSON object"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "'job' is missing"),
        (done_with(format="2.0"), "version 2.0"),
        (done_with(samples="7"), "'samples' must be"),
        (done_with(samples=True), "'samples' must be"),
        (done_with(samples=10**400), "'samples' must be"),
        (done_with(episode=1.0), "'episode' must be"),
        (done_with().replace(b'"attempt": 1', b'"attempt": NaN'), "NaN"),
        (done_with(files=[]), "lists no file"),
        (done_with(files=[{"name": "a", "size": 1, "sha256": "0" * 64}] * 2), "twice"),
        (file_with(name="../../../etc/passwd"), "leads out"),
        (file_with(name="/etc/passwd"), "leads out"),
        (file_with(name=""), "empty"),
        (file_with(name="a\nb"), "not printable"),
        (file_with(name="x" * 600), "too long"),
        (file_with(size=-1), "size or digest"),
        (file_with(sha256="0" * 63), "size or digest"),
        (file_with(sha256="Z" * 64), "size or digest"),
    ],
)
def test_a_record_that_cannot_be_one_is_refused_by_name(
    store: Store, data: bytes, words: str
) -> None:
    fsfolders.make_folders(store, TARGET)
    store.put(f"{TARGET}/{DONE}", data)
    with pytest.raises(Damaged, match=words) as told:
        artifacts.verify(store, TARGET, full=True)
    assert told.value.path == store.path(f"{TARGET}/{DONE}")


def test_a_folder_without_a_record_was_never_finished(store: Store) -> None:
    with pytest.raises(Damaged, match="never finished"):
        artifacts.read_done(store, "outbox/jobs/j/after_ep_0009")


def test_storage_that_says_no_is_not_taken_for_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(store, TARGET, {"c.pt": b"x"})

    def broken(fd: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", broken)
    with pytest.raises(StorageError):
        artifacts.verify(store, TARGET, full=True)


finite = st.floats(allow_nan=False, allow_infinity=False)
digests = st.builds(
    FileDigest,
    st.from_regex(r"[a-z0-9_]{1,9}(/[a-z0-9_]{1,9})?", fullmatch=True),
    st.integers(0, 1 << 50),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
)


@given(
    st.builds(
        Done,
        st.text(st.characters(exclude_categories=["Cs"])),
        st.integers(0, 1 << 40),
        st.just(INC),
        st.integers(0, 10**9),
        st.lists(digests, min_size=1, max_size=4, unique_by=lambda f: f.name).map(tuple),
        st.none() | st.just("a" * 64),
        st.none() | finite,
        st.lists(st.none() | finite).map(tuple),
        st.none() | finite,
    )
)
def test_a_record_comes_back(done: Done) -> None:
    assert Done.from_json(done.to_json(), "done.json") == done


@given(st.binary(max_size=200))
def test_no_bytes_end_in_anything_but_a_sentence(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"done\.json"):
        Done.from_json(data, "done.json")


def test_the_digest_of_a_folder_depends_on_names_and_bytes_alone() -> None:
    a, b = FileDigest("a", 1, "1" * 64), FileDigest("b", 2, "2" * 64)
    one = artifacts.tree_digest([a, b])
    assert one == artifacts.tree_digest([b, a])
    expected = hashlib.sha256(f"{'1' * 64} 1 a\n{'2' * 64} 2 b\n".encode()).hexdigest()
    assert one == expected
    assert one != artifacts.tree_digest([a, replace(b, name="c")])


# -- the latest


def test_the_highest_complete_number_wins_and_bad_ones_are_named(store: Store) -> None:
    parent, rng = "outbox/jobs/j", random.Random(3)
    good = ["ep_9", "ep_10", "ep_100000"]
    cut_ones, empty = ["ep_0900000", "ep_200000"], ["ep_300000"]
    for name in good + cut_ones:
        finish(store, f"{parent}/{name}", {"checkpoint.pt": name.encode() * 10})
    for name in cut_ones:
        cut(Path(store.path(f"{parent}/{name}/checkpoint.pt")))
    for name in empty:
        store.mkdir(f"{parent}/{name}")
    make(store, f"{parent}/ep_999999", {"checkpoint.pt": b"never published"})
    store.put(f"{parent}/best.pt", b"")
    store.put(f"{parent}/.tmp", b"")
    store.put(f"{parent}/ep_800000", b"a file")
    for name in good + cut_ones + empty:
        when = rng.randrange(10**9)
        os.utime(store.path(f"{parent}/{name}"), (when, when))
    before = sorted(store.scan(parent))
    latest = artifacts.latest_verified(store, parent, "ep_")
    assert (latest.number, latest.folder) == (100000, f"{parent}/ep_100000")
    assert latest.done is not None
    assert [os.path.basename(f) for f, _ in latest.bad] == [
        "ep_0900000", "ep_800000", "ep_300000", "ep_200000",
    ]  # fmt: skip
    assert "done.json is missing" in latest.bad[2][1] and "bytes" in latest.bad[3][1]
    assert sorted(store.scan(parent)) == before


def test_a_number_in_an_odd_width_is_a_number(store: Store) -> None:
    for name in ("ep_9", "ep_0900000", "ep_100000"):
        finish(store, f"x/{name}", {"c": b"1"})
    assert artifacts.latest_verified(store, "x", "ep_").number == 900000


def test_where_there_is_none_nothing_is_found(store: Store) -> None:
    assert artifacts.latest_verified(store, "outbox/none") == artifacts.Latest(0, "", None)


# -- whole folders


def test_a_copy_is_what_was_digested(store: Store) -> None:
    data = os.urandom(3 * fsfolders.CHUNK + 5)
    store.put("a", data)
    assert fsfolders.copy(store, "a", "b") == (len(data), hashlib.sha256(data).hexdigest())
    assert store.read("b") == data == store.read("a")


def test_removing_follows_no_link(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_bytes(b"1")
    fsfolders.make_folders(store, "x/y/z")
    os.symlink(precious, store.path("x/y/link"))
    store.put("x/y/z/f", b"1")
    assert fsfolders.remove_tree(store, "x", first="f")
    assert (precious / "data").exists() and store.scan("") == []
    assert fsfolders.remove_tree(store, "x")


def test_rewards_are_numbers_or_nothing() -> None:
    done = Done("j", 1, INC, 1, (FileDigest("w", 1, "0" * 64),), rewards=(0.5, 1.0))

    def read(text: str) -> tuple[float | None, ...]:
        data = done.to_json().replace(b"[0.5, 1.0]", text.encode())
        return Done.from_json(data, "done.json").rewards

    assert repr(read("[1, null, 0.25, -3]")) == "(1.0, None, 0.25, -3.0)"
    assert read("[]") == () and read("[null]") == (None,)
    for odd in ("1e999", "-1e999", "1" + "0" * 400, "true", '"1"', "[1]"):
        with pytest.raises(FormatError, match=r"'rewards\[2\]' must be"):
            read(f"[1, null, {odd}]")
