"""Looking at a root: whatever lies there, one host at a time, and over a child that may hang."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest

from ctl import roots
from ctl.health import Limits, State, judge
from ctl.journal import Journal
from ctl.lookout import Lookout
from ctl.memory import HostMemory
from ctl.observe import Observer, Reading, Report, read_status
from ctl.rootchild import RootChild
from ctl.rootio import Late, RootIO
from ctl.sight import Continuous, Single
from fsworker.errors import Busy, NotRunning, StorageError
from fsworker.protocol import launches, layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest, WorkerSpec
from tests.support.waiting import gone, wait_until

pytestmark = pytest.mark.unit

DATA = Path(__file__).parent.parent / "data" / "status"
LIMITS = Limits(stale=60, ready=60)
LIFE = "a" * 12


@pytest.fixture
def root(tmp_path):
    """A root of two hosts, n1 and n2, launched once, that nobody serves yet."""
    path = tmp_path / "run"
    path.mkdir()
    for folder in layout.FOLDERS:
        (path / folder).mkdir()
    workers = (WorkerSpec("n1", 0, 1), WorkerSpec("n2", 1, 1))
    (path / layout.MANIFEST).write_bytes(Manifest("r", "m:f", 2, workers).to_json())
    put_meta(path, workers, {"n1": 1, "n2": 1})
    return path


def put_meta(root, workers, launches):
    meta = LaunchMeta(str(root), "r", workers, 2, "m:f", launches=launches)
    (root / layout.LAUNCH_META).write_bytes(meta.to_json())


def beat(root, host="n1", seq=1, incarnation=LIFE, launch=1, **fields):
    fields = {"ready": True, "wrapped": True, "heartbeat_at": 1000.0, **fields}
    record = Heartbeat(host, 5, incarnation, seq, launch=launch, **fields)
    Store(root).publish(layout.status_path(host), record.to_json(), durable=False)


@pytest.fixture
def io(root):
    io = RootIO(str(root), abandon_after=0.5)
    yield io
    io.close()


BAD = {
    "empty": "it is empty",
    "cut": "not valid JSON",
    "nul": "not valid JSON",
    "null": "must hold a JSON object",
    "nan": "NaN",
    "naive_time": "heartbeat_at",
    "says_n2": "names another host: 'n2'",
    "newer_major": "2.0",
    "other_program": "'incarnation' is missing",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_status_file_is_a_problem_with_a_reason_and_no_beat(root, name):
    shutil.copy(DATA / f"{name}.json", root / "status" / "n1.json")
    reading = read_status(Store(root), "n1", ["n1.json"])

    assert reading.beat is None and not reading.blind
    assert BAD[name] in reading.problem


def test_every_bad_input_is_in_the_table():
    assert {p.stem for p in DATA.iterdir()} == {*BAD, "year_5138"}


def test_a_time_in_the_year_5138_is_only_shown(root):
    shutil.copy(DATA / "year_5138.json", root / "status" / "n1.json")
    reading = read_status(Store(root), "n1", ["n1.json"])

    assert reading.problem is None
    assert reading.beat.heartbeat_at == 99_999_999_999
    assert abs(reading.mtime - time.time()) < 60


def test_a_folder_in_place_of_a_status_is_a_failure_of_ours_to_read(root):
    (root / "status" / "n1.json").mkdir()
    reading = read_status(Store(root), "n1", ["n1.json"])

    assert reading.blind and "directory" in reading.problem.lower()


def test_one_bad_file_does_not_hide_the_others(root):
    (root / "status" / "n1.json").mkdir()
    beat(root, "n2", seq=9)
    report = Observer(Store(root)).look()

    assert report.readings["n1"].blind
    assert report.readings["n2"].beat.seq == 9


def test_a_look_tells_stops_owners_and_the_request_to_end(root):
    (root / "ctl" / "n1.stop").write_text("3\n")
    (root / "claims" / f"n2~{LIFE}").mkdir()
    (root / "claims" / f"gone~{LIFE}").mkdir()
    (root / "claims" / ".nfs0001").mkdir()
    (root / "ctl" / "watch.stop").touch()
    report = Observer(Store(root)).look()

    assert report.stops == {"n1": "3\n"}
    assert report.owners == {"n2": (LIFE,), "gone": (LIFE,)}
    assert report.watch_stop
    assert set(report.readings) == {"n1", "n2", "gone"}
    assert Report.from_plain(report.to_plain()) == report


def test_a_stop_intent_that_cannot_be_read_covers_everything(root):
    (root / "ctl" / "n1.stop").mkdir()

    assert layout.stop_covers(Observer(Store(root)).look().stops["n1"], 99)


def test_the_meta_is_told_once_and_again_when_it_changes(root):
    observer = Observer(Store(root))
    first, second = observer.look(), observer.look()
    put_meta(root, (WorkerSpec("n1", 0, 1),), {"n1": 2})
    third = observer.look()

    assert first.meta and second.meta is None and '"n1": 2' in third.meta
    assert set(third.readings) == {"n1"}


def test_a_run_that_is_gone_is_said_to_be_gone(root):
    observer = Observer(Store(root))
    shutil.rmtree(root)

    with pytest.raises(NotRunning, match="gone"):
        observer.look()


def see(eyes, readings, now, memory=None, launch=1):
    """The state of n1 after a look that gave `readings`, and the sight."""
    meta = LaunchMeta("/r", "r", (WorkerSpec("n1", 0, 1),), 1, "m:f", launches={"n1": launch})
    report = Report(now, {"n1": readings}, meta_mtime=0.0)
    sight = eyes.see(report, meta, memory or {}, frozenset({"n1"}), now)
    return judge(sight.seen[0], None, LIMITS).state, sight


def good(seq, mtime=0.0):
    from ctl.health import Beat

    return Reading(Beat(LIFE, seq, 1, True, False, False, True, None, 0.0), mtime)


def test_while_a_status_is_unreadable_the_last_good_beat_ages_on():
    eyes, bad = Continuous(LIMITS, 1000.0), Reading(problem="it is empty")

    assert see(eyes, good(1), 1000.0)[0] is State.READY
    assert see(eyes, bad, 1059.0)[0] is State.READY
    assert see(eyes, bad, 1061.0)[0] is State.STALE
    assert see(eyes, good(1), 1061.0)[0] is State.STALE
    assert see(eyes, good(2), 1062.0)[0] is State.READY


def test_a_watcher_that_begins_gives_everybody_a_full_age():
    memory = {"n1": HostMemory(launch=1, launched_at=0.0)}
    eyes = Continuous(LIMITS, 5000.0)

    assert see(eyes, Reading(), 5000.0, memory)[0] is State.STARTING
    assert see(eyes, Reading(), 5059.0, memory)[0] is State.STARTING
    assert see(eyes, Reading(), 5061.0, memory)[0] is State.MISSING


def test_after_the_storage_was_away_all_ages_start_anew():
    eyes = Continuous(LIMITS, 1000.0)
    see(eyes, good(1), 1000.0)
    assert see(eyes, good(1), 1100.0)[0] is State.STALE
    eyes.restart(1100.0)

    assert see(eyes, good(1), 1159.0)[0] is State.READY
    assert see(eyes, good(1), 1161.0)[0] is State.STALE


def test_one_look_compares_two_times_of_the_file_server():
    eyes = Single(LIMITS)

    assert see(eyes, good(1, mtime=940.0), 1000.0)[0] is State.READY
    assert see(eyes, good(1, mtime=939.0), 1000.0)[0] is State.STALE


def test_one_look_at_an_unreadable_status_accuses_nobody_but_many_do():
    eyes, bad = Single(LIMITS), Reading(mtime=500.0, problem="it is empty")
    _, first = see(eyes, bad, 1000.0)
    _, second = see(eyes, bad, 1060.0, first.memory)
    state, third = see(eyes, bad, 1061.0, second.memory)

    assert first.unclear == second.unclear == {"n1"}
    assert (third.unclear, state) == (frozenset(), State.MISSING)
    _, well = see(eyes, good(1, 1000.0), 1000.0, first.memory)
    assert well.memory["n1"].bad_at is None


def test_what_is_remembered_is_only_of_hosts_that_are_there():
    eyes = Continuous(LIMITS, 1000.0)
    _, sight = see(eyes, good(1), 1000.0, {"gone": HostMemory(launch=4)})

    assert set(sight.memory) == {"n1"}


def test_a_look_over_the_child_is_the_same_look(root, io):
    beat(root)
    report = Report.from_plain(io.call("look", 30.0))

    assert report.readings["n1"].beat.seq == 1
    assert report.meta and Report.from_plain(io.call("look", 30.0)).meta is None
    assert Report.from_plain(io.call("look", 30.0, full=True)).meta


def test_errors_of_the_child_keep_their_kind(root, io):
    with pytest.raises(Busy), _second(root) as other:
        assert io.call("lock", 30.0) == ""
        other.call("lock", 30.0)


class _second:
    def __init__(self, root):
        self.io = RootIO(str(root))

    def __enter__(self):
        return self.io

    def __exit__(self, *_):
        self.io.close()


def test_the_lock_ends_with_the_child(root, io):
    assert io.call("lock", 30.0) == ""
    io.close()

    with _second(root) as other:
        assert wait_until(lambda: _locks(other), what="the lock is free")


def _locks(io):
    try:
        io.call("lock", 30.0)
    except Busy:
        return False
    return True


def test_a_child_that_hangs_is_late_is_waited_for_and_its_answer_thrown_away(root, io):
    io.call("look", 30.0)
    os.kill(io.pid, signal.SIGSTOP)
    with pytest.raises(Late):
        io.call("memory", 0.2)
    assert not io.recover(0.0)

    os.kill(io.pid, signal.SIGCONT)
    assert wait_until(lambda: io.recover(0.1))
    assert Report.from_plain(io.call("look", 30.0)).readings.keys() == {"n1", "n2"}


def test_a_child_that_hangs_for_long_is_replaced_and_the_watcher_never_waits(root, io):
    io.call("look", 30.0)
    first = io.pid
    os.kill(first, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(Late):
        io.call("look", 0.2)
    assert time.monotonic() - begun < 100
    assert wait_until(lambda: io.recover(0.1))

    assert Report.from_plain(io.call("look", 30.0)).meta
    assert io.pid != first and io.generation == 2
    wait_until(lambda: gone(first), what="the one that hung is ended")


def test_a_child_that_is_killed_is_replaced(root, io):
    io.call("look", 30.0)
    os.kill(io.pid, signal.SIGKILL)
    with pytest.raises(Late):
        io.call("look", 30.0)

    assert Report.from_plain(io.call("look", 30.0)).meta


def test_a_root_that_is_not_there_is_an_answer_and_not_the_end_of_the_child(tmp_path):
    io = RootIO(str(tmp_path / "later"))
    try:
        with pytest.raises(StorageError, match="later"):
            io.call("memory", 30.0)
        (tmp_path / "later" / "ctl").mkdir(parents=True)
        assert io.call("memory", 30.0) == ""
        assert io.generation == 1
    finally:
        io.close()


def test_the_child_ends_with_its_parent(root, io):
    io.call("look", 30.0)
    pid = io.pid
    io.close()

    wait_until(lambda: gone(pid))


def test_when_the_root_does_not_answer_the_storage_is_suspected_until_it_does(root, io, capsys):
    journal = Journal()
    lookout = Lookout(io, journal, 1.0, late=5.0)
    lookout.lock()
    assert lookout.look() is not None
    status = root / "status"
    status.rename(root / "away")

    assert lookout.look() is None and lookout.lost
    assert lookout.look() is None
    (root / "away").rename(status)
    report = lookout.look()

    assert report is not None and lookout.found_again and not lookout.lost
    assert report.meta, "what was told while nobody listened is told again"
    assert capsys.readouterr().err.count("storage suspect") == 1


def test_a_new_child_takes_the_lock_before_it_looks(root, io):
    lookout = Lookout(io, Journal(), 1.0)
    lookout.lock()
    lookout.look()
    os.kill(io.pid, signal.SIGKILL)
    wait_until(lambda: gone(io.pid))
    assert lookout.look() is None
    assert wait_until(lookout.look)

    with pytest.raises(Busy), _second(root) as other:
        other.call("lock", 30.0)


def test_a_log_that_grows_is_cut_in_place_and_keeps_its_newest_lines(root, io):
    line = "x" * 9_999 + "\n"
    for i in range(600):
        io.call("record", 30.0, lines=line, events=f'{{"i": {i}}}\n')
    sizes = (root / "ctl" / "watch.log").stat().st_size

    assert sizes <= 5_100_000
    assert (root / "ctl" / "events.jsonl").read_text().endswith('{"i": 599}\n')


def test_claims_are_returned_over_the_child(root, io):
    owner = layout.Owner("n1", LIFE)
    (root / owner.folder).mkdir()
    (root / "inbox" / "0").mkdir()
    token = layout.Token(layout.batch_id("s", "b" * 12, 1), 0, 1, 0)
    (root / layout.claim_path(owner, token)).touch()

    assert io.call("reclaim", 30.0, host="n1", incarnation=LIFE, died=True) == [
        *(1, True),
        [token.batch],
    ]
    assert os.listdir(root / "inbox" / "0") == [f"{token.batch}.1.1"]


def test_a_launch_number_is_above_all_that_are_known_and_given_out_once(root, io):
    assert io.call("launch", 30.0, host="n1", above=1) == 2
    assert io.call("launch", 30.0, host="n1", above=7) == 8
    with pytest.raises(Busy, match="n1 was launched by somebody else"):
        io.call("launch", 30.0, host="n1", above=7)
    assert roots.open_run(str(root)).need_meta().launches == {"n1": 8, "n2": 1}


def test_a_launch_leaves_what_a_command_changes_meanwhile(root, monkeypatch):
    """Under a lock that lies `ctl scale` may write the launch meta at any moment."""
    old, take, before = time.time() - 600, launches.take, time.time()
    os.utime(root / layout.LAUNCH_META, (old, old))
    workers = tuple(WorkerSpec(f"n{i}", i % 2, 1) for i in (1, 2, 3))

    def meanwhile(*args):
        put_meta(root, workers, {"n1": 1, "n2": 1, "n3": 1})
        os.utime(root / layout.LAUNCH_META, (old, old))
        return take(*args)

    monkeypatch.setattr(launches, "take", meanwhile)
    assert RootChild(str(root)).launch("n1", 1) == 2
    meta = roots.open_run(str(root)).need_meta()
    assert (meta.workers, meta.launches) == (workers, {"n1": 2, "n2": 1, "n3": 1})
    assert Observer(Store(root)).look().meta_mtime > before - 60, "it is awaited since now"


def test_a_number_that_was_given_out_counts_before_it_is_written_down(root):
    Store(root).put(layout.LaunchToken("n1", 5, "0" * 8).path, b"")
    report = Observer(Store(root)).look()
    assert LaunchMeta.from_json(report.meta.encode(), "m").launches == {"n1": 5, "n2": 1}


def test_a_command_that_works_on_the_run_goes_first(root, io):
    from ctl.locks import verb_lock

    with verb_lock(Store(root), "stop"), pytest.raises(Busy):
        io.call("launch", 30.0, host="n1", above=0)


def test_what_a_watcher_writes_is_private(root, io):
    io.call("appear", 30.0, pid=os.getpid(), identity="{}")
    io.call("record", 30.0, lines="a\n", events="{}\n")
    io.call("remember", 30.0, text="{}\n")

    for name in ("watch.pid", "watch.log", "events.jsonl", "watch.memory.json"):
        assert stat.S_IMODE((root / "ctl" / name).stat().st_mode) == 0o600
    io.call("vanish", 30.0, pid=os.getpid())
    assert not (root / "ctl" / "watch.pid").exists()


def test_a_journal_keeps_what_cannot_be_written_and_counts_what_it_drops(capsys):
    journal, written = Journal(), []

    def fail(lines, events):
        raise Late("away")

    for i in range(2500):
        journal.say(f"line {i}", "event", number=i)
    with pytest.raises(Late):
        journal.flush(fail)
    journal.flush(lambda lines, events: written.append((lines, events)))

    lines = "".join(pair[0] for pair in written)
    assert "line 2499" in lines and "line 0\n" not in lines
    assert "1000 lines were lost" in lines
    assert max(len(a) for a, _ in written) < 17_000
    journal.flush(fail)
