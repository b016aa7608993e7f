"""Bundles: the worker in one file, for hosts without packages. None is ever changed in place.

A worker that runs from a bundle reads it as long as it lives, by position. So its name holds the
digest of what is in it: other contents have another name, and lie beside it.
"""

from __future__ import annotations

import re

BUNDLES = "bundle"
_NAME = re.compile(r"fsworker-([0-9a-f]{16})\.pyz")


def bundle_path(digest: str) -> str:
    """Where a bundle lies whose contents have this digest (16 hex digits)."""
    return f"{BUNDLES}/fsworker-{digest}.pyz"


def parse_bundle_name(name: str) -> str | None:
    """The digest in the name of a bundle, with or without its folder."""
    match = _NAME.fullmatch(name.removeprefix(f"{BUNDLES}/"))
    return match[1] if match else None
