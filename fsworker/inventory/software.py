"""Which code this is: what is installed for this Python, and the sources of the functions served.

Nothing is imported for it and no tool is asked. Packages are what the names of their folders say,
one listing for each place that Python looks at; a function's source is the file that defines it,
read where it was just imported. Both are bounded, whatever a site has.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

MOST_PACKAGES = 5000
MOST_FUNCTIONS = 64
MOST_NAME = 400
"""Characters of a function's name; they are told in datagrams, and in every beat."""
MOST_SOURCE = 4 << 20
"""Bytes of a source that is digested; a larger file is data."""
_INFO = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")
_EGG = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?(?:-.+)?\.egg(?:-info)?")
_UNWRAPS = 20


def packages(path: Iterable[str] | None = None) -> dict[str, str]:
    """Installed distributions, name to version; names as indexes spell them (`typing-extensions`).

    `path` [sys.path]: of two with one name the first is the one that is imported.
    """
    found: dict[str, str] = {}
    for place in dict.fromkeys(sys.path if path is None else path):
        try:
            names = sorted(os.listdir(place)) if place else []
        except OSError:
            continue  # it is an archive, or not there
        for name in names:
            match = _INFO.fullmatch(name) or _EGG.fullmatch(name)
            if match and len(found) < MOST_PACKAGES:
                plain = re.sub(r"[-_.]+", "-", match["name"]).lower()
                found.setdefault(plain, match["version"])
    return dict(sorted(found.items()))


def digest_of(installed: Mapping[str, str]) -> str:
    """Twelve hex digits for a set of packages."""
    text = "\n".join(f"{name}=={version}" for name, version in sorted(installed.items()))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def sources(functions: Mapping[str, Any]) -> dict[str, str | None]:
    """The digests of the sources of imported functions, by name; None for what has none."""
    names = [name for name in sorted(functions) if len(name) <= MOST_NAME][:MOST_FUNCTIONS]
    return {name: source_digest(functions[name]) for name in names}


def source_digest(function: Any) -> str | None:
    """Twelve hex digits for the file that defines a function; None where that is no Python."""
    name = getattr(_innermost(function), "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    spec = getattr(module, "__spec__", None)
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith((".py", ".pyc")):
        return None
    for name in dict.fromkeys((path.removesuffix("c"), path)):
        data = _read(getattr(spec, "loader", None), name)
        if data is not None and len(data) <= MOST_SOURCE:
            return hashlib.sha256(data).hexdigest()[:12]
    return None


def _read(loader: Any, path: str) -> bytes | None:
    """A source by whoever loaded it, since it may lie in an archive."""
    try:
        data = loader.get_data(path)
    except Exception:  # a loader of the user's may raise anything
        return None
    return data if isinstance(data, bytes) else None


def _innermost(function: Any) -> Any:
    """What decorators and partials were put around; of an object that is called, its class."""
    for _ in range(_UNWRAPS):
        inner = getattr(function, "__wrapped__", None)
        if inner is None and isinstance(function, functools.partial):
            inner = function.func
        if inner is None:
            inner = getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    return function
