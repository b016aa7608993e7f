"""Which functions a run serves beside those that it names: those that a pattern admits.

A pattern is the dotted name of one function, or of a package or module with `.*` behind it, which
stands for every function that is defined below. Both the name by which a task calls a function and
the place where that function is defined must match: a module that is admitted has imported others,
and `package.module.os.system` must not be a way to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from fsworker.errors import UsageError

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PATTERN = re.compile(rf"{_DOTTED}(?:[.:]\*|[.:][^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_NAME = re.compile(rf"{_DOTTED}\.[^\W\d]\w*")


def checked(patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns, each once. UsageError for one that is none."""
    found = []
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern.strip()):
            raise UsageError(
                f"--allow {pattern!r} is neither package.* nor package.module:function"
            )
        found.append(pattern.strip())
    return tuple(dict.fromkeys(found))


def admits(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the patterns matches a function's name, dots throughout."""
    return bool(_NAME.fullmatch(name)) and any(
        _matches(p.replace(":", "."), name) for p in patterns
    )


def home_of(function: Any) -> str | None:
    """The dotted name of the place where a function is defined; None when it does not say."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    return f"{module}.{name}"


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith(".*") else name == pattern
