"""Bundles: what is in one, that it runs on a bare Python, and which hosts run from it."""

from __future__ import annotations

import ast
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fsworker
from ctl import auditing, launching, planning
from ctl.bundle import onroot, packing
from ctl.bundle import terms as bundle_terms
from ctl.bundle.packing import Bundle
from ctl.cli import main
from ctl.doctor import measure
from ctl.doctor.checks import FAIL
from ctl.hosts import Allowed, parse
from ctl.launchers import errors, script
from ctl.planning import Wish
from ctl.roots import Run
from ctl.slurm import script as slurm_script
from ctl.slurm.terms import Book, Terms
from fsworker.digest import package_digest
from fsworker.errors import Refused
from fsworker.protocol import layout
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest
from tests.support.workers import Root

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]
BARE = (sys.executable, "-I", "-S")
"""A Python that finds nothing installed."""


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return onroot.of_this_release()


@pytest.fixture
def file(bundle: Bundle, tmp_path: Path) -> Path:
    path = tmp_path / "any name.pyz"
    path.write_bytes(bundle.data)
    return path


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(argv, env=plain, capture_output=True, text=True, check=False)


# -- what it is


def test_the_same_sources_give_the_same_bytes_in_any_process(
    bundle: Bundle, tmp_path: Path
) -> None:
    other = tmp_path / "other.pyz"
    argv = (sys.executable, "-m", "ctl", "bundle", "-o", str(other), "--json")
    done = run(*argv, PYTHONPATH=str(REPO), PYTHONHASHSEED="77", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["digest"], told["bytes"]) == (bundle.digest, len(bundle.data))
    assert other.read_bytes() == bundle.data and os.access(other, os.X_OK)


def test_it_holds_our_package_and_pure_python_with_its_licenses(bundle: Bundle) -> None:
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        names = set(archive.namelist())
    ours = {str(p.relative_to(REPO)) for p in (REPO / "fsworker").rglob("*.py")}
    assert ours - names == {"fsworker/bundle_main.py"}, "which is the first that it runs"
    assert {n.split("/")[0] for n in names} == {
        "__main__.py", "bundle.json", "fsworker", "vendor",
    }  # fmt: skip
    assert {n for n in names if not n.endswith((".py", ".pyc"))} > {"bundle.json"}
    vendored = {n.split("/")[1] for n in names if n.startswith("vendor/")}
    versions = {n: importlib.metadata.version(n) for n in ("click", "msgpack")}
    assert vendored == {*versions, *(f"{n}-{v}.dist-info" for n, v in versions.items())}
    assert sum("license" in n.lower() or "COPYING" in n for n in names) >= 2


def test_it_says_what_it_is_and_a_changed_one_is_none(bundle: Bundle) -> None:
    assert packing.check(bundle.data) == bundle.digest
    for at in (0, len(bundle.data) // 2, len(bundle.data) - 30):
        changed = bytearray(bundle.data)
        changed[at] ^= 1
        assert packing.check(bytes(changed)) is None
    assert packing.check(bundle.data[:-1]) is None and packing.check(b"") is None
    other = packing.pack({"__main__.py": b"pass\n", "a.py": b"b = 1\n"}, "1.0", "d")
    assert packing.check(other.data) == other.digest != bundle.digest


# -- on a Python without packages


def test_a_python_without_packages_runs_it(file: Path, bundle: Bundle) -> None:
    for name in ("msgpack", "click", "psutil", "filelock"):
        assert "No module named" in run(*BARE, "-c", f"import {name}").stderr
    said = run(*BARE, str(file), "--version")
    assert said.stdout == f"fsworker, version {fsworker.__version__} (bundle {bundle.digest})\n"
    for command in ("run", "attach"):
        assert run(*BARE, str(file), command, "--help").returncode == 0
    code = (
        f"import sys; sys.path.insert(0, {str(file)!r}); import fsworker, fsworker.client, msgpack;"
        "from fsworker.digest import package_digest; from fsworker.host import examine;"
        "print(package_digest(), msgpack.Packer.__module__, *examine._packages().values())"
    )
    done = run(*BARE, "-c", code)
    assert done.stdout.split() == [
        package_digest(), "msgpack.fallback",
        *(importlib.metadata.version(name) for name in ("click", "msgpack")),
    ], done.stderr  # fmt: skip


def test_what_a_host_has_installed_is_not_covered_up(file: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(file)!r}); import fsworker, click, msgpack, os;"
    code += "print(os.path.dirname(click.__file__), msgpack.Packer.__module__, fsworker.BUNDLE)"
    done = run(sys.executable, "-c", code)
    click, packer, own = done.stdout.strip().split(" ", 2)
    assert click.endswith("site-packages/click") and packer == "msgpack._cmsgpack", done.stderr
    assert own == str(file)


def test_a_relative_path_and_the_current_folder_are_as_with_an_installed_one(file: Path) -> None:
    (file.parent / "mine.py").write_text("def f(): pass\n")
    for name, code in (("mine:f", 0), ("mine:g", 1), ("not_there:f", 1)):
        argv = (sys.executable, "-S", file.name, "-m", "fsworker.host.importable", name)
        done = subprocess.run(argv, cwd=file.parent, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert bool(done.stderr) == bool(code) and "Traceback" not in done.stderr


OLD = """
import runpy, sys
sys.version_info = (3, 9, 2, "final", 0)
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_python_that_is_too_old_says_so_in_a_sentence_and_to_a_launcher(file: Path) -> None:
    source = (REPO / "fsworker" / "bundle_main.py").read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "__future__" not in source, "3.6 has no annotations in it"
    sentence = f"the bundle needs Python 3.11 or newer, and {sys.executable} is 3.9.2"
    done = run(sys.executable, "-c", OLD, str(file), "attach", "--root", "/r")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"fsworker: {sentence}: name another (--python)\n"
    request = json.dumps({"marker": "cafe", "verb": "start"})
    done = run(sys.executable, "-c", OLD, str(file), "-m", "fsworker.hostside", request)
    reader = script.ReplyReader("cafe")
    assert reader.feed(done.stdout.encode()) and reader.reply
    reply = json.loads(reader.reply)
    assert not reply["ok"] and sentence in reply["message"]


def test_payloads_are_packed_alike_in_pure_python() -> None:
    """The tests of the packing itself, with what a bundle has of msgpack."""
    argv = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    env = {**os.environ, "MSGPACK_PUREPYTHON": "1"}
    tests = [str(REPO / "tests" / "unit" / f"test_{n}.py") for n in ("packing", "segment")]
    done = subprocess.run([*argv, *tests], cwd=REPO, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


# -- which hosts run from it

HERE = "/head/python"
BUNDLED, INSTALLED = HostTerms(bundle=True), HostTerms(bundle=False)
OWN = HostTerms(python="/own", bundle=True)


@pytest.mark.parametrize(
    ("usual", "terms", "named", "python", "pythons", "some", "all_"),
    [
        (False, {}, None, HERE, {}, False, False),
        (True, {}, None, "python3", {}, True, True),
        (True, {}, "/asked", "/asked", {}, True, True),
        (False, {"a": BUNDLED}, None, HERE, {"a": "python3"}, True, False),
        (False, {"a": OWN}, None, HERE, {"a": "/own"}, True, False),
        (True, {"b": INSTALLED}, None, "python3", {"b": HERE}, True, False),
        (True, {"b": INSTALLED}, "/asked", "/asked", {"b": None}, True, False),
        (True, {"a": INSTALLED, "b": INSTALLED}, None, "python3", {"a": HERE, "b": HERE}, False,
         False),
    ],
)  # fmt: skip
def test_who_runs_from_it_and_by_which_python(
    usual: bool,
    terms: dict[str, HostTerms],
    named: str | None,
    python: str,
    pythons: dict[str, str | None],
    some: bool,
    all_: bool,
) -> None:
    choice = bundle_terms.choose(usual, terms, ["a", "b"], named, HERE)
    assert (choice.python, choice.any, choice.unbundled) == (python, some, not all_)
    assert {h: t.python for h, t in choice.terms.items()} == pythons
    # Slurm chooses hosts itself: what is usual holds.
    none = bundle_terms.choose(usual, {}, [], named, HERE)
    assert (none.any, none.unbundled) == (usual, not usual)


TOML = '[hosts."n[1-3]"]\n[hosts.n1]\nbundle = true\n'


def plan(tmp_path: Path, toml: str = TOML, **flags: Any) -> LaunchMeta:
    from ctl import config

    (tmp_path / "fleet.toml").write_text(f'launcher = "ssh"\n{toml}')
    found = config.load(str(tmp_path / "fleet.toml"), {"HOME": str(tmp_path)}, str(tmp_path))
    allowed = Allowed(parse("n1 n2 n3", "x"), "x")
    wish = Wish(hosts="n[1-3]", functions=("json:loads",), flags=flags)
    return planning.make(wish, found, allowed, "/r/run", "r").meta


def test_a_start_writes_down_what_restarts_need(tmp_path: Path, bundle: Bundle) -> None:
    path = f"bundle/fsworker-{bundle.digest}.pyz"
    one = plan(tmp_path)
    assert LaunchMeta.from_json(one.to_json(), "meta") == one
    assert (one.bundle, one.from_bundle, one.python) == (path, False, sys.executable)
    assert str(REPO) in one.pythonpath, "for those that run the checkout"
    launcher: Any = launching.open_for(one)
    assert [launcher.bundle(h) for h in ("n1", "n2", "new")] == [f"/r/run/{path}", None, None]
    assert [launching.request_for(one, h).python for h in ("n1", "n2")] == [
        "python3", sys.executable,
    ]  # fmt: skip
    every = plan(tmp_path, bundle=True)
    assert (every.bundle, every.python, every.pythonpath) == (path, "python3", ())
    assert launching.open_for(every).bundle("new") == f"/r/run/{path}"  # type: ignore[attr-defined]
    none = plan(tmp_path, bundle=False)
    assert (none.bundle, none.host_terms) == (None, {})
    for toml, words in (("bundle = 3\n", "bundle"), ("[defaults]\nbundle = 1\n", "true or false")):
        with pytest.raises(Exception, match=words):
            plan(tmp_path, toml)


def test_hosts_are_asked_from_the_bundle_and_so_are_jobs_of_slurm(tmp_path: Path) -> None:
    text = script.build({"marker": "m"}, python="python3", bundle="/a b/x.pyz").decode()
    assert "exec python3 '/a b/x.pyz' -m fsworker.hostside " in text
    meta = replace(plan(tmp_path, bundle=True), python="python3")
    job = slurm_script.build(meta, Book(1, Terms()), "id.secret", [], 0, 30.0).decode()
    assert f"exec python3 /r/run/{meta.bundle} attach --root /r/run " in job


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "noise", "changed"])
def test_a_bundle_that_cannot_be_run_is_named_with_what_helps(
    tmp_path: Path, bundle: Bundle, how: str
) -> None:
    path = tmp_path / "my run/bundle/x.pyz"
    path.parent.mkdir(parents=True)
    half = len(bundle.data) // 2
    changed = bytearray(bundle.data)
    changed[2000:half:50] = b"x" * len(range(2000, half, 50))
    content: dict[str, bytes] = {"empty": b"", "cut": bundle.data[:half], "noise": b"\x03\xe2"}
    content["changed"] = bytes(changed)
    if how != "missing":
        path.write_bytes(content[how])
    done = run(*BARE, str(path), "-m", "fsworker.hostside", "{}")
    reader = script.ReplyReader("m")
    reader.feed(f"<HELLO m>\n{done.stderr}".encode())
    error = errors.no_reply("n1", reader, done.returncode, "python3", str(path))
    advice = f"ctl bundle --root '{tmp_path}/my run' of its release writes it anew"
    assert str(error).startswith(f"host n1: the bundle {path} is damaged or missing: {advice}")
    check = measure._unreached(error)
    assert (check.level, check.advice) == (FAIL, advice)


# -- on a root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "run", functions=["echo"])


def audited(root: Root, meta: LaunchMeta | None, *, quick: bool = False) -> list[tuple[str, str]]:
    manifest = Manifest.from_json((root.path / "manifest.json").read_bytes(), "manifest")
    from contextlib import nullcontext

    seen = auditing.audit_run(
        Run(str(root.path), root.store, manifest, meta),
        quick=quick,
        progress=lambda _: nullcontext(lambda _: None),
    )
    assert all("bundle/" in path for path in seen.seen.ignored)
    return [(f.kind, f.path) for f in seen.damage]


def test_it_is_written_once_and_fsck_knows_it(root: Root, tmp_path: Path, bundle: Bundle) -> None:
    meta = replace(plan(tmp_path, bundle=True), root=str(root.path))
    assert meta.bundle is not None
    assert audited(root, meta) == [("bundle", meta.bundle)], "it is missing"
    onroot.provide(root.store, meta)
    assert not onroot.ensure(root.store), "it is there already"
    (root.path / "bundle" / "notes.txt").write_text("x")
    assert audited(root, meta) == []
    path = root.path / meta.bundle
    path.write_bytes(bundle.data[:-9])
    assert (audited(root, meta, quick=True), audited(root, meta)) == ([], [("bundle", meta.bundle)])
    assert onroot.ensure(root.store) and path.read_bytes() == bundle.data
    other = root.path / layout.bundle_path("0" * 16)
    other.write_bytes(bundle.data)
    assert audited(root, meta) == [("bundle", layout.bundle_path("0" * 16))]


def test_only_a_run_that_starts_from_one_goes_on_from_another(root: Root, tmp_path: Path) -> None:
    meta = plan(tmp_path, bundle=True)
    assert onroot.renew(root.store, meta) == meta.bundle
    with pytest.raises(Refused, match="does not start from a bundle"):
        onroot.renew(root.store, replace(meta, bundle=None))


def test_hosts_can_be_examined_before_there_is_a_run(root: Root, tmp_path: Path) -> None:
    meta = replace(plan(tmp_path, bundle=True), root=str(tmp_path))
    with onroot.lent(type(root.store)(str(tmp_path)), meta) as lent:
        assert lent.bundle and (tmp_path / lent.bundle).is_file() and lent.bundle.startswith(".")
    assert not (tmp_path / lent.bundle).parent.exists()
    with onroot.lent(root.store, meta) as same:
        assert same is meta, "a run has its own"


def test_status_says_which_one_each_worker_runs_from(tmp_path: Path) -> None:
    meta = replace(plan(tmp_path, bundle=True), bundle=layout.bundle_path("a" * 16))
    beats: dict[str, Heartbeat | None] = {
        host: Heartbeat(host, 1, "i", 1, 0.0, versions={"shardfleet": "1.0", "bundle": digest * 16})
        for host, digest in (("n1", "a"), ("n2", "a"), ("n3", "b"))
    }
    told = bundle_terms.summary(meta, {**beats, "n4": None})
    assert told and told["digest"] == "a" * 16 and set(told["hosts"]) == {"n1", "n2", "n3"}
    assert list(bundle_terms.lines(told)) == [
        f"2 hosts from bundle {'a' * 16} (release 1.0)",
        f"n3 from bundle {'b' * 16} (release 1.0); starts are from {'a' * 16}",
    ]
    assert bundle_terms.summary(plan(tmp_path, bundle=False), {"n4": None}) is None
    assert list(bundle_terms.lines(None)) == []


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("-o", "x", "--root", "y"), 2, "give one of them"),
        (("-o", "not/there/x"), 2, "name a file in a folder that is there"),
        (("-o", "."), 2, "name a file in a folder that is there"),
        (("-o", "pipe"), 2, "/pipe is no regular file"),
        (("-o", "link"), 2, "/link is no regular file"),
        (("-o", "-"), 2, "-o - is no file"),
        (("--root", "not-there"), 3, "not-there"),
    ],
)
def test_bundle_says_what_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")  # stands for /dev/null, which must never be replaced
    os.symlink("pipe", "link")
    assert main(["bundle", *args]) == code
    assert words in capsys.readouterr().err
    assert sorted(os.listdir()) == ["link", "pipe"] and Path("pipe").is_fifo()
