"""Which function a caller means, and whether the run serves it: told when it is submitted.

A task names no code, so a function is only its name in the manifest. A callable is accepted when it
is what one of those names leads to; nothing is imported to find out, since a caller that holds the
function has imported its module already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from fsworker import functions
from fsworker.errors import UsageError
from fsworker.protocol.records.run import Manifest


class AllowedFunctions:
    """The functions of a run, by the names of its manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.names = manifest.functions or (manifest.reward_fn,)
        self._by_canonical = {functions.canonical(name): name for name in self.names}
        self._known: dict[Any, str] = {}

    def name_of(self, fn: str | Callable[..., Any] | None) -> str:
        """The manifest's name for `fn` (None: the first). Raises UsageError."""
        if fn is None:
            return self.names[0]
        if isinstance(fn, str):
            name = self._by_canonical.get(functions.canonical(fn))
            return name if name is not None else self._refuse(repr(fn))
        try:
            known = self._known.get(fn)
        except TypeError:  # not hashable
            return self._find(fn)
        if known is None:
            known = self._known[fn] = self._find(fn)
        return known

    def _find(self, fn: Callable[..., Any]) -> str:
        if not callable(fn):
            raise UsageError(f"{fn!r:.80} is neither the name of a function nor a function")
        for canonical, name in self._by_canonical.items():
            if _imported(canonical) is fn:
                return name
        spelled = f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', repr(fn))}"
        named = self._by_canonical.get(functions.canonical(spelled))
        return named if named is not None else self._refuse(spelled)

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(
            f"this run does not serve the function {what}: it serves {', '.join(self.names)}; "
            "start the run with --fn for another"
        )


def _imported(canonical: str) -> Any:
    """What a dotted name leads to through modules that are imported already; None if nowhere."""
    parts = canonical.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        if found is None:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute, None)
        return found
    return None
