"""Which functions a pattern admits: exactly those below it, wherever they came from."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import pytest

from fsworker import patterns
from fsworker.client.executor import TaskError
from fsworker.errors import UsageError
from fsworker.remote import task_error
from fsworker.slots.serving import Served

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("pattern", "name", "admitted"),
    [
        ("pkg.*", "pkg.f", True),
        ("pkg.*", "pkg.module.Class.method", True),
        ("pkg:*", "pkg.f", True),
        ("pkg.*", "pkg", False),
        ("pkg.*", "pkgs.f", False),
        ("pkg.*", "other.pkg.f", False),
        ("pkg.*", "pkg..f", False),
        ("pkg.*", "pkg.<locals>.f", False),
        ("pkg.module:f", "pkg.module.f", True),
        ("pkg.module.f", "pkg.module.f", True),
        ("pkg.module.f", "pkg.module.f.g", False),
        ("pkg.module.f", "pkg.module.fg", False),
    ],
)
def test_a_pattern_admits_what_is_below_it(pattern: str, name: str, admitted: bool) -> None:
    assert patterns.admits(patterns.checked([pattern]), name) is admitted


@pytest.mark.parametrize(
    "pattern", ["", "*", "pkg", "pkg.*.f", "pkg*", ".*", "pkg.module.*x", "a b.*"]
)
def test_what_is_no_pattern_is_named(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"--allow .* is neither"):
        patterns.checked([pattern])


def test_only_what_is_defined_below_a_pattern_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "patterned_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("from patterned_pkg._inner import f\n")
    (folder / "_inner.py").write_text(
        "import os, functools\ndef f(): return 1\ng = functools.partial(f)\n"
        "class C:\n    @staticmethod\n    def m(): return 2\n"
    )
    (folder / "bad.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    served = Served({"os.getpid": lambda: 3}, ("patterned_pkg.*",))
    for name, value in (("patterned_pkg:f", 1), ("patterned_pkg._inner.C.m", 2), ("os.getpid", 3)):
        function = served.get(name)
        assert function is not None and function() == value
    for name, why in (
        ("patterned_pkg._inner.os.system", "is defined in posix.system"),
        ("patterned_pkg._inner.functools.partial", "is defined in functools.partial"),
        ("patterned_pkg._inner.g", "is defined in nowhere"),
        ("patterned_pkg._inner.C.m.__globals__.get", "is defined in nowhere"),
        ("patterned_pkg.bad.f", "RuntimeError: no licence"),
        ("patterned_pkg.missing.f", "defines no 'missing'"),
        ("os.system", "is not one that the run's manifest names"),
    ):
        assert served.get(name) is None
        assert why in served.why(name)


def test_endless_refused_names_take_no_endless_memory() -> None:
    served = Served({}, ("os.*",))
    for number in range(3000):
        assert served.get(f"os.nothing{number}") is None
    assert len(served._refused) <= 1000


def test_a_remote_exception_is_caught_by_its_type_also_when_it_was_pickled() -> None:
    cause = {"type": "KeyError", "message": "'x'", "traceback": "Traceback: line 7"}
    with pytest.raises(KeyError) as caught:
        raise pickle.loads(pickle.dumps(task_error("error", cause)))
    error: Any = caught.value
    assert isinstance(error, TaskError) and str(error) == "KeyError: 'x'"
    assert (error.status, error.type, error.traceback) == ("error", "KeyError", cause["traceback"])
    assert "line 7" in str(error.__cause__)


@pytest.mark.parametrize(
    "kind", ["StopIteration", "KeyboardInterrupt", "UnicodeDecodeError", "my.E"]
)
def test_what_cannot_be_raised_here_is_a_task_error_alone(kind: str) -> None:
    assert type(task_error("error", {"type": kind, "message": "m"})) is TaskError


def test_a_partial_is_defined_nowhere() -> None:
    assert patterns.home_of(functools.partial(print)) is None
