"""What may lie in an upload's place: it stops nobody else, and is told or refused by name."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ctl.cli
from fedavg import closing
from fsworker.errors import FormatError, Refused
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from tests.support.rounds import counted, keep, make_group, refusals, swept, upload

pytestmark = pytest.mark.unit


def place(store: Store, job: str, episode: int = 1) -> Path:
    return Path(store.path(groups.upload_dir("g", episode, job)))


def pipe(folder: Path) -> None:
    (folder / "done.json").unlink()
    os.mkfifo(folder / "done.json")


def device(folder: Path) -> None:
    (folder / "done.json").unlink()
    (folder / "done.json").symlink_to("/dev/zero")


def loop(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder.name)


def endless_link(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("x" * 300)


def nothing(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_bytes(b"")


@pytest.mark.parametrize("how", [pipe, device, loop, endless_link, nothing])
def test_what_can_never_be_read_is_refused(store: Store, how: Callable[[Path], None]) -> None:
    make_group(store, "abc", quorum=2)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    how(place(store, "b"))
    assert swept(store).errors == {}
    assert refusals(store, 1) == {"b": "damaged"} and counted(store, 1) == [("a", 1), ("c", 1)]


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets nobody read below a path, as another user's mode does (who is root may read all)."""
    real = os.open

    def forbid(bad: str) -> None:
        def refusing(path: str, *args: int, **how: int) -> int:
            if bad in str(path):
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(path, *args, **how)

        monkeypatch.setattr(os, "open", refusing)

    return forbid


def test_what_may_not_be_read_is_told_and_the_others_go_on(
    store: Store, forbidden: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make_group(store, "abc", quorum=2, deadline=3600.0)
    forbidden(f"{groups.upload_dir('g', 1, 'b')}/done.json")
    upload(store, "g", "b", 1, 1.0)
    report = keep(store).report
    assert report.state == "waiting" and report.why.startswith("what b uploaded cannot be read")
    for job in "ac":
        upload(store, "g", job, 1, 1.0)
    why = keep(store).report.why
    assert "2 count, the deadline is waited for; what b uploaded cannot be read: " in why
    assert "done.json: Permission denied" in why
    assert ctl.cli.main(["rounds", "g"]) == 0
    assert "Permission denied" in capsys.readouterr().out
    federation.edit_group(store, "g", deadline=0.0)
    keep(store)
    assert counted(store, 1) == [("a", 1), ("c", 1)] and refusals(store, 1) == {}


def test_who_is_none_of_the_group_and_cannot_be_read_stops_nobody(
    store: Store, forbidden: Callable[[str], None]
) -> None:
    make_group(store, "ab")
    forbidden(groups.upload_dir("g", 1, "zzz"))
    for job in ("a", "b", "zzz"):
        upload(store, "g", job, 1, 1.0)
    assert swept(store).errors == {} and counted(store, 1) == [("a", 1), ("b", 1)]


def test_what_cannot_be_read_takes_no_place_from_who_can(
    store: Store, forbidden: Callable[[str], None]
) -> None:
    make_group(store, size=2)  # nobody has joined: places are given by name
    forbidden(f"{groups.upload_dir('g', 1, 'a')}/done.json")
    for job in "abc":
        upload(store, "g", job, 1, 1.0)
    assert swept(store).errors == {} and counted(store, 1) == [("b", 1), ("c", 1)]


@pytest.mark.parametrize("late", ["reject", "delta"])
def test_what_cannot_be_read_of_an_old_round_stops_no_new_one(
    store: Store, forbidden: Callable[[str], None], late: str
) -> None:
    make_group(store, "ab", late=late)
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    swept(store)
    folder = Path(store.path(groups.round_uploads_dir("g", 1)))
    shutil.rmtree(folder)
    folder.symlink_to(folder.name)
    upload(store, "g", "late", 2, 1.0)
    forbidden(groups.upload_dir("g", 2, "late"))
    for episode in (2, 3):
        for job in "ab":
            upload(store, "g", job, episode, 1.0)
        assert swept(store).errors == {} and counted(store, episode) == [
            ("a", episode), ("b", episode),
        ]  # fmt: skip


def test_a_base_that_is_no_digest_is_refused(store: Store) -> None:
    make_group(store, "abc", quorum=2)
    for job in "abc":
        upload(store, "g", job, 1, 1.0, **({"base": "x" * 70_000} if job == "b" else {}))
    assert swept(store).errors == {} and refusals(store, 1) == {"b": "damaged"}
    (refusal,) = GroupEye(store, "g").refusals(1).values()
    assert "field 'base'" in refusal.reason and len(refusal.reason) < 300


def test_no_plan_is_published_that_nobody_could_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    monkeypatch.setattr(closing, "RECORD_LIMIT", 500)
    error = swept(store).errors["g"]
    assert isinstance(error, Refused) and "a alone uploaded 1 files" in str(error)
    assert GroupEye(store, "g").plan(1) is None and refusals(store, 1) == {}


def test_the_file_of_another_group_refuses_no_upload(store: Store) -> None:
    make_group(store, "ab")
    for job in "ab":
        upload(store, "g", job, 1, 1.0)
    path = Path(store.path(groups.group_file("g")))
    terms = path.read_text()
    path.write_text(terms.replace('"group": "g"', '"group": "h"'))
    error = swept(store).errors["g"]
    assert isinstance(error, FormatError) and "field 'group' is 'h'" in str(error)
    assert str(path) in str(error) and refusals(store, 1) == {}
    path.write_text(terms)
    assert swept(store).errors == {} and counted(store, 1) == [("a", 1), ("b", 1)]
