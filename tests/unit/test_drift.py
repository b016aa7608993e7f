"""Who runs other code than the others, and in what: found, compared, read from a root."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ctl.doctor import drifting
from ctl.drift import onroot, words
from ctl.drift.compare import Difference, Member, changes, compare
from fsworker.inventory import software
from fsworker.loop.codenote import CodeNote
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner
from fsworker.protocol.records.code import Code
from fsworker.protocol.records.run import Heartbeat
from fsworker.slots import wire

pytestmark = pytest.mark.unit


# -- what a worker finds


def test_packages_are_what_their_folders_are_called(tmp_path: Path) -> None:
    names = (
        "numpy-2.0.1.dist-info", "Typing_Extensions-4.12.2.dist-info",
        "zope.interface-5.0.dist-info",
        "my-old-name-1.0.dist-info", "old-1.2-py3.11.egg-info", "older-0.9.egg-info",
        "packed-3.1-py3.11.egg", "numpy", "numpy-2.0.1.data", "no_version.egg-info", "x.egg-link",
    )  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    for name in names:
        (one / name).mkdir(parents=True)
    (two / "numpy-1.26.dist-info").mkdir(parents=True)
    found = software.packages(["", str(one), str(two), str(tmp_path / "none"), __file__])
    assert found == {
        "my-old-name": "1.0", "numpy": "2.0.1", "old": "1.2", "older": "0.9", "packed": "3.1",
        "typing-extensions": "4.12.2", "zope-interface": "5.0",
    }  # fmt: skip
    assert software.packages([str(two), str(one)])["numpy"] == "1.26", "the first is imported"
    assert software.digest_of(found) == software.digest_of(dict(reversed(found.items())))
    assert software.digest_of(found) != software.digest_of({**found, "numpy": "2.0.2"})


def test_they_are_those_that_python_itself_knows() -> None:
    from importlib.metadata import distributions

    known = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version
             for d in distributions()}  # fmt: skip
    assert software.packages() == known


def test_a_function_is_digested_by_the_file_that_defines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import functools\n"
        "def grade(x): return x\n"
        "@functools.wraps(grade)\n"
        "def around(x): return grade(x)\n"
        "class Grader:\n"
        "    def __call__(self, x): return x\n"
        "    @classmethod\n"
        "    def made(cls, x): return x\n"
        "grader = Grader()\n"
    )
    (tmp_path / "drift_grader.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("drift_grader")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    given = {
        "grade": module.grade, "around": module.around, "instance": module.grader,
        "method": module.Grader.made, "partial": functools.partial(module.around, 1),
        "len": len, "c": sys.intern, "json": json.loads,
    }  # fmt: skip
    found = software.sources(given)
    assert {n for n, d in found.items() if d == digest} == {
        "grade", "around", "instance", "method", "partial",
    }  # fmt: skip
    assert found["len"] is None and found["c"] is None and found["json"] not in (None, digest)
    (tmp_path / "drift_grader.py").write_text(text + "# another\n")
    assert software.source_digest(module.grade) not in (None, digest)
    (tmp_path / "drift_grader.py").unlink()
    assert software.source_digest(module.grade) is None, "gone since it was imported"


def test_the_file_beside_is_written_when_it_changes_and_no_trouble_ends_a_worker(
    tmp_path: Path,
) -> None:
    (tmp_path / "ctl").mkdir()
    store, owner = Store(str(tmp_path)), Owner("n1", "a" * 12)
    note = CodeNote(store)
    for _ in range(3):
        note.learn({"m.f": "d" * 12})
        note.tend(owner)
    assert store.calls["create"] == 1
    code: Code = Code.from_json((tmp_path / "ctl" / "n1.code.json").read_bytes(), "code")
    assert code.functions == note.fields["functions"] == {"m.f": "d" * 12}
    assert software.digest_of(code.packages) == note.fields["packages"]
    note.learn({"m.f": None})
    (tmp_path / "ctl" / "n1.code.json").unlink()
    (tmp_path / "ctl").rmdir()
    note.tend(owner)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (b"", {}), (b"\xff{", {}), (b"[1]", {}), (b'{"a": 3}', {}),
        (b'{"a": "d", "b": null}', {"a": "d", "b": None}),
    ],
)  # fmt: skip
def test_what_a_spawned_slot_says_is_read_with_distrust(said: bytes, meant: object) -> None:
    assert wire.sources_in(said) == meant


# -- who differs


def member(host: str, lived: float | None = 100.0, grade: str | None = "g1", **more: Any) -> Member:
    fields = {"release": "1.0 (c)", "python": "3.11.2", "packages": "p1", "kind": "installed"}
    return Member(host, functions={"m.grade": grade}, lived=lived, **{**fields, **more})


FOUR = [member(f"n{i}") for i in range(1, 5)]


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([], []),
        (FOUR, []),
        (FOUR[:1], []),
        ([*FOUR, Member("n9")], []),
        ([*FOUR, member("n5", packages="p2")], ["n5 differs: other packages than on 4 others"]),
        (
            [*FOUR, member("n5", python="3.12.1")],
            ["n5 differs: Python 3.12.1 against 3.11.2 on 4 others"],
        ),
        (
            [*FOUR, member("n5", release="0.9 (d)")],
            ["n5 differs: shardfleet 0.9 (d) against 1.0 (c) on 4 others"],
        ),
        ([*FOUR, member("b", packages="p9", kind="bundle")], []),
        (
            [member("n1"), member("b1", packages="x", kind="bundle"),
             member("b2", packages="y", kind="bundle", lived=1.0)],
            ["b1 differs: other packages than on b2"],
        ),
        # A rolling restart from its begin to its end.
        (
            [*FOUR, member("n5", 10.0, "g2")],
            ["n5 differs: function m.grade (newer source than on 4 others)"],
        ),
        (
            [*FOUR[:2], member("n5", 10.0, "g2"), member("n6", 30.0, "g2")],
            ["n1, n2 differ: function m.grade (older source than on 2 others)"],
        ),
        (
            [FOUR[0], member("n5", 10.0, "g2"), member("n6", 30.0, "g2")],
            ["n1 differs: function m.grade (older source than on 2 others)"],
        ),
        (
            [member("n5", 50.0, "g2"), member("n1", 90.0), member("n2", 10.0)],
            ["n5 differs: function m.grade (another source than on 2 others)"],
        ),
        (
            [*FOUR, member("n5", None, None)],
            ["n5 differs: function m.grade (another source than on 4 others)"],
        ),
        (
            [*FOUR, member("n5", packages="p2", grade="g2", lived=1000.0)],
            ["n5 differs: function m.grade (older source than on 4 others); "
             "other packages than on 4 others"],
        ),
    ],
)  # fmt: skip
def test_who_differs_and_in_what(members: list[Member], told: list[str]) -> None:
    assert words.lines(compare(members), {}) == told


def test_packages_are_named_and_so_is_what_is_missing() -> None:
    usual = {"numpy": "2.0.1", "torch": "2.4", "same": "1"}
    there = {"numpy": "1.26", "extra": "3", "same": "1", "z": "1"}
    details = {"n5": changes(there, usual)}
    assert details["n5"] == {
        "extra": ("3", None), "numpy": ("1.26", "2.0.1"), "torch": (None, "2.4"), "z": ("1", None),
    }  # fmt: skip
    found = compare([*FOUR, member("n5", packages="p2")])
    assert words.lines(found, details) == [
        "n5 differs: extra 3 against none, numpy 1.26 against 2.0.1, no torch against 2.4 "
        "and 1 package more on 4 others"
    ]


def test_many_hosts_take_few_lines() -> None:
    crowd = [member(f"a{i:02}", packages="p2") for i in range(9)]
    odd = [member(f"b{i:02}", packages=f"q{i}", python=f"3.11.{i + 3}") for i in range(9)]
    usual = [member(f"c{i:02}") for i in range(20)]
    told = words.lines(compare([*usual, *crowd, *odd]), {})
    assert len(told) == words.LINES and told[-1] == "5 hosts more differ: see --json"
    assert words.lines(compare([*usual, *crowd]), {}) == [
        "a00, a01 and 7 more differ: other packages than on 20 others"
    ]


# -- the doctor


def facts(packages: dict[str, str], grade: str | None = "g1", bundle: str | None = None) -> Any:
    return {"code": {"packages": packages, "functions": {"m.grade": grade}},
            "python": {"bundle": bundle}}  # fmt: skip


def test_the_doctor_holds_hosts_against_each_other_and_workers_against_their_host() -> None:
    same = {"numpy": "2.0.1"}
    measured = {
        "n1": facts(same), "n2": facts(same), "n3": facts({"numpy": "1.26"}, "g0"),
        "b1": facts({}, bundle="/r/x.pyz"), "no": {"python": {}},
    }  # fmt: skip
    digest = software.digest_of(same)
    running = {
        "n1": member("n1", packages=digest), "n2": member("n2", packages=digest, grade="g0"),
        "b1": member("b1", packages="other"),
    }  # fmt: skip
    found = drifting.judge(measured, running)
    told = {host: [(c.level, c.what, c.words) for c in checks] for host, checks in found.items()}
    well = ("ok", "drift", "its code and packages are those of most hosts")
    loaded = "its worker started with other code than is there now: "
    assert told == {
        "n1": [well],
        "n2": [well, ("warn", "worker", f"{loaded}function m.grade")],
        "n3": [("warn", "drift", "function m.grade (another source than on 3 others); "
                "numpy 1.26 against 2.0.1 on 2 others")],
        "b1": [well, ("warn", "worker", f"{loaded}packages")],
    }  # fmt: skip
    assert all(c.advice for checks in found.values() for c in checks if c.level == "warn")
    assert drifting.judge({"n1": facts(same)}) == {"n1": []}, "nobody to be held against"


# -- on a root


def put(root: Path, host: str, packages: dict[str, str], *, file: bool = True) -> Heartbeat:
    digest = software.digest_of(packages)
    if file:
        (root / "ctl").mkdir(exist_ok=True)
        (root / "ctl" / f"{host}.code.json").write_bytes(Code(host, "i", packages).to_json())
    code = {"packages": digest, "functions": {"m.f": "d", "bad": 3}}
    versions = {"shardfleet": "1.0", "python": "3.11.2"}
    return Heartbeat(host, 1, "i", 9, 0.0, code=code, versions=versions)


def test_status_tells_it_by_the_root_alone(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    beats = {h: put(tmp_path, h, {"numpy": "2.0.1"}) for h in ("n1", "n2", "n3")}
    assert onroot.look(store, {**beats, "n8": None}).lines == []
    assert store.calls["open"] == 0, "as long as nobody differs nothing is read"
    beats["n4"] = put(tmp_path, "n4", {"numpy": "1.26"})
    beats["n5"] = put(tmp_path, "n5", {"numpy": "1.27"}, file=False)
    found = onroot.look(store, {**beats, "n8": None})
    assert found.lines == [
        "n4 differs: numpy 1.26 against 2.0.1 on 3 others",
        "n5 differs: other packages than on 3 others",
    ]
    (told,) = found.fields()
    assert (told["what"], told["others"]) == ("packages", 3)
    assert told["packages"] == {"n4": {"numpy": ("1.26", "2.0.1")}}
    assert [h["host"] for h in told["hosts"]] == ["n4", "n5"]
    json.dumps(found.fields())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"host": 3}', b"\0" * 99])
def test_a_damaged_list_costs_the_details_and_no_more(tmp_path: Path, data: bytes) -> None:
    beats: dict[str, Heartbeat | None] = {
        h: put(tmp_path, h, {"numpy": v}) for h, v in (("n1", "2"), ("n2", "2"), ("n3", "1"))
    }
    (tmp_path / "ctl" / "n3.code.json").write_bytes(data)
    found = onroot.look(Store(str(tmp_path)), beats)
    assert found.lines == ["n3 differs: other packages than on 2 others"]
    (tmp_path / "ctl" / "n3.code.json").write_bytes(Code("n3", "i", {"numpy": "9"}).to_json())
    assert onroot.look(Store(str(tmp_path)), beats).details == {}, "a list of another life"


def test_beats_of_other_releases_and_of_workers_that_do_not_serve_say_nothing() -> None:
    plain = Heartbeat("n1", 1, "i", 1, 0.0)
    code = {"packages": "p", "functions": "nonsense"}
    assert not onroot.runs(plain)
    assert not onroot.runs(Heartbeat("n1", 1, "i", 1, 0.0, stopped=True, code=code))
    assert not onroot.runs(Heartbeat("n1", 1, "i", 1, 0.0, refused="no", code=code))
    assert onroot.member(Heartbeat("n1", 1, "i", 1, 0.0, code=code)).functions == {}
    assert Difference("python", "", "a", ("x",), ()).fields()["hosts"] == []
