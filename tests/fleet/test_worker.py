"""A real worker on a real root: life, work, and every way in which either may end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from fsworker import outcomes
from fsworker.protocol import layout, packing, segment, stream
from fsworker.protocol.layout import Token
from fsworker.protocol.segment import Segment
from tests.support.waiting import Spawned, gone, wait_until, with_environ
from tests.support.workers import Root, is_ready, log_of, start_worker, told, tree_of, worker_argv

pytestmark = pytest.mark.fleet

FUNCTIONS = ("echo", "double", "sleep", "misbehave", "environment", "append", "kill_worker")


@pytest.fixture
def spawned() -> Iterator[Spawned]:
    with Spawned(f"SHARDFLEET_TEST={uuid.uuid4().hex}") as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root", functions=FUNCTIONS)


def slow(root: Root, seconds: float) -> list[object]:
    """Arguments of `append`: a task that shows when it begins, and takes a while."""
    return [f"{root.path}.begun", "begun", seconds]


def begun(root: Root, count: int = 1) -> bool:
    """Whether that many slow tasks have begun."""
    path = Path(f"{root.path}.begun")
    return path.exists() and path.read_text().split().count("begun") >= count


def test_tasks_are_answered_and_nothing_is_left_behind(spawned: Spawned, root: Root) -> None:
    worker = start_worker(spawned, root)
    batches = [root.submit([[i], [i + 1]], fn="double") for i in range(20)]
    for i, batch in enumerate(batches):
        first, second = root.results(batch)
        assert first[:4] == [0, "t0", "ok", 2 * i]
        assert second[:4] == [1, "t1", "ok", 2 * i + 2]
    beat = wait_until(lambda: (b := root.beat()) and b.done == 40 and b, what="a beat that counts")
    assert (beat.claimed, beat.failed, beat.slots_total, beat.pid) == (40, 0, 2, worker.pid)
    assert root.store.scan(layout.outbox_dir("s")) == []
    assert [names for names in root.claims().values() if names] == []


def test_term_gives_back_what_has_not_begun_and_finishes_what_has(
    spawned: Spawned, root: Root
) -> None:
    worker = start_worker(spawned, root, slots=1)
    root.results(root.submit([[1]], fn="double"))  # tasks are short: one may wait behind another
    running = root.submit([slow(root, 1.5)], fn="append")
    wait_until(lambda: begun(root), what="it begins")
    waiting = root.submit([[1]], fn="double")
    wait_until(lambda: sum(map(len, root.claims().values())) == 2, what="both claimed")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: [t.batch for t in root.inbox()] == [waiting], what="given back")
    assert worker.wait(120) == 0
    assert root.results(running)[0][2:4] == ["ok", None]
    assert root.inbox()[0].deaths == 0
    assert root.claims() == {}
    beat = root.beat()
    assert beat and beat.stopped and not beat.ready
    assert not (root.path / "ctl/n0.pid").exists()
    assert with_environ(str(spawned.entry)) == []


def test_a_second_term_gives_everything_back_now(spawned: Spawned, root: Root) -> None:
    worker = start_worker(spawned, root, slots=1, more=["--grace", "600"])
    batch = root.submit([slow(root, 600)], fn="append")
    wait_until(lambda: begun(root), what="it begins")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: (b := root.beat()) and b.draining, what="draining")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(120) == 0
    assert [(t.batch, t.deaths) for t in root.inbox()] == [(batch, 0)]
    assert root.claims() == {}


def test_a_killed_worker_leaves_no_process_and_its_successor_charges_it(
    spawned: Spawned, root: Root
) -> None:
    worker = start_worker(spawned, root, slots=2)
    batch = root.submit([["helpers", str(spawned.entry)]], fn="misbehave")
    wait_until(lambda: len(tree_of(worker.pid)) >= 6, what="helpers")
    worker.kill()
    worker.wait()
    wait_until(lambda: with_environ(str(spawned.entry)) == [], what="everything below it gone")
    start_worker(spawned, root)
    wait_until(lambda: [o for o in root.claims().values() if o], what="claimed again")
    names = [name for names in root.claims().values() for name in names]
    assert names == [f"0~{batch}.2.1"]
    assert len(root.claims()) == 1  # its predecessor's folder is gone


def test_a_killed_zygote_is_replaced_and_its_slots_are_gone(spawned: Spawned, root: Root) -> None:
    worker = start_worker(spawned, root, slots=2)
    batch = root.submit([slow(root, 1.0), slow(root, 1.0)], fn="append")
    wait_until(lambda: begun(root, 2), what="both begin")
    before = tree_of(worker.pid)
    zygote = min(p for p in before if os.getpgid(p) == p and _parent(p) == worker.pid)
    os.kill(zygote, signal.SIGKILL)
    assert [r[2] for r in root.results(batch)] == ["ok", "ok"]
    assert all(gone(pid) for pid in before)
    assert worker.poll() is None


def test_the_end_of_the_life_pipe_ends_the_worker(spawned: Spawned, root: Root) -> None:
    reading, writing = os.pipe()
    worker = start_worker(
        spawned, root, env={"FLEET_LIFE_FD": str(reading)}, pass_fds=[reading], slots=1
    )
    os.close(reading)
    batch = root.submit([slow(root, 600)], fn="append")
    wait_until(lambda: begun(root), what="it begins")
    os.close(writing)
    assert worker.wait(120) == 0
    assert [(t.batch, t.deaths) for t in root.inbox()] == [(batch, 0)]


def test_a_stop_intent_ends_an_unwrapped_worker(spawned: Spawned, root: Root) -> None:
    worker = start_worker(spawned, root)
    assert (root.path / "ctl/n0.pid").read_text() == f"{worker.pid}\n"
    (root.path / "ctl/n0.stop").touch()
    assert worker.wait(120) == 0
    assert not (root.path / "ctl/n0.pid").exists()


def test_a_second_worker_of_one_host_is_refused(spawned: Spawned, root: Root) -> None:
    first = start_worker(spawned, root)
    second = start_worker(spawned, root, ready=False)
    assert second.wait(120) == 10
    assert "already runs on n0" in log_of(root)
    assert is_ready(root, "n0", first.pid)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        ("nowhere.to_be:found", "there is no module 'nowhere'"),
        ("tests.support.functions_for_tests:nothing", "defines no 'nothing'"),
        ("tests.support.functions_for_tests:LIMIT", "cannot be called"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(
    spawned: Spawned, root: Root, fn: str, words: str
) -> None:
    _change_manifest(root, reward_fn=fn, functions=[])
    worker = start_worker(spawned, root, ready=False)
    assert worker.wait(120) == 5
    beat = root.beat()
    assert beat and beat.refused and words in beat.refused and not beat.ready
    assert "Traceback" not in log_of(root)
    assert root.claims() == {}


def test_a_newer_manifest_is_refused(spawned: Spawned, root: Root) -> None:
    _change_manifest(root, format="2.0")
    worker = start_worker(spawned, root, ready=False)
    assert worker.wait(120) == 8
    beat = root.beat()
    assert beat and beat.refused and "2.0" in beat.refused


def test_an_untrusted_root_is_refused(spawned: Spawned, root: Root) -> None:
    (root.path / layout.MANIFEST).chmod(0o606)
    worker = start_worker(spawned, root, ready=False)
    assert worker.wait(120) == 5
    assert "everybody can change it" in log_of(root)


def test_damaged_batches_are_answered_and_set_aside(spawned: Spawned, root: Root) -> None:
    start_worker(spawned, root)
    whole = segment.encode(Segment(segment.BATCH, {}, [packing.pack([None, [1]])] * 3))
    for raw in (b"", whole[:-1], whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1]), b"\0" * 64):
        batch = root.submit([], raw=raw)
        (record,) = root.results(batch)
        assert record[0] == -1 and record[2] == "invalid"
        assert "damaged" in root.kept[batch].meta
        assert (root.path / f"quarantine/{batch}.1").read_bytes() == raw
        assert told(root, f"quarantine/{batch}.1.reason.json")["batch"] == batch


def test_a_function_that_the_manifest_does_not_name_is_not_called(
    spawned: Spawned, root: Root
) -> None:
    start_worker(spawned, root)
    (record,) = root.results(root.submit([[]], fn="pid"))
    assert record[2] == "refused"


def test_an_empty_batch_is_answered(spawned: Spawned, root: Root) -> None:
    start_worker(spawned, root)
    assert root.results(root.submit([])) == []


def test_finished_tasks_of_a_long_batch_are_published_early(spawned: Spawned, root: Root) -> None:
    start_worker(spawned, root, slots=2)
    batch = root.submit([[0], [0], [0], [5]], fn="sleep")
    parts = wait_until(lambda: root.store.run(stream.look("s")).parts, what="a part")
    path = parts[0][0].part(parts[0][1])
    early = segment.decode(root.store.read(path), segment.PART, path)
    rows = outcomes.singles(early.values())
    assert sorted(row[0] for row in rows) == [0, 1, 2]  # as they finished
    assert early.meta["part"] == 0
    assert len(root.results(batch)) == 4
    assert root.store.scan(layout.outbox_dir("s")) == []


def test_work_of_other_shards_is_taken_when_home_is_empty(spawned: Spawned, tmp_path: Path) -> None:
    root = Root(tmp_path / "root", functions=FUNCTIONS, shards=3)
    start_worker(spawned, root, shard=1)
    batches = [root.submit([[s]], fn="double", shard=s) for s in (0, 1, 2)]
    assert [root.results(b)[0][3] for b in batches] == [0, 2, 4]


def test_an_idle_worker_costs_at_most_five_calls_a_second(spawned: Spawned, root: Root) -> None:
    start_worker(spawned, root, more=["--log-level", "DEBUG"])
    wait_until(lambda: len(_calls(root)) >= 7, what="six beats")
    (begin, before), (end, after) = _calls(root)[2], _calls(root)[-1]
    assert 2 <= (after - before) / (end - begin) <= 5


def test_the_heart_beats_on_while_user_code_holds_the_interpreter(
    spawned: Spawned, root: Root
) -> None:
    worker = start_worker(spawned, root, slots=2)
    batch = root.submit([["spin_in_c"], ["deadlock"], ["alarm"]], fn="misbehave", timeout=7.0)
    wait_until(lambda: (b := root.beat()) and b.slots_busy == 2, what="busy")
    seq = root.beat().seq  # type: ignore[union-attr]
    wait_until(lambda: (b := root.beat()) and b.slots_busy and b.seq >= seq + 2, what="two beats")
    assert [r[2] for r in root.results(batch)] == ["timeout", "timeout", "ok"]
    assert root.results(root.submit([[1], [2]], fn="double"))[1][3] == 4
    assert worker.poll() is None


def test_the_task_that_kills_workers_is_found_and_its_neighbours_finish(
    spawned: Spawned, root: Root
) -> None:
    batch = root.submit([[0], [1], [2], [3]], fn="kill_worker")  # 2 kills its worker
    lives = 0
    worker = start_worker(spawned, root)
    while root.collect(batch) is None:
        if worker.poll() is not None:
            lives += 1
            assert lives < 10
            worker = start_worker(spawned, root, ready=False)
        time.sleep(0.02)
    statuses = {r[0]: r[2] for r in root.results(batch)}
    assert statuses == {0: "ok", 1: "ok", 2: "worker died", 3: "ok"}
    assert lives == 4  # unsuspected once, then three times under suspicion
    assert (root.path / f"dead/{batch}").exists()
    assert "executed this task" in told(root, f"dead/{batch}.reason.json")["why"]


def test_a_suspect_is_executed_alone(spawned: Spawned, root: Root, tmp_path: Path) -> None:
    log = str(tmp_path / "order")
    suspect = root.submit([[log, f"s{i}", 0.05] for i in range(4)], fn="append", deaths=1)
    others = [root.submit([[log, "o", 0.05]] * 4, fn="append") for _ in range(3)]
    start_worker(spawned, root, slots=4)
    for batch in (suspect, *others):
        assert {r[2] for r in root.results(batch)} == {"ok"}
    lines = Path(log).read_text().split()
    # Each task writes its name when it begins and `/name` when it ends.
    at = lines.index("s0")
    assert lines[at : at + 8] == ["s0", "/s0", "s1", "/s1", "s2", "/s2", "s3", "/s3"]


def test_a_worker_that_slept_past_its_claims_publishes_nothing(
    spawned: Spawned, root: Root
) -> None:
    sleeper = start_worker(spawned, root, slots=1)
    batch = root.submit([slow(root, 1.0)], fn="append")
    wait_until(lambda: begun(root), what="it begins")
    sleeper.send_signal(signal.SIGSTOP)
    _revoke_all(root)
    other = start_worker(spawned, root, host="n1")
    assert root.results(batch)[0][2] == "ok"
    sleeper.send_signal(signal.SIGCONT)
    wait_until(lambda: "late result is set aside" in log_of(root), what="it notices")
    wait_until(lambda: "going on as" in log_of(root), what="a new incarnation")
    other.terminate()
    other.wait(120)
    after = root.submit([[3]], fn="double")
    assert root.results(after)[0][3] == 6
    assert root.store.run(stream.look("s")).committed == []


def test_a_full_disk_keeps_results_until_there_is_room(spawned: Spawned, root: Root) -> None:
    worker = start_worker(spawned, root, slots=1)
    batch = root.submit([slow(root, 0.5)], fn="append")
    wait_until(lambda: begun(root), what="it begins")
    outbox = root.path / "outbox/s"
    outbox.rename(root.path / "outbox/away")
    outbox.write_bytes(b"in the way")  # writing fails, by whatever name the error has
    wait_until(lambda: "cannot commit" in log_of(root), what="a failed commit")
    seq = root.beat().seq  # type: ignore[union-attr]
    wait_until(lambda: (b := root.beat()) and b.seq > seq, what="it goes on beating")
    outbox.unlink()
    (root.path / "outbox/away").rename(outbox)
    assert root.results(batch)[0][2] == "ok"
    assert worker.poll() is None


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Root]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tiny filesystem to fill needs root")
    mount = tmp_path / "tiny"
    mount.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(mount)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tiny filesystem cannot be mounted here: {done.stderr.strip()}")
    root = Root(mount / "root", functions=FUNCTIONS)
    yield root
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_result_that_no_disk_can_hold_is_an_error_and_stops_nobody(
    tiny: Root, spawned: Spawned
) -> None:
    worker = start_worker(spawned, tiny, slots=2)
    batch = tiny.submit([["big", 10], ["big", 5_000_000], ["big", 20]], fn="misbehave")
    found = tiny.results(batch)
    assert [r[2] for r in found] == ["ok", "invalid", "ok"]
    assert [len(found[0][3]), len(found[2][3])] == [10, 20]
    assert found[1][3]["type"] == "NotStored"
    assert "5000" in found[1][3]["message"] and "No space left" in found[1][3]["message"]
    assert tiny.results(tiny.submit([[4]], fn="double"))[0][3] == 8
    seq = tiny.beat().seq  # type: ignore[union-attr]
    wait_until(lambda: (b := tiny.beat()) and b.seq > seq, what="it goes on beating")
    assert worker.poll() is None


def test_a_folder_among_the_batches_is_set_aside(spawned: Spawned, root: Root) -> None:
    odd = layout.inbox_path(Token(layout.batch_id("s", "c" * 12, 7), 0, 0, 0))
    root.store.mkdir(odd)
    root.store.put(f"{odd}/inside", b"kept")
    start_worker(spawned, root)
    assert root.results(root.submit([[4]], fn="double"))[0][3] == 8
    wait_until(lambda: root.inbox() == [], what="the folder is taken")
    wait_until(lambda: [n for n in root.claims().values() if n] == [], what="nothing is held")
    kept = [n for n in root.store.scan(layout.QUARANTINE) if not n.endswith(".reason.json")]
    assert root.store.read(f"{layout.QUARANTINE}/{kept[0]}/inside") == b"kept"
    assert log_of(root).count("it is a folder") == 1


def test_the_old_command_line_still_starts_a_worker(spawned: Spawned, root: Root) -> None:
    argv = [a for a in worker_argv(root) if a != "run"]
    spawned.start(argv, env={"PYTHONPATH": str(Path(__file__).parents[2])}, cwd="/")
    assert root.results(root.submit([[4]], fn="double"))[0][3] == 8


def test_tasks_see_who_they_are(spawned: Spawned, root: Root) -> None:
    start_worker(spawned, root)
    names = ["FLEET_HOST", "FLEET_SHARD", "FLEET_TASK_ID", "FLEET_ATTEMPT", "OMP_NUM_THREADS"]
    names += ["FLEET_LIFE_FD", "FLEET_LOCK_FD"]
    (record,) = root.results(root.submit([names], fn="environment", attempt=4))
    assert record[3] == ["n0", "0", "t0", "5", "1", None, None]


def _change_manifest(root: Root, **changes: object) -> None:
    path = root.path / layout.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _parent(pid: int) -> int:
    from fsworker import procfs

    stat = procfs.read_stat(pid)
    return stat.ppid if stat else 0


def _revoke_all(root: Root) -> None:
    from fsworker.protocol import ledger

    for name in root.claims():
        owner = layout.parse_owner(name)
        assert owner
        assert root.store.run(ledger.reclaim(owner, died=False)).finished


def _calls(root: Root) -> list[tuple[float, int]]:
    """(time, calls on the root so far) at each beat, as the log tells."""
    found = []
    for line in log_of(root).splitlines():
        stamp, _, counts = line.partition(" DEBUG fsworker.worker: calls on the root: ")
        if counts:
            when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()
            found.append((when, sum(json.loads(counts.replace("'", '"')).values())))
    return found
