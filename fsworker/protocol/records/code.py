"""The record of what code a worker runs, so that who differs, and in what, is told by the root."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsworker.protocol.records.run import _Record


@dataclass(frozen=True)
class Code(_Record):
    """What a worker runs; `ctl/<host>.code.json`, written when it is ready.

    `packages` are the distributions that its Python finds, by name; `functions` the digests of the
    files that define the functions it serves, None where that is no Python.
    """

    host: str
    incarnation: str
    packages: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str | None] = field(default_factory=dict)
