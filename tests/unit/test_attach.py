"""Who may join a run by itself: refusals as a table, shards, tokens, and when a worker leaves."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from ctl import roots
from ctl.cli import main
from fsworker.attach import entry, process, rootside
from fsworker.attach.entry import Wish
from fsworker.cli import cli
from fsworker.errors import Busy, FleetError, Refused, UsageError
from fsworker.identity import Place
from fsworker.life import hostlock, lifefiles, wrapper
from fsworker.loop.leaving import FINISHED, Leaving
from fsworker.loop.options import Options
from fsworker.protocol import layout, membership
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.layout import members as names
from fsworker.protocol.records.member import JoinToken, Member, digest, new_token, with_members
from fsworker.protocol.records.run import (
    HostIdentity,
    Identity,
    LaunchMeta,
    Manifest,
    WorkerSpec,
)
from tests.support.runs import beat, make_run

pytestmark = pytest.mark.unit

PUBLIC, SECRET = "0" * 12, "the secret"
TOKEN = f"{PUBLIC}.{SECRET}"
LIFE = "c0ffee000001"
RECORD = JoinToken(PUBLIC, digest(SECRET), labels=("gpu",))
MANIFEST = Manifest("r1", "m.f", 3, (WorkerSpec("n1", 0),))
META = LaunchMeta("/r", "r1", MANIFEST.workers, 3, "m.f", may_attach=("guest",))


@pytest.mark.parametrize(
    ("wish", "record", "words"),
    [
        (Wish("stranger"), None, "may not attach to this run: give --token"),
        (Wish("n1"), None, "the controller of this run starts"),
        (Wish("N1", token=TOKEN), RECORD, "the controller of this run starts"),
        (Wish("x", token="no dot"), RECORD, "not of the form ID.SECRET"),
        (Wish("x", token=f"{PUBLIC}."), RECORD, "not of the form ID.SECRET"),
        (Wish("x", token=TOKEN), None, "is not known here"),
        (Wish("x", token=f"{PUBLIC}.guess"), RECORD, "is not known here"),
        (Wish("x", token=TOKEN), JoinToken(PUBLIC, digest(SECRET), expires_at=99.0), "expired"),
        (Wish("x", token=TOKEN), JoinToken(PUBLIC, digest(SECRET), ("y",)), "is not for 'x'"),
        (Wish("x", token=TOKEN), JoinToken(PUBLIC, digest(SECRET), (), ("a\n",)), "cannot be: '"),
    ],
)
def test_refusals(wish: Wish, record: JoinToken | None, words: str) -> None:
    with pytest.raises(Refused) as caught:
        entry.check_name(wish, META)
        entry.check_token(wish, record, 99.0)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("wish", "record"),
    [
        (Wish("Guest"), None),
        (Wish("x", token=f" {TOKEN}\n"), RECORD),
        (Wish("x", token=TOKEN), JoinToken(PUBLIC, digest(SECRET), ("X",), expires_at=99.5)),
    ],
)
def test_who_may_join(wish: Wish, record: JoinToken | None) -> None:
    entry.check_name(wish, META)
    if wish.token:
        assert record and entry.check_token(wish, record, 99.0) is record


def damage(*files: str) -> Callable[[Path], object]:
    return lambda root: [(root / name).write_text("{") for name in files]


def newer(root: Path) -> None:
    text = (root / "manifest.json").read_text()
    (root / "manifest.json").write_text(text.replace('"1.0"', '"9.0"'))


JOBS_ALONE = ("--parallel", "0")
"""No function has to be imported for these."""
REFUSALS: list[tuple[int, str, tuple[str, ...], Callable[[Path], object] | None]] = [
    (2, "--root is empty", ("--root", ""), None),
    (2, "manifest.json is a file: name the folder", ("--root", "{root}/manifest.json"), None),
    (2, "nothing to do", ("--parallel", "0", "--job-slots", "0"), None),
    (2, "--name '' is no host name", ("--name", ""), None),
    (2, "--name 'a/b' is no host name", ("--name", "a/b", "--token", TOKEN), None),
    (2, "no host name", ("--name", "a\nb"), None),
    (2, "no host name", ("--name", "(ctl)"), None),
    (2, "100 at most", ("--name", "x" * 300), None),
    (2, "--shard 7 does not exist: run r1 has shards 0 to 0", ("--shard", "7"), None),
    (2, "--python /no/such is no program", ("--python", "/no/such"), None),
    (5, "'x' may not attach to this run", ("--name", "x"), None),
    (5, "'N1' is a host that the controller", ("--name", "N1"), None),
    (5, f"token {PUBLIC} is not known here", ("--token", TOKEN), None),
    (5, "this machine cannot serve a.b: ", (), None),
    (5, "everybody can write to its folder", (), lambda root: root.chmod(0o707)),
    (5, "guest.stop tells every worker called 'guest' to stop: remove it", JOBS_ALONE,
     lambda root: (root / "ctl/guest.stop").touch()),
    (8, "{root}/manifest.json has format version 9.0", (), newer),
    (8, "{root}/manifest.json is not valid JSON", (), damage("manifest.json")),
    (8, "{root}/ctl/launch_meta.json is not valid JSON", (), damage("ctl/launch_meta.json")),
    (8, "{root}/ctl/guest.identity.json is not valid", (), damage("ctl/guest.identity.json")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "words", "args", "prepare"), REFUSALS)
def test_each_refusal_has_its_exit_code_and_its_sentence(
    tmp_path: Path,
    code: int,
    words: str,
    args: tuple[str, ...],
    prepare: Callable[[Path], object] | None,
) -> None:
    make_run(tmp_path, may_attach=("guest",))
    if prepare:
        prepare(tmp_path)
    argv = [word.replace("{root}", str(tmp_path)) for word in args]
    with pytest.raises(FleetError) as caught:
        cli.main(["attach", "--root", str(tmp_path), "--name", "guest", *argv],
                 standalone_mode=False)  # fmt: skip
    assert caught.value.exit_code == code
    assert words.replace("{root}", str(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value) and SECRET not in str(caught.value)
    assert not [n for n in os.listdir(tmp_path / "ctl") if "member" in n or "launch-" in n]


def test_a_worker_that_lives_and_is_silent_keeps_its_name_and_its_record(tmp_path: Path) -> None:
    run = make_run(tmp_path, may_attach=("guest",))
    rootside.appear(run.store, Member("guest", 1, 0))
    lives = pytest.raises(Busy, match="'guest' is in use: its worker on this machine lives")
    with hostlock.acquire(run.root, "r1", "guest"), lives:
        rootside.lock(run.store, "r1", "guest", 0.05)
    rootside.lock(run.store, "r1", "guest", 0.05).close()
    assert membership.read_members(run.store) == (Member("guest", 1, 0),)


def test_who_is_told_to_stop_while_it_attaches_stays_away(tmp_path: Path) -> None:
    """Its last life was killed, so the stop names that one's launch."""
    store = make_run(tmp_path).store
    assert lifefiles.stop_intent(store, "x") is None
    store.publish(layout.host_file("x", "stop"), b"1\n")
    with pytest.raises(rootside.Stopped, match="told to stop"):
        rootside.appear(store, Member("x", 2, 0), None)
    # One that begins after that was told to by somebody who knows.
    rootside.appear(store, Member("x", 2, 0), lifefiles.stop_intent(store, "x"))
    store.publish(layout.host_file("x", "stop"), b"2\n")
    with pytest.raises(rootside.Stopped):
        rootside.appear(store, Member("x", 3, 0), b"1\n")


def test_attaching_ends_with_0_where_it_was_told_to_stop_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_run(tmp_path, may_attach=("guest",)).store
    stop = layout.host_file("guest", "stop")
    monkeypatch.setattr(rootside, "check_silent", lambda *_: store.publish(stop, b"1\n"))
    # Of parallel 0: it serves no function, so none has to be there.
    assert process.attach(process.Options(str(tmp_path), Wish("guest", parallel=0))) == 0
    assert "'guest' was told to stop while it attached" in capsys.readouterr().err
    assert membership.read_members(store) == ()


@pytest.mark.parametrize("there", [None, b"1\n"])
def test_a_stop_that_came_during_a_try_that_failed_is_none_that_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bytes | None
) -> None:
    """It names launch 2, which was killed; this is launch 3, and storage does not answer once."""
    store = make_run(tmp_path, may_attach=("guest",)).store
    stop, tries = layout.host_file("guest", "stop"), []

    def told_amid_a_failure(*_: object) -> None:
        tries.append(1)
        if len(tries) == 1:
            store.publish(stop, b"2\n")
            raise OSError(errno.ESTALE, "Stale file handle")

    if there is not None:
        store.publish(stop, there)
    monkeypatch.setattr(rootside, "last_launch", lambda *_: 2)
    monkeypatch.setattr(rootside, "check_silent", told_amid_a_failure)
    monkeypatch.setattr(process, "FIRST_PAUSE", 0.0)
    with pytest.raises(rootside.Stopped):
        process._knock(store, process.Options(str(tmp_path), Wish("guest", parallel=0)))
    assert len(tries) == 2 and membership.read_members(store) == ()


def test_a_stop_of_an_earlier_launch_keeps_nobody_away_who_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_run(tmp_path, may_attach=("guest",)).store
    store.publish(layout.host_file("guest", "stop"), b"1\n")
    failures = iter([OSError(errno.ESTALE, "Stale file handle"), None])

    def fails_once(*_: object) -> None:
        if (error := next(failures)) is not None:
            raise error

    monkeypatch.setattr(rootside, "last_launch", lambda *_: 1)
    monkeypatch.setattr(rootside, "check_silent", fails_once)
    monkeypatch.setattr(process, "FIRST_PAUSE", 0.0)
    wish = Wish("guest", parallel=0)
    member, _, lock = process._knock(store, process.Options(str(tmp_path), wish))
    lock.close()
    assert member.launch == 2 and [m.host for m in membership.read_members(store)] == ["guest"]
    hostlock.acquire(str(tmp_path), "r1", "guest", 0.0).close()


def test_of_two_machines_that_attach_under_one_name_at_once_one_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rootside.appear(run.store, Member("x", 1, 0))
    with pytest.raises(Busy, match="another machine attaches"):
        rootside.appear(run.store, Member("x", 1, 0))
    rootside.vanish(run.store, Member("x", 1, 0))
    assert not [n for n in os.listdir(tmp_path / "ctl") if n.startswith("x.")]
    rootside.appear(run.store, Member("x", 1, 0))
    assert rootside.last_launch(run.store, "x") == 1


@pytest.mark.parametrize(
    ("boot", "requeued", "deaths"), [("", False, 1), ("", True, 0), ("other", False, 0)]
)
def test_a_death_is_charged_only_where_it_is_proven(
    tmp_path: Path, boot: str, requeued: bool, deaths: int
) -> None:
    run = make_run(tmp_path)
    (tmp_path / "inbox" / "0").mkdir()
    here = Place.here("x")
    worker = Identity("x", boot or here.boot_id, here.pid_ns, 4711, 1)
    lifefiles.publish(run.store, HostIdentity("x", 1, worker, worker, LIFE))
    token = Token(layout.batch_id("s", LIFE, 0), 0, 1)
    for host in ("x", "y"):
        owner = layout.Owner(host, LIFE)
        run.store.mkdir(owner.folder)
        run.store.put(layout.claim_path(owner, token), b"")
    rootside.take_back(run.store, "x", requeued=requeued)
    assert os.listdir(tmp_path / "claims") == [f"y~{LIFE}"]
    (name,) = os.listdir(tmp_path / "inbox" / "0")
    assert layout.parse_inbox_name(0, name) == Token(token.batch, 0, 1, deaths)


def test_a_name_is_granted_as_it_was_admitted() -> None:
    assert entry.spelled(Wish("GUEST"), META, (), None) == "guest"
    assert entry.spelled(Wish("x"), META, (Member("X", 1, 0),), RECORD) == "X"
    named = JoinToken(PUBLIC, digest(SECRET), ("Y",))
    assert entry.spelled(Wish("y"), META, (), named) == "Y"
    assert entry.spelled(Wish("y"), META, (), RECORD) == "y"


def test_what_a_worker_refused_for_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert rootside.refusal(run.store, "x") is None
    beat(tmp_path, name="x", refused="no such thing")
    assert rootside.refusal(run.store, "x") == "no such thing"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--labels", "\udcff\udcfe"), "cannot be a label"),
        (("--labels", "ok,a\nb"), "cannot be a label"),
        (("--labels", "x" * 200), "has more than 100 characters"),
        (("--cpus", "99999999999999999999"), "is not in the range 0<=x<=1000000"),
        (("--ram-mb", "99999999999999999999"), "is not in the range"),
    ],
)
def test_values_that_no_worker_can_offer_are_refused(
    tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    make_run(tmp_path, may_attach=("guest",))
    with pytest.raises(click.BadParameter, match=words) as caught:
        cli.main(["attach", "--root", str(tmp_path), "--name", "guest", *args],
                 standalone_mode=False)  # fmt: skip
    assert caught.value.exit_code == 2 and not (tmp_path / "ctl/guest.member.json").exists()


def test_large_numbers_reach_the_worker_as_they_are() -> None:
    options = process.Options("/r", Wish("x"), cpus=1_000_000, memory_mb=2_345_678, grace=2e6)
    argv = process._wrapper_options(options, Member("x", 1, 0)).argv
    said = dict(pairwise(argv))
    assert (said["--cpus"], said["--ram-mb"]) == ("1000000", "2345678")


def test_a_worker_whose_bundle_is_gone_is_tried_until_it_is_back(tmp_path: Path) -> None:
    make_run(tmp_path, may_attach=("guest",))
    bundle, told = tmp_path / "x.pyz", list[str]()
    options = process._wrapper_options(process.Options(str(tmp_path), Wish("guest")),
                                       Member("guest", 1, 0))  # fmt: skip
    assert options.program is None  # nothing is looked for where the package is installed
    options = replace(options, program=str(bundle), tell=told.append)
    with hostlock.acquire(str(tmp_path), "r1", "guest", 0.0) as lock:
        wrapped = wrapper.Wrapper(options, "r1", lock)
        assert wrapped._start_life() is None and wrapped._gone()
        (sentence,) = told
        assert f"{bundle} is gone" in sentence
        bundle.touch()
        assert not wrapped._gone()


def test_a_member_gets_the_emptiest_shard_a_new_launch_and_granted_labels() -> None:
    others = (Member("a", 4, 1), Member("x", 7, 2))
    wish = Wish("x", 2, ("cpu", "gpu"))
    found = entry.join(wish, MANIFEST, META, others, RECORD, last_launch=9)
    assert found == Member("x", 10, 2, 2, ("cpu", "gpu"), PUBLIC)
    assert entry.join(Wish("x"), MANIFEST, META, others, None, 0).launch == 8
    assert entry.join(Wish("y"), MANIFEST, META, (), None, 0).shard == 1
    with pytest.raises(UsageError, match="--shard 3 does not exist"):
        entry.join(Wish("x", shard=3), MANIFEST, META, (), None, 0)


def test_a_secret_is_not_kept() -> None:
    public, secret = new_token()
    record = JoinToken(public, digest(secret))
    assert secret.encode() not in record.to_json()
    assert record.opens_with(secret) and not record.opens_with(secret + "x")
    assert JoinToken.from_json(record.to_json(), "t") == record


@pytest.mark.parametrize("host", ["n1", "watch", "x.wrap", "ü b", "a.member"])
def test_names_of_members_are_found_again(host: str) -> None:
    name = names.member_path(host).rpartition("/")[2]
    assert names.parse_member_name(name) == host


@pytest.mark.parametrize("name", ["n1.json", ".member.json", "n%1.member.json", "a b.member.json"])
def test_what_is_no_members_record(name: str) -> None:
    assert names.parse_member_name(name) is None
    assert names.parse_token_name(name) is None


def test_everybody_sees_members_and_the_controllers_word_is_left_alone() -> None:
    seen = with_members(META, [Member("x", 3, 2, 5), Member("n1", 9, 1)])
    assert [(w.host, w.shard, w.concurrency) for w in seen.workers][1:] == [("x", 2, 5)]
    assert (seen.launches["x"], seen.attached) == (3, ("x",))
    assert with_members(META, []) is META


def test_a_run_with_a_member_in_status_and_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, "n1")
    rootside.appear(run.store, Member("x", 2, 0, 1))
    beat(tmp_path)
    beat(tmp_path, name="x", launch=2)
    run = roots.open_run(run.root)
    assert run.hosts == ["n1", "x"] and run.meta and len(run.meta.workers) == 1
    assert main(["status", "--root", run.root, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(h["host"], h["state"]) for h in told["hosts"]] == [("n1", "ready"), ("x", "ready")]
    rootside.vanish(run.store, Member("x", 1, 0))
    assert membership.read_members(run.store), "a later start's record stays"
    rootside.vanish(run.store, Member("x", 2, 0))
    assert not membership.read_members(run.store)
    assert not (tmp_path / layout.status_path("x")).exists()


def test_damaged_records_are_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name, data in (("a", b"{"), ("b", Member("c", 1, 0).to_json()), ("d", b"")):
        (tmp_path / names.member_path(name)).write_bytes(data)
    assert membership.read_members(run.store) == ()
    assert membership.read_token(run.store, "../../manifest") is None


def test_a_name_under_which_somebody_beats_is_taken(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    beat(tmp_path, name="x", seq=5)
    over = threading.Event()

    def live() -> None:
        seq = 5
        while not over.wait(0.05):
            seq += 1
            beat(tmp_path, name="x", seq=seq)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(Busy, match="'x' is in use: pid 4711"):
            rootside.check_silent(run.store, "x", watch_for=30.0)
    finally:
        over.set()
        thread.join()


def test_silence_and_a_goodbye_leave_a_name_free(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rootside.check_silent(run.store, "x")
    beat(tmp_path, name="x", seq=5)
    rootside.check_silent(run.store, "x", watch_for=0.2)
    beat(tmp_path, name="x", stopped=True)
    begun = time.monotonic()
    rootside.check_silent(run.store, "x", watch_for=600.0)
    assert time.monotonic() - begun < 100


def leaving(**options: Any) -> Leaving:
    return Leaving(Options("/r", 0, "h", 1, **options))


def test_a_worker_leaves_when_it_was_idle_for_long_enough_and_says_so_once() -> None:
    one = leaving(max_idle=10.0)
    steps = [(0, False, True), (5, True, True), (12, True, False), (13, True, True)]
    assert not any(one.due(*step) for step in steps)
    assert not one.due(22.9, True, True) and one.code == 0
    assert one.due(23.1, True, True) and one.code == FINISHED
    assert not one.due(99.0, True, True)


def test_how_fast_a_worker_ends_by_what_it_hears() -> None:
    term, gentle = signal.SIGTERM, signal.SIGUSR1
    plain, hasty = leaving(), leaving(term_grace=9.0)
    assert [plain.told(s) for s in (gentle, term, gentle, term)] == [
        (None, False), (None, False), (None, False), (0.0, True)
    ]  # fmt: skip
    assert [hasty.told(s) for s in (gentle, term, term)] == [
        (None, False),
        (9.0, True),
        (0.0, True),
    ]
    assert leaving(term_grace=9.0).told(signal.SIGINT) == (None, False)


def test_a_worker_that_runs_once_leaves_after_its_first_work() -> None:
    one = leaving(once=True)
    assert not any(one.due(t, True, True) for t in range(1000))
    assert not one.due(1000.0, True, False)
    assert one.due(1001.0, True, True) and one.code == FINISHED
    assert not any(leaving().due(float(t), True, True) for t in range(0, 10**6, 10**5))


def test_tokens_are_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    where = ["--root", run.root]
    args = ["--name", "y[1-2]", "--labels", "gpu, big", "--expires", "1h"]
    assert main(["token", "create", *args, *where]) == 0
    token = capsys.readouterr().out.strip()
    public, secret = entry.split(token)
    record = membership.read_token(Store(run.root), public)
    assert record and record.names == ("y1", "y2") and record.labels == ("gpu", "big")
    assert entry.check_token(Wish("y2", token=token), record, time.time())
    assert main(["token", "list", *where, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["tokens"]
    assert (told["id"], told["expired"], told["members"]) == (public, False, [])
    assert secret not in json.dumps(told)
    assert main(["token", "revoke", token, *where]) == 0
    assert membership.read_token(Store(run.root), public) is None
    assert main(["token", "revoke", public, *where]) == 3
    assert main(["token", "revoke", "../../x", *where]) == 2
    assert "'../../x' is no id of a token" in capsys.readouterr().err
    assert main(["token", "create", "--name", "a[", *where]) == 2
    assert main(["token", "create", "--labels", "x" * 200, *where]) == 2
    assert "has more than 100 characters" in capsys.readouterr().err
    assert len(os.listdir(Store(run.root).path("ctl/tokens"))) == 0
