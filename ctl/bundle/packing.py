"""From sources to the bytes of a bundle, and back to whether these are what they say. Pure.

The same sources give the same bytes, wherever and whenever they are packed: no times, no order of
a folder, no compression (which differs between libraries). Beside each source lies its bytecode,
without which every process on a host would compile all of them anew; a Python of another version
passes it over.
"""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER, source_hash

from ctl.bundle.contents import MAIN, VENDOR
from fsworker.bundled import FACTS

_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_UNCHECKED = (1).to_bytes(4, "little")
_PLAIN = 2
"""A version of marshal's format that depends on values alone, not on what else shares them."""


@dataclass(frozen=True)
class Bundle:
    """A bundle: its bytes, the digest of what is in it, and the release that it holds."""

    data: bytes
    digest: str
    release: str


def pack(sources: Mapping[str, bytes], release: str, package_digest: str) -> Bundle:
    """The bundle of these files. SyntaxError for a source that is none."""
    files = dict(sources)
    for name, source in sources.items():
        if name.endswith(".py") and name != MAIN:
            files[f"{name}c"] = bytecode(name, source)
    digest = digest_of(files)
    facts = {
        "release": release,
        "digest": digest,
        "package_digest": package_digest,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "packages": dict(_versions(sources)),
    }
    files[FACTS] = json.dumps(facts, sort_keys=True).encode() + b"\n"
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system, entry.external_attr = 3, _MODE
            archive.writestr(entry, files[name])
    return Bundle(buffer.getvalue(), digest, release)


def _versions(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What is packed of others, by the folders of their papers."""
    for name in names:
        folder, _, paper = name.removeprefix(f"{VENDOR}/").partition("/")
        if paper == "METADATA":
            package, _, version = folder.removesuffix(".dist-info").partition("-")
            yield package, version


def bytecode(name: str, source: bytes) -> bytes:
    """What Python would cache of a source, valid without a look at the source."""
    code = compile(source, f"<bundle>/{name}", "exec", dont_inherit=True, optimize=0)
    return MAGIC_NUMBER + _UNCHECKED + source_hash(source) + marshal.dumps(code, _PLAIN)


def digest_of(files: Mapping[str, bytes]) -> str:
    """Sixteen hex digits for what is in a bundle, but for what it says of itself."""
    digest = hashlib.sha256()
    for name in sorted(files):
        if name != FACTS:
            digest.update(f"{name}\0{len(files[name])}\0".encode())
            digest.update(files[name])
    return digest.hexdigest()[:16]


def check(data: bytes) -> str | None:
    """The digest of what is in a bundle, read anew; None for what is no bundle, or is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        said = json.loads(files[FACTS])["digest"]
    except (zipfile.BadZipFile, LookupError, ValueError, TypeError, EOFError, RuntimeError):
        return None
    digest = digest_of(files)
    return digest if digest == said and data.startswith(_SHEBANG) else None
