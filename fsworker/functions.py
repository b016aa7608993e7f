"""From a function's name in the manifest to the callable, or to one sentence that says why not.

A task names no code: it carries data for a function that the manifest names. Both spellings that
people write are understood, `package.module:function` and `package.module.function`, and mean the
same. Whatever a module does when it is imported (raise, exit, lack a dependency) becomes a
`Refused` with the name, the cause and what to do, since `ctl start` shows exactly that sentence.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from fsworker.errors import Refused

Function = Callable[..., Any]

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAME = re.compile(rf"{_DOTTED}:{_DOTTED}|{_DOTTED}\.[^\W\d]\w*")


def canonical(name: str) -> str:
    """The spelling by which two names of one function are equal."""
    return name.strip().replace(":", ".")


def load(names: Iterable[str]) -> dict[str, Function]:
    """Every named function under its canonical name."""
    return {canonical(name): resolve(name) for name in names}


def resolve(name: str) -> Function:
    """The function called `name`. Raises Refused when there is none that can be called."""
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise _refusal(name, "it is not of the form package.module:function")
    module_name, colon, attributes = name.partition(":")
    if colon:
        module, rest = _import(name, module_name), attributes.split(".")
    else:
        module, rest = _import_longest(name, name.split("."))
    found = _walk(name, module, rest)
    if not callable(found):
        raise _refusal(name, f"it is a {type(found).__name__}, which cannot be called")
    return found  # type: ignore[no-any-return]  # callable() narrows Any to nothing useful


def _import_longest(name: str, parts: list[str]) -> tuple[ModuleType, list[str]]:
    """The longest prefix of `parts` that is a module, and the attributes that are left."""
    for cut in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:cut])
        try:
            return _import(name, module_name), parts[cut:]
        except _NoSuchModule as error:
            if cut == 1:
                raise _refusal(name, str(error)) from None
    raise _refusal(name, "it names no module")


def _import(name: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise _NoSuchModule(_cannot(name, f"there is no module {error.name!r}")) from None
        raise _refusal(name, f"{module_name} needs {error.name!r}, which is missing") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # what runs at import is the user's: it may even exit
        raise _refusal(name, f"importing {module_name} raised {_words(error)}") from error


def _walk(name: str, module: ModuleType, attributes: list[str]) -> Any:
    found: Any = module
    for attribute in attributes:
        try:
            found = getattr(found, attribute)
        except AttributeError:
            where = getattr(found, "__file__", None) or module.__name__
            raise _refusal(name, f"{where} defines no {attribute!r}") from None
    return found


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


def _cannot(name: str, why: str) -> str:
    return (
        f"function {name!r} cannot be used: {why}; "
        "check the name and the worker's python and PYTHONPATH"
    )


def _refusal(name: str, why: str) -> Refused:
    return Refused(why if why.startswith("function ") else _cannot(name, why))


class _NoSuchModule(Refused):
    """The module itself, or a package above it, does not exist."""
