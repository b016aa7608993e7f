"""The functions that a slot may call: those that were loaded at the start, and those admitted.

What the manifest names is imported before the first task, so that a wrong name is told at once.
What only a pattern admits is imported where a task first calls it: in the slot, so that whatever
the import does happens to nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from fsworker import functions, patterns
from fsworker.errors import FleetError
from fsworker.functions import Function

log = logging.getLogger(__name__)

REMEMBERED = 1000
"""Names that were refused and are known to be: tasks may come with endless new ones."""


class Served:
    """Functions by their canonical names; `patterns` admit more than are `loaded`.

    `told`: what a slot that imported them itself says of their sources when it is ready.
    """

    def __init__(
        self, loaded: Mapping[str, Function], allow: Sequence[str] = (), told: bytes = b""
    ) -> None:
        self.told = told
        self._loaded = dict(loaded)
        self._allow = tuple(allow)
        self._refused: dict[str, str] = {}

    def get(self, name: str) -> Function | None:
        """The function, or None; `why` says why."""
        canonical = functions.canonical(name)
        function = self._loaded.get(canonical)
        if function is None and canonical not in self._refused:
            function = self._admit(name, canonical)
        return function

    def why(self, name: str) -> str:
        """The sentence about a name for which there is no function."""
        known = self._refused.get(functions.canonical(name))
        return known or f"function {name!r} is not one that the run's manifest names"

    def _admit(self, name: str, canonical: str) -> Function | None:
        if not patterns.admits(self._allow, canonical):
            return None
        try:
            function = functions.resolve(name)
        except FleetError as error:
            self._refuse(canonical, str(error))
            return None
        home = patterns.home_of(function)
        if home is None or not patterns.admits(self._allow, home):
            where = home or f"nowhere that a {type(function).__name__} could tell"
            why = f"function {name!r} is defined in {where}, which the run does not allow"
            self._refuse(canonical, why)
            return None
        self._loaded[canonical] = function
        return function

    def _refuse(self, canonical: str, why: str) -> None:
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        self._refused[canonical] = why
