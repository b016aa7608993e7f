"""Names of functions: both spellings, and one clear sentence for everything that cannot be used."""

from __future__ import annotations

import os.path
import sys
from pathlib import Path

import pytest

from fsworker import functions
from fsworker.errors import Refused

pytestmark = pytest.mark.unit


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shardfleet_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["os.path:join", "os.path.join", " os.path:join\n"])
def test_both_spellings_name_the_same(name: str) -> None:
    assert functions.resolve(name) is os.path.join
    assert functions.load([name]) == {"os.path.join": os.path.join}


def test_attributes_of_classes_are_found(package: Path) -> None:
    (package / "grader.py").write_text(
        "class Grader:\n    @staticmethod\n    def score(x): return x + 1\n"
        "async def later(x): return x\n"
    )
    for name in ("shardfleet_pkg.grader:Grader.score", "shardfleet_pkg.grader.Grader.score"):
        assert functions.resolve(name)(1) == 2
    assert callable(functions.resolve("shardfleet_pkg.grader:later"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "not of the form"),
        ("join", "not of the form"),
        ("os.path:", "not of the form"),
        (":join", "not of the form"),
        ("os:path:join", "not of the form"),
        ("../evil:f", "not of the form"),
        ("os.path:join()", "not of the form"),
        ("no_such_package.module:f", "there is no module 'no_such_package'"),
        ("no_such_package.module.f", "there is no module 'no_such_package'"),
        ("os.nowhere:f", "there is no module 'os.nowhere'"),
        ("os.path:nothing", "defines no 'nothing'"),
        ("os.path.nothing", "defines no 'nothing'"),
        ("os.path:sep", "it is a str, which cannot be called"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        functions.resolve(name)
    assert words in str(caught.value)
    assert repr(name) in str(caught.value)
    assert "PYTHONPATH" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import sys; sys.exit(4)", "SystemExit: 4"),
        ("import not_installed_here", "needs 'not_installed_here', which is missing"),
        ("def f(:", "SyntaxError"),
    ],
)
@pytest.mark.parametrize("spelling", ["shardfleet_pkg.bad:f", "shardfleet_pkg.bad.f"])
def test_what_fails_at_import_is_refused_with_its_cause(
    package: Path, code: str, words: str, spelling: str
) -> None:
    (package / "bad.py").write_text(code + "\n")
    with pytest.raises(Refused) as caught:
        functions.resolve(spelling)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
