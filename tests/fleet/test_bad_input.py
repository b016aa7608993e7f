"""What people type wrong, over the real commands.

Whatever it is: one sentence that says what to do, the exit code of docs/exit-codes.md, nothing
started, nothing written, nothing lost.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctl import roots
from fsworker.client import Client
from fsworker.errors import FormatError, NotRunning, UsageError
from fsworker.protocol import layout
from fsworker.protocol.records.run import LaunchMeta, Manifest, WorkerSpec
from tests.support.ctlrun import ECHO, Ctl
from tests.support.waiting import with_environ

pytestmark = pytest.mark.fleet

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and capabilities need root")
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path) as calls:
        yield calls


def lay(root: Path, *, format: str = "1.0", host: str = "n1") -> Path:
    """A run that has ended, with a batch that waits."""
    for folder in (*layout.FOLDERS, layout.inbox_dir(0)):
        (root / folder).mkdir(parents=True)
    root.chmod(0o700)
    (root / layout.MARKER).write_bytes(roots.marker_bytes("r1"))
    workers = (WorkerSpec(host, 0, 1),)
    manifest = Manifest("r1", ECHO, 1, workers, (ECHO,), owner=os.getuid())
    meta = LaunchMeta(str(root), "r1", workers, 1, ECHO, launcher="local", launches={host: 1})
    for name, record in ((layout.MANIFEST, manifest), (layout.LAUNCH_META, meta)):
        fields = {**json.loads(record.to_json()), "format": format}
        (root / name).write_text(json.dumps(fields))
    (root / layout.host_file(host, "stop")).write_text("1\n")
    batch = layout.batch_id("s", "c0ffee000001", 0)
    (root / layout.inbox_dir(0) / f"{batch}.0.0").write_bytes(b"precious")
    return root


def picture(folder: Path) -> dict[str, bytes | None]:
    """Every name below a folder, with the content of files; the locks of streams mean nothing."""
    paths = sorted(p for p in folder.rglob("*") if p.parent.name != "streams")
    return {str(p): p.read_bytes() if p.is_file() else None for p in paths if p.name != "streams"}


def one_sentence(done: Done, code: int, words: str) -> str:
    """The one line on stderr, which must be about the matter and hold no traceback."""
    assert done.returncode == code, (done.args, done.stdout, done.stderr)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("ctl: ")
    assert re.search(words, done.stderr), done.stderr
    assert not re.search("Traceback|Errno|unexpected", done.stderr), done.stderr
    assert done.stdout == ""
    return done.stderr


def refused(ctl: Ctl, code: int, words: str, *args: str, **env: str) -> None:
    """The call is refused, and afterwards all is as it was."""
    before = picture(ctl.folder)
    one_sentence(ctl(*args, **env), code, words)
    assert picture(ctl.folder) == before
    assert with_environ(ctl.entry) == []


def workers(*items: object) -> tuple[str, str]:
    return "--workers-json", json.dumps(list(items))


ALLOWED = {"FLEET_HOSTS": "n1"}
N1, N2 = {"host": "n1", "shard": 0}, {"host": "n2", "shard": 1}

STARTS: dict[str, tuple[int, str, tuple[str, ...], dict[str, str]]] = {
    "not a function name": (2, "'nonsense' is not of the form", ("--fn", "nonsense"), {}),
    "a path as function": (2, "names a file", ("--fn", "code/grade.py:f"), {}),
    "workers: cut off": (2, "not valid JSON", ("--workers-json", '[{"host": "n1"'), {}),
    "workers: an object": (2, "must be a list", ("--workers-json", "{}"), {}),
    "workers: none": (2, "at least one", ("--workers-json", "[]"), {}),
    "workers: a number": (2, "worker 1 must be an object", workers(N1, 5), {}),
    "workers: no host": (2, "worker 0: field 'host'", workers({"shard": 0}), {}),
    "workers: bad shard": (2, "field 'shard'.*-1", workers({**N1, "shard": -1}), {}),
    "workers: bad slots": (2, "'concurrency'", workers({**N1, "concurrency": "many"}), {}),
    "workers: no file": (2, "cannot read 'nowhere.json'", ("--workers-json", "nowhere.json"), {}),
    "workers: too deep": (2, "not valid JSON", ("--workers-json", "[" * 100_000), {}),
    "a host twice": (2, "'n1'.*(there already|twice)", ("--hosts", "n1 n1"), {}),
    "a host twice in a set": (2, "n2", ("--hosts", "n[1-3],n2"), {}),
    "a host in two workers": (2, "'n1' is named twice", workers(N1, {**N1, "shard": 1}), {}),
    "a host in two spellings": (2, "'N1' is named twice", workers(N1, {**N2, "host": "N1"}), {}),
    "a shard beyond the count": (2, "shard 1.*raise", (*workers(N1, N2), "--shard-count", "1"), {}),
    "an open bracket": (2, "bracket", ("--hosts", "n[1-3"), {}),
    "a host set upside down": (2, "not a host set", ("--hosts", "n[3-1]"), {}),
    "a host that is none": (2, "not a host name", ("--hosts", "n1;reboot"), {}),
    "hosts said twice": (2, "give one of them", (*workers(N1), "--hosts", "n1"), {}),
    "a host that nobody allowed": (5, "'n9' is not among", ("--hosts", "n9"), ALLOWED),
    "a set that is half allowed": (5, "'n2' is not", ("--hosts", "n[1-2]"), ALLOWED),
    "ssh and no allowed hosts": (5, "no host is", ("--launcher", "ssh", "--hosts", "n1"), {}),
    "allowed hosts that are none": (2, "FLEET_HOSTS", (), {"FLEET_HOSTS": "n[1-"}),
    "a host file that is not there": (2, "no-file", (), {"FLEET_HOSTS_FILE": "/no-file"}),
    "no such launcher": (2, "ssh.*local|local.*ssh", ("--launcher", "pigeon"), {}),
    "no such python": (2, "interpreter /no-python is not there", ("--python", "/no-python"), {}),
    "no program": (2, "/etc/passwd is no program", ("--python", "/etc/passwd"), {}),
    "no such name": (2, "interpreter no-python is not", ("--python", "no-python"), {}),
    "no such venv": (2, "/no-venv/bin/python is not there", ("--venv", "/no-venv"), {}),
    "no such repo": (2, "no folder /no-repo", ("--repo", "/no-repo"), {}),
    "no slots": (2, "--concurrency", ("--concurrency", "0", "--job-slots", "0"), {}),
    "a workspace below a file": (
        7, "workspace .*/dev/null/x .*/dev/null is no folder.*--ws", ("--ws", "/dev/null/x"), {}
    ),
    "too many slots": (2, "4096 at most, not 5000", ("--concurrency", "5000"), {}),
    "too many slots of one": (2, "worker 0.*4096", workers({**N1, "concurrency": 5000}), {}),
    "too many shards": (2, "99999 shards.*10000", ("--shard-count", "99999"), {}),
    "a shard far away": (2, "1000000 shards", workers({**N1, "shard": 999_999}), {}),
    "too many hosts": (2, "--hosts.*100000 hosts", ("--hosts", "node[1-999999999]"), {}),
    "slots in words": (2, "FLEET_CONCURRENCY", (), {"FLEET_CONCURRENCY": "many"}),
    "a watcher in a hurry": (2, "FLEET_WATCH_STALE", ("--watch",), {"FLEET_WATCH_STALE": "4"}),
    "no time": (2, "--ready-timeout", ("--ready-timeout", "0"), {}),
    "time in words": (2, "--ready-timeout", ("--ready-timeout", "soon"), {}),
    "no such option": (2, "--workers", ("--workers", "n1"), {}),
    "no such group": (2, "no such group", ("--group", "no-such-group"), {}),
    "env without a value": (2, "--env", ("--env", "NAME"), {}),
    "env of the wrapper": (5, "FLEET_RUN", ("--env", "FLEET_RUN=x"), {}),
    "a run id with a slash": (2, "--run-id", ("--run-id", "a/b"), {}),
    "a trial without experiment": (2, "give both", ("--trial", "t"), {}),
    "a config that is not there": (2, "no file", ("--config", "none.toml"), {}),
    "an ssh_config not there": (
        2, "no-config", ("--launcher", "ssh", "--hosts", "n1", "--ssh-config", "/no-config"),
        ALLOWED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", STARTS)
def test_a_start_that_is_wrong_in_itself(ctl: Ctl, what: str) -> None:
    code, words, args, env = STARTS[what]
    named = () if "--fn" in args else ("--fn", ECHO)
    refused(ctl, code, words, "start", "--root", str(ctl.runs / "run"), *named, *args, **env)
    assert not (ctl.runs / "run").exists()


ROOTS: dict[str, tuple[int, str, str]] = {
    "empty": (5, "empty", ""),
    "the top": (5, "'/'", "/"),
    "through ..": (5, r"'\.\.'", "{runs}/x/../y"),
    "the folder of somebody": (5, "is no run root", "{other}"),
    "in another run": (5, "inside another run", "{run}/sub"),
    "a file": (2, "not a folder", "{file}"),
    "below a file": (2, "not a folder", "{file}/run"),
    "a system folder": (5, "system folder", "/proc/run"),
}


@pytest.mark.parametrize("what", ROOTS)
def test_a_start_in_a_place_that_is_no_place_for_a_run(ctl: Ctl, what: str) -> None:
    code, words, text = ROOTS[what]
    other, file = ctl.folder / "other", ctl.folder / "file"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    file.write_text("x")
    run = lay(ctl.runs / "run")
    root = text.format(runs=ctl.runs, other=other, file=file, run=run)
    refused(ctl, code, words, "start", "--root", root, "--fn", ECHO)


RUN, NOTHING = "{run}", "{runs}/nothing"

VERBS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "status of nothing": (3, "no run at .*nothing", ("status", "--root", NOTHING)),
    "status of no run at all": (3, "", ("status",)),
    "stop of nothing": (3, "no run at", ("stop", "--root", NOTHING)),
    "watch of nothing": (3, "no run at", ("watch", "--once", "--root", NOTHING)),
    "logs of nothing": (3, "no run at", ("logs", "n1", "--root", NOTHING)),
    "restart in nothing": (3, "no run at", ("restart-host", "n1", "--root", NOTHING)),
    "submit to nothing": (3, "no run at", ("submit", "--tasks", "{tasks}", "--root", NOTHING)),
    "restart of a stranger": (2, "'n9' is not of this run, which has n1",
                              ("restart-host", "n9", "--root", RUN)),
    "restart of nobody": (2, "takes one host", ("restart-host", "--root", RUN)),
    "logs of a stranger": (2, "n9", ("logs", "n9", "--root", RUN)),
    "submit: no file": (2, "none.jsonl", ("submit", "--tasks", "none.jsonl", "--root", RUN)),
    "submit: a bad line": (2, "line 2", ("submit", "--tasks", "{bad}", "--root", RUN)),
    "submit: another function": (2, "json.loads", ("submit", "--tasks", "{tasks}",
                                                   "--fn", "json.loads", "--root", RUN)),
    "results of no stream": (2, "none", ("results", "--stream", "none", "-o", "o", "--root", RUN)),
    "a stale that no beat keeps": (2, "--heartbeat-stale",
                                   ("watch", "--heartbeat-stale", "1", "--root", RUN)),
    "cleanup outside the prefix": (5, "outside", ("cleanup", "--root", "{outside}")),
    "cleanup of the prefix": (5, "", ("cleanup", "--root", "{runs}")),
    "cleanup through ..": (5, r"'\.\.'", ("cleanup", "--root", "{runs}/run/../run")),
    "cleanup of an empty text": (5, "empty", ("cleanup", "--root", "")),
    "no such command": (2, "did you mean status", ("statsu",)),
}  # fmt: skip


@pytest.mark.parametrize("what", VERBS)
def test_a_verb_that_is_given_something_wrong(ctl: Ctl, what: str) -> None:
    code, words, args = VERBS[what]
    tasks, bad = ctl.folder / "tasks.jsonl", ctl.folder / "bad.jsonl"
    tasks.write_text("1\n2\n")
    bad.write_text('1\n{"args": [1, \n')
    places = {
        "run": lay(ctl.runs / "run"), "runs": ctl.runs, "tasks": tasks, "bad": bad,
        "outside": lay(ctl.folder / "outside"),
    }  # fmt: skip
    refused(ctl, code, words, *(arg.format(**places) for arg in args))


def test_the_same_as_json_is_one_document(ctl: Ctl) -> None:
    for code, args in ((3, ("status", "--json")), (2, ("start", "--fn", "nonsense", "--json"))):
        done = ctl(*args)
        assert done.returncode == code, done.stderr
        told = json.loads(done.stdout)
        assert told["exit_code"] == code
        assert told["error"] and "\n" not in told["error"]
        assert "Traceback" not in done.stderr


NEWER = ("start", "status", "stop", "watch", "restart-host", "submit", "logs")


@pytest.mark.parametrize("verb", NEWER)
def test_a_run_of_another_protocol_version_is_left_alone(ctl: Ctl, verb: str) -> None:
    root = lay(ctl.runs / "run", format="2.0")
    (ctl.folder / "tasks.jsonl").write_text("1\n")
    more = {
        "start": ("--fn", ECHO), "watch": ("--once",), "restart-host": ("n1",), "logs": ("n1",),
        "submit": ("--tasks", "tasks.jsonl"),
    }  # fmt: skip
    refused(ctl, 8, r"2\.0.*1\.0|1\.0.*2\.0", verb, "--root", str(root), *more.get(verb, ()))


def test_a_client_of_another_version_or_of_nothing_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"manifest.json.*2\.0"):
        Client(lay(tmp_path / "newer", format="2.0"))
    with pytest.raises(NotRunning, match="no run at"):
        Client(tmp_path / "nothing")
    for name in ("timeout", "no_worker_timeout"):
        for value in ("5", True, 0):
            with pytest.raises(UsageError, match=f"{name} must be a number of seconds above 0"):
                Client(tmp_path / "run", **{name: value})  # type: ignore[arg-type]
    with (
        Client(lay(tmp_path / "run")) as client,
        pytest.raises(UsageError, match=r"json\.loads"),
    ):
        client.submit("json.loads", "1")


# --- what only the worker can find wrong


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("no_such_module:f", "no_such_module"),
        ("json:no_such_function", "no_such_function"),
        ("json:__doc__", "__doc__"),
        ("broken:f", "broken"),
    ],
)
def test_a_function_that_no_worker_can_import(ctl: Ctl, function: str, words: str) -> None:
    (ctl.folder / "broken.py").write_text("raise RuntimeError('not on this\\nmachine')\n")
    root = lay(ctl.runs / "run", host="localhost")
    inbox = picture(root / "inbox")
    done = ctl("start", "--root", str(root), "--fn", function, "--repo", str(ctl.folder))
    assert done.returncode == 5, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("ctl: host localhost: ") and words in last
    assert "Traceback" not in done.stderr
    assert with_environ(ctl.entry) == []
    assert picture(root / "inbox") == inbox, "what waited waits on"
    assert os.listdir(root / "claims") == os.listdir(root / "quarantine") == []


def test_work_that_waited_through_a_failed_start_is_done_by_the_next(ctl: Ctl) -> None:
    root = ctl.runs / "run"
    ctl.start(root)
    assert ctl("stop").returncode == 0
    (ctl.folder / "tasks.jsonl").write_text("1\n2\n")
    assert ctl("submit", "--tasks", "tasks.jsonl").returncode == 0
    assert ctl("start", "--root", str(root), "--fn", "json:nothing").returncode == 5
    ctl.start(root)
    done = ctl("submit", "--tasks", "tasks.jsonl", "--wait", "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    lines = (ctl.folder / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["value"] for line in lines] == [1, 2]
    assert ctl("stop").returncode == 0


# --- storage


def inside(ctl: Ctl, script: str, *args: str) -> Done:
    """`ctl ARGS` in a mount space of its own, after `script` has changed it."""
    command = f'{script} && exec {shlex.quote(sys.executable)} -m ctl "$@"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", *args],
        capture_output=True, text=True, env=ctl.env, cwd=ctl.folder, timeout=240, check=False,
    )  # fmt: skip


def small_disk(at: Path, fill: str) -> str:
    place = shlex.quote(str(at))
    return f"mkdir -p {place} && mount -t tmpfs -o size=64k tmpfs {place} && {fill}"


@NEEDS_ROOT
def test_a_disk_without_room_for_a_run(ctl: Ctl) -> None:
    disk = ctl.folder / "disk"
    fill = f"! head -c 1M /dev/zero >{shlex.quote(str(disk))}/filler 2>/dev/null"
    before = picture(ctl.folder / "runs")
    done = inside(ctl, small_disk(disk, fill), "start", "--root", f"{disk}/run", "--fn", ECHO)
    one_sentence(done, 7, f"cannot write {disk}/run.*free space")
    assert picture(ctl.folder / "runs") == before
    assert with_environ(ctl.entry) == []


@NEEDS_ROOT
def test_a_disk_that_is_full_when_tasks_are_submitted(ctl: Ctl) -> None:
    root, disk = lay(ctl.runs / "run"), ctl.folder / "disk"
    (ctl.folder / "tasks.jsonl").write_text("".join(f'"{"x" * 1000}"\n' for _ in range(200)))
    copy = f"cp -a {shlex.quote(str(root))} {shlex.quote(str(disk))}"
    listing, args = f"{disk}/run/inbox/0", ["submit", "--tasks", "tasks.jsonl"]
    args += ["--root", f"{disk}/run"]
    probe = f'sh -c \'"$@"; code=$?; ls "{listing}" >names; exit $code\' sh'
    command = f'{small_disk(disk, copy)} && {probe} {shlex.quote(sys.executable)} -m ctl "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", *args],
        capture_output=True, text=True, env=ctl.env, cwd=ctl.folder, timeout=240, check=False,
    )  # fmt: skip
    one_sentence(done, 7, "space")
    names = (ctl.folder / "names").read_text().split()
    assert os.listdir(root / "inbox" / "0")[0] in names, "what waited before waits on"
    assert all(layout.parse_inbox_name(0, name) for name in names), "no half of a batch"


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / {place} rw,relatime shared:2 - nfs4 server:/runs rw,vers=4.2,hard,{option}
"""


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("option", "code"), [("nocto", 7), ("noac", 0)], ids=["nocto", "another option"]
)
def test_a_mount_with_nocto_is_refused(ctl: Ctl, option: str, code: int) -> None:
    """The kernel's table is what decides; no NFS is mounted here, so the table is laid over."""
    table = ctl.folder / "mountinfo"
    table.write_text(MOUNTS.format(place=ctl.runs, option=option))
    # `exec` keeps the pid, so the command sees what is laid over its shell's.
    script = f"mount --bind {shlex.quote(str(table))} /proc/$$/mountinfo"
    before = picture(ctl.folder)
    done = inside(ctl, script, "start", "--root", str(ctl.runs / "run"), "--fn", ECHO, "--dry-run")
    if code:
        one_sentence(
            done, code, f"lies on {ctl.runs}, which is mounted with nocto.*mount it without"
        )
        again = inside(ctl, script, "start", "--root", str(ctl.runs / "run"), "--fn", ECHO)
        one_sentence(again, code, "mounted with nocto")
    assert done.returncode == code, done.stderr
    assert picture(ctl.folder) == before
    assert with_environ(ctl.entry) == []


@NEEDS_ROOT
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize(
    ("verb", "code"), [("start", 4), ("status", 4), ("stop", 4), ("watch", 4), ("submit", 4)]
)
def test_a_root_that_may_not_be_read(ctl: Ctl, verb: str, code: int) -> None:
    root = lay(ctl.runs / "unreadable")
    (ctl.folder / "tasks.jsonl").write_text("1\n")
    more = {"start": ("--fn", ECHO), "submit": ("--tasks", "tasks.jsonl"), "watch": ("--once",)}
    before = picture(root)
    root.chmod(0)
    try:
        # Without these even root is bound by modes.
        argv = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        done = subprocess.run(
            [*argv, sys.executable, "-m", "ctl", verb, "--root", str(root), *more.get(verb, ())],
            capture_output=True, text=True, env=ctl.env, cwd=ctl.folder, timeout=240, check=False,
        )  # fmt: skip
    finally:
        root.chmod(0o700)
    one_sentence(done, code, f"{root}.*(Permission denied|not writable|must let you)")
    assert picture(root) == before
    assert with_environ(ctl.entry) == []


@NEEDS_ROOT
def test_a_stop_on_a_full_disk_still_ends_the_workers(ctl: Ctl) -> None:
    disk = ctl.folder / "disk"
    quoted, python = shlex.quote(str(disk)), shlex.quote(sys.executable)
    start = f"{python} -m ctl start --root {quoted}/run --fn {ECHO}"
    fill = f"! cat /dev/zero >{quoted}/filler 2>/dev/null"
    mount = f"mkdir -p {quoted} && mount -t tmpfs -o size=512k tmpfs {quoted}"
    script = f"{mount} && {start} >/dev/null && {fill}"
    done = inside(ctl, script, "stop", "--root", f"{disk}/run")
    assert done.returncode == 0, done.stderr
    assert "stopped host=localhost" in done.stdout
    assert re.search(r"warning: host localhost: cannot write .*localhost\.stop.*space", done.stderr)
    assert "Traceback" not in done.stderr
    assert with_environ(ctl.entry) == []


@NEEDS_ROOT
def test_status_says_that_the_disk_is_full_and_does_not_call_a_run_ended(ctl: Ctl) -> None:
    disk = ctl.folder / "disk"
    quoted, python = shlex.quote(str(disk)), f"{shlex.quote(sys.executable)} -m ctl"
    look = f"{python} status --root {quoted}/run --heartbeat-stale 3 --json"
    script = [
        f"mkdir -p {quoted} && mount -t tmpfs -o size=512k tmpfs {quoted}",
        f"{python} start --root {quoted}/run --fn {ECHO} >/dev/null",
        f"! cat /dev/zero >{quoted}/filler 2>/dev/null",
        f"until {look} >full 2>warned; [ $? = 4 ]; do sleep 0.2; done; rm {quoted}/filler",
        f"until {look} >room 2>silent; do sleep 0.2; done; cp {quoted}/run/ctl/localhost.log log",
    ]
    done = inside(ctl, " && ".join(script), "stop", "--root", f"{disk}/run")
    assert "stopped host=localhost" in done.stdout, done.stderr
    told = {name: (ctl.folder / name).read_text() for name in ("full", "warned", "room", "silent")}
    full, room = json.loads(told["full"]), json.loads(told["room"])
    assert (full["state"], room["state"]) == ("unknown", "running")
    assert full["storage_refuses"].startswith(
        f"cannot write to {disk}/run: No space left on device"
    )
    assert full["storage_refuses"] in told["warned"] and told["warned"].count("\n") == 1
    assert (room["storage_refuses"], told["silent"]) == (None, "")
    again = r"the heartbeat is written again; for \d+ s it was not: .*No space left on device"
    assert re.search(again, (ctl.folder / "log").read_text())
    assert with_environ(ctl.entry) == []


CHANGES = {
    "drain": ("drain", "n1", "n2"),
    "restart": ("restart", "--rolling"),
    "restart-host": ("restart-host", "n1"),
    "scale in": ("scale", "--add", "n3"),
    "scale out": ("scale", "--remove", "n2"),
    "cancel": ("cancel", "sleepy"),
}


@NEEDS_ROOT
def test_a_full_disk_keeps_a_run_from_being_changed_and_loses_nothing(ctl: Ctl) -> None:
    disk = ctl.folder / "disk"
    quoted, python = shlex.quote(str(disk)), f"{shlex.quote(sys.executable)} -m ctl"
    (ctl.folder / "tasks.jsonl").write_text('{"id": "sleepy", "args": [60]}\n')
    sleep = ECHO.replace(":echo", ":sleep")
    run = f"--root {quoted}/run"
    tell = f"cat {quoted}/run/ctl/launch_meta.json; ls {quoted}/run/ctl {quoted}/run/ctl/cancel"
    script = [
        f"mkdir -p {quoted} && mount -t tmpfs -o size=1m tmpfs {quoted}",
        f"{python} start {run} --hosts n1,n2 --fn {sleep} >/dev/null",
        f"{python} submit {run} --tasks tasks.jsonl",
        f"! cat /dev/zero >{quoted}/filler 2>/dev/null",
        f"({tell}) >before",
    ]
    for name, (verb, *more) in CHANGES.items():
        call = f"{python} {verb} {run} {' '.join(more)}"
        script.append(f"{{ {call} >'{name}.out' 2>&1; echo $? >'{name}.rc'; }}")
    script.append(f"({tell}) >after")
    stop = ("stop", "--root", f"{disk}/run", "--grace", "0", "--kill-after", "9")
    done = inside(ctl, " && ".join(script), *stop)
    assert "stopped host=n1" in done.stdout, done.stderr
    for name in CHANGES:
        said = (ctl.folder / f"{name}.out").read_text()
        assert re.fullmatch(r"ctl: [^\n]*No space left on device[^\n]*space[^\n]*\n", said), name
        assert (ctl.folder / f"{name}.rc").read_text() == "7\n", name
    assert (ctl.folder / "after").read_text() == (ctl.folder / "before").read_text()
    assert with_environ(ctl.entry) == []


@NEEDS_ROOT
def test_a_stop_on_a_read_only_mount_still_ends_the_workers(ctl: Ctl) -> None:
    ctl.start(ctl.runs / "run")
    runs = shlex.quote(str(ctl.runs))
    script = f"mount --bind {runs} {runs} && mount -o remount,ro,bind {runs}"
    done = inside(ctl, script, "stop", "--root", str(ctl.runs / "run"))
    assert done.returncode == 0, done.stderr
    assert "stopped host=localhost" in done.stdout
    assert "read-only" in done.stderr and "Traceback" not in done.stderr
    assert with_environ(ctl.entry) == []


def test_a_fleet_that_runs_is_started_though_nobody_can_note_which_is_current(ctl: Ctl) -> None:
    (ctl.ws / "tmp" / "shardfleet-current.json" / "in the way").mkdir(parents=True)
    root = ctl.runs / "run"
    done = ctl("start", "--root", str(root), "--fn", ECHO)
    assert done.returncode == 0, done.stderr
    assert re.search(f"warning: cannot write .*current.json.*--root {root}", done.stderr)
    assert ctl("stop", "--root", str(root)).returncode == 0
