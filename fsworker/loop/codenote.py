"""What a worker says of the code that it runs: digests in each beat, all of it in a file beside.

Slots tell the digests of the functions, since only they import them. The file is written once they
have, and again only when they tell of others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fsworker.inventory import software
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner
from fsworker.protocol.records.code import Code

log = logging.getLogger("fsworker.loop.code")


class CodeNote:
    """The code of one worker process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._packages = software.packages()
        self._functions: dict[str, str | None] = {}
        self._digest = software.digest_of(self._packages)
        self._due = True

    def learn(self, sources: Mapping[str, str | None]) -> None:
        """Slots have imported the functions, and these are the digests of their sources."""
        if dict(sources) != self._functions:
            self._functions, self._due = dict(sources), True

    @property
    def fields(self) -> dict[str, Any]:
        """What a heartbeat says of it."""
        return {"packages": self._digest, "functions": self._functions}

    def tend(self, owner: Owner) -> None:
        """Write the file if what is in it has changed. An error is said, and is no harm."""
        if not self._due:
            return
        self._due = False
        record = Code(owner.host, owner.incarnation, self._packages, self._functions)
        path = layout.host_file(owner.host, "code.json")
        try:
            self._store.publish(path, record.to_json(), durable=False)
        except OSError as error:
            log.warning("cannot write which code this worker runs: %s", error)
