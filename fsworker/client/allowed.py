"""Which function a caller means, and whether the run serves it: told when it is submitted.

A task names no code, so a function is only a name: one of the manifest, or one that a pattern of
the manifest admits. A callable is accepted when it is what its name leads to; nothing is imported
to find out, since a caller that holds the function has imported its module already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from fsworker import functions, patterns
from fsworker.errors import UsageError
from fsworker.protocol.records.run import Manifest


class AllowedFunctions:
    """The functions of a run, by the names and patterns of its manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.names = manifest.functions or (manifest.reward_fn,)
        self._allow = manifest.allow
        self._by_canonical = {functions.canonical(name): name for name in self.names}
        self._known: dict[Any, str] = {}

    def name_of(self, fn: str | Callable[..., Any] | None) -> str:
        """The name by which the run serves `fn` (None: its first function). Raises UsageError."""
        if fn is None:
            return self.names[0]
        if isinstance(fn, str):
            return self._named(fn) or self._refuse(repr(fn))
        try:
            known = self._known.get(fn)
        except TypeError:  # not hashable
            return self._find(fn)
        if known is None:
            known = self._known[fn] = self._find(fn)
        return known

    def _named(self, name: str) -> str | None:
        canonical = functions.canonical(name)
        listed = self._by_canonical.get(canonical)
        return listed or (name.strip() if patterns.admits(self._allow, canonical) else None)

    def _find(self, fn: Callable[..., Any]) -> str:
        if not callable(fn):
            raise UsageError(f"{fn!r:.80} is neither the name of a function nor a function")
        for canonical, name in self._by_canonical.items():
            if _imported(canonical) is fn:
                return name
        home = patterns.home_of(fn)
        if home is None:
            self._refuse(f"{fn!r:.80}")
        spelled = f"{fn.__module__}:{fn.__qualname__}"
        if (listed := self._by_canonical.get(home)) is not None:
            return listed
        if not patterns.admits(self._allow, home):
            self._refuse(spelled)
        if _imported(home) is not fn:
            raise UsageError(
                f"the function {fn!r:.80} cannot be sent: {spelled} leads to something else; "
                "tasks carry a name, so it must be that of a function of a module"
            )
        return spelled

    def _refuse(self, what: str) -> NoReturn:
        served = ", ".join((*self.names, *self._allow))
        raise UsageError(
            f"this run does not serve the function {what}: it serves {served}; "
            "start the run with --fn or --allow for another"
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
