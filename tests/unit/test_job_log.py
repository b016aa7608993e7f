"""The log of an attempt, head and tail: what is kept, what is counted, and who follows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctl.jobs.logs import JobLog
from fsworker.protocol import fsfolders, joblog, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout.jobs import Attempt
from fsworker.protocol.records.job import Job

pytestmark = pytest.mark.unit

LIMIT = 1 << 20
ATTEMPT = Attempt(1, "c0ffee000001")
LINE = b"%09d" + b"." * 90 + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Store, int]]:
    for folder in (*layout.FOLDERS, layout.jobs.JOBS):
        (tmp_path / folder).mkdir(exist_ok=True)
    store = Store(tmp_path)
    folder = layout.jobs.attempt_dir("j", ATTEMPT)
    fsfolders.make_folders(store, folder)
    store.put(layout.jobs.job_file("j"), Job("j", ("x",), log_limit=LIMIT).to_json())
    path = store.path(f"{folder}/{layout.jobs.LOG_FILE}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield store, fd
    os.close(fd)


def write(fd: int, numbers: range) -> bytes:
    data = b"".join(LINE % n for n in numbers)
    os.write(fd, data)
    return data


def read(store: Store) -> bytes:
    path = f"{layout.jobs.attempt_dir('j', ATTEMPT)}/{layout.jobs.LOG_FILE}"
    return Path(store.path(path)).read_bytes()


def test_head_and_tail_stay_and_what_is_left_out_is_counted_over_all_cuts(
    log: tuple[Store, int],
) -> None:
    store, fd = log
    whole = b""
    for begin in range(0, 100_000, 9_000):
        whole += write(fd, range(begin, begin + 9_000))
        joblog.shorten(fd, LIMIT)
        assert os.fstat(fd).st_size <= LIMIT + 1_000_000
    assert not joblog.shorten(fd, 0), "no limit, no cut"
    joblog.shorten(fd, LIMIT)
    data, head = read(store), joblog.head_of(LIMIT)
    cut = joblog.read_cut(fd, LIMIT)
    tail = data[head + joblog.MARK_BYTES :]
    assert data[:head] == whole[:head] and whole.endswith(tail) and tail.startswith(b"000")
    assert cut.dropped == len(whole) - head - len(tail)
    assert b"\n[shardfleet] " in data[head : head + 20] and b" are left out here\n000" in data
    for place in (0, head, head + cut.dropped, len(whole) - 7):
        assert cut.place(cut.position(place)) == place
    assert cut.position(head + 5) == head, "what was dropped is told by the mark"


def test_who_follows_a_log_that_is_cut_sees_every_line_that_is_there_once(
    log: tuple[Store, int],
) -> None:
    store, fd = log
    follower, seen, whole = JobLog(store, "j"), b"", b""
    for begin in range(0, 60_000, 3_000):
        whole += write(fd, range(begin, begin + 3_000))
        seen += b"".join(follower.more())
        joblog.shorten(fd, LIMIT)
    assert seen == whole, "it was never behind a cut"
    write(fd, range(60_000, 80_000))
    joblog.shorten(fd, LIMIT)
    late = b"".join(follower.more())
    assert late.startswith(b"\n[shardfleet] ") and late.endswith(LINE % 79_999)
    lines = late.split(b"\n")[2:-1]
    first = int(lines[0][:9])
    assert [int(line[:9]) for line in lines] == list(range(first, 80_000))
    assert b"".join(JobLog(store, "j").more()) == read(store)
