"""Jobs of Slurm: what sbatch is told, the script, sizes; what is read back. Pure parts only."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ctl.cli import main
from ctl.slurm import backlog, fleet, queue, script, sizing
from ctl.slurm.fleet import View
from ctl.slurm.queue import Row
from ctl.slurm.terms import Book, Job, Terms
from fsworker.protocol import layout, membership, segment
from fsworker.protocol.layout import Token
from fsworker.protocol.layout.members import member_path
from fsworker.protocol.records.member import Member
from fsworker.protocol.records.needs import Needs, Offer
from fsworker.protocol.records.run import LaunchMeta, WorkerSpec
from fsworker.protocol.segment import Segment
from tests.support.runs import make_run

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("needs", "gres", "known", "could"),
    [
        (Needs(("slurm", "fast")), None, [], True),
        (Needs(("other",)), None, [], False),
        (Needs(gpus=1), None, [], False),
        (Needs(gpus=1), "gpu:2", [], True),
        (Needs(gpus=1), "gpu:2", [Offer(gpus=0)], False),
        (Needs(("odd",)), None, [Offer(), Offer(frozenset({"odd"}))], True),
    ],
)
def test_a_backlog_counts_what_workers_of_slurm_could_serve(
    needs: Needs, gres: str | None, known: list[Offer], could: bool
) -> None:
    terms = Terms(gres=gres)
    assert backlog.could_serve(needs, ("slurm", "fast"), terms, known, job=False) is could


def test_the_backlog_leaves_out_what_others_must_serve(tmp_path: Path) -> None:
    run = make_run(tmp_path, "n1")
    Path(run.root, layout.inbox_dir(0)).mkdir(exist_ok=True)
    for number, needs in enumerate((Needs(), Needs(("slurm",)), Needs(("x",)), Needs(("x",)))):
        batch = layout.batch_id("s", "c0ffee000001", number)
        data = segment.encode(Segment(segment.BATCH, {"needs": needs.fields()}, [b"\x90"]))
        run.store.put(layout.inbox_path(Token(batch, 0, needs=needs.digest)), data)
    assert backlog.count(run, BOOK) == 2


META = LaunchMeta(
    "/runs/my 'run' 50%", "r1", (WorkerSpec("n1", 0),), 2, "m.f",
    python="/opt/my python/bin/python", pythonpath=("/a b",), setup=("module load x",),
)  # fmt: skip
LIFE = "c0ffee000001"
BOOK = Book(3, Terms(grace=50, max_idle=9.0), parallel=4, job_slots=0)


def test_the_script_stands_alone_in_any_shell_and_hides_nothing_of_the_path(tmp_path: Path) -> None:
    text = script.build(META, BOOK, "id.secret", [("A", "it's $HOME")], 1, 30.0).decode()
    lines = text.splitlines()
    assert lines[0] == "#!/bin/sh" and lines[-2] == "module load x"
    assert lines[-1].startswith("exec '/opt/my python/bin/python' -m fsworker attach --root ")
    file = tmp_path / "job.sh"
    file.write_text(text.replace("module load x", "true").replace("exec ", "printf '%s\\n' "))
    env = {"SLURM_JOB_ID": "77", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", f". {file}; echo \"$A|$PYTHONPATH|$FLEET_WORKER_TOKEN\""],
        capture_output=True, text=True, env=env, check=True,
    )  # fmt: skip
    *words, last = done.stdout.splitlines()
    assert last == "it's $HOME|/a b|id.secret"
    assert words[words.index("--root") + 1] == META.root
    assert words[words.index("--name") + 1] == "slurm-77"
    pairs = dict(zip(words[4::2], words[5::2], strict=False))
    assert (pairs["--parallel"], pairs["--job-slots"], pairs["--shard"]) == ("4", "0", "1")
    assert (pairs["--grace"], pairs["--term-grace"], pairs["--max-idle"]) == ("40", "15", "9")
    assert "id.secret" not in words, "a token must not show in a list of processes"


def test_sbatch_is_told_what_was_asked_and_no_more() -> None:
    terms = Terms("fast", None, "2:00:00", "gpu:1", 8, "4G", ("--qos=x",), 90)
    argv = script.arguments(terms, "r1", "/runs/50%")
    assert {"--partition=fast", "--time=2:00:00", "--gres=gpu:1", "--mem=4G"} <= set(argv)
    assert "--output=/runs/50%%/ctl/slurm-%j.out" in argv
    assert "--signal=B:USR1@90" in argv and argv[-1] == "--qos=x"
    assert not [word for word in argv if word.startswith("--account")]


@pytest.mark.parametrize(
    ("backlog", "each", "least", "most", "target"),
    [(0, 4, 0, 9, 0), (0, 4, 2, 9, 2), (1, 4, 0, 9, 1), (9, 4, 0, 9, 3), (99, 4, 0, 9, 9),
     (5, 0, 0, 9, 5), (-3, 4, 0, 9, 0)],
)  # fmt: skip
def test_how_many_a_backlog_asks_for(
    backlog: int, each: int, least: int, most: int, target: int
) -> None:
    assert sizing.wanted(backlog, each, least, most) == target


@pytest.mark.parametrize(
    ("present", "waiting", "target", "change"),
    [(3, 0, 5, (2, 0)), (3, 0, 3, (0, 0)), (5, 2, 4, (0, 1)), (5, 2, 1, (0, 2)), (5, 0, 1, (0, 0))],
)
def test_only_what_waits_is_cancelled(
    present: int, waiting: int, target: int, change: tuple[int, int]
) -> None:
    assert sizing.change(present, waiting, target) == change


def test_jobs_beside_what_slurm_says_of_them() -> None:
    book = Book(3, Terms(), (Job("1", "a"), Job("2", "b"), Job("3", "c")))
    rows = {"1": Row("1", "RUNNING", "n1"), "2": Row("2", "PENDING", "", "Priority"),
            "3": Row("3", "NODE_FAIL")}  # fmt: skip
    seen = View(book, rows)
    assert [j.id for j in seen.present] == ["1", "2"] and [j.id for j in seen.waiting] == ["2"]
    assert seen.fields()[1] == {
        "job": "2", "member": "slurm-2", "state": "PENDING", "node": "", "reason": "Priority",
    }  # fmt: skip
    assert Row("4", "GONE").over and not Row("5", "COMPLETING").over


def test_workers_of_jobs_that_are_over_are_members_no_more(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "inbox" / "0").mkdir()
    token = Token(layout.batch_id("s", LIFE, 0), 0, 1)
    for host in ("slurm-1", "slurm-2"):
        run.store.publish(member_path(host), Member(host, 1, 0).to_json())
        owner = layout.Owner(host, LIFE)
        run.store.mkdir(owner.folder)
        run.store.put(layout.claim_path(owner, token), b"")
    book = Book(2, Terms(), (Job("1", "a"), Job("2", "b")))
    rows = {"1": Row("1", "PREEMPTED"), "2": Row("2", "COMPLETING")}
    fleet.bury(run.store, View(book, rows))
    assert [member.host for member in membership.read_members(run.store)] == ["slurm-2"]
    (name,) = os.listdir(tmp_path / "inbox" / "0")
    assert layout.parse_inbox_name(0, name) == token, "with no death"


def test_a_book_survives_its_file(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert fleet.read(run.store) is None
    fleet.write(run.store, BOOK)
    assert fleet.read(run.store) == BOOK


def test_what_is_asked_of_slurm_alone_is_refused_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_WORKSPACE", str(tmp_path / "ws"))
    where = ["--root", str(tmp_path / "r"), "--fn", "json:loads"]
    cases = {
        "--partition is for --launcher slurm": ["--launcher", "local", "--partition", "x"],
        "--launcher slurm needs --nodes": ["--launcher", "slurm"],
        "give --nodes instead": ["--launcher", "slurm", "--nodes", "2", "--hosts", "n1"],
    }
    for words, args in cases.items():
        assert main(["start", *where, *args]) == 2
        assert words in capsys.readouterr().err
    run = make_run(tmp_path / "other")
    assert main(["scale", "--nodes", "3", "--root", run.root]) == 2
    assert "is no run of Slurm" in capsys.readouterr().err
    for bad in ("3", "4:2", ":", "a:b", "0:0"):
        assert main(["scale", "--auto", bad, "--root", run.root]) == 2
    assert "--auto takes MIN:MAX" in capsys.readouterr().err


def test_a_slurm_that_answers_nonsense_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "sbatch"
    fake.write_text("#!/bin/sh\ncat >/dev/null; echo hello\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Exception, match="sbatch printed 'hello' in place of a job id"):
        queue.submit(b"", [])
    fake.write_text("#!/bin/sh\nenv | grep -c '^SLURM_MEM' >&2; exit 1\n")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1")
    with pytest.raises(Exception, match="sbatch refuses: 0"):
        queue.submit(b"", [])
    assert queue.look([]) == {} and json.dumps(queue.look([])) == "{}"
