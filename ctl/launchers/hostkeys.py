"""Whether a host's key is the one that known_hosts records, as OpenSSH reads that file.

paramiko's own reader knows no wildcards and no `@revoked`, stops a whole file at one bad line, and
cannot say which line disagrees. An operator needs exactly that: the file and the line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

log = logging.getLogger(__name__)

REVOKED, CA = "@revoked", "@cert-authority"
_append_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file."""

    file: str
    line: int
    hosts: str
    kind: str
    key: bytes
    marker: str = ""

    @property
    def place(self) -> str:
        """Where a person finds it."""
        return f"{self.file}:{self.line}"

    def matches(self, name: str) -> bool:
        """Whether the line speaks about the host of this name."""
        if self.hosts.startswith("|1|"):
            return _hash_matches(self.hosts, name)
        found = False
        for pattern in self.hosts.lower().split(","):
            if fits(pattern.removeprefix("!"), name):
                if pattern.startswith("!"):
                    return False
                found = True
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """`known`, `unknown`, `changed`, `revoked`, or `other` (known by other key types only)."""

    state: str
    entry: Entry | None = None


def verdict(entries: Iterable[Entry], names: Sequence[str], kind: str, key: bytes) -> Verdict:
    """What the entries say about this key for a host that goes by `names`.

    Only the first name can make a key wrong; the others can only vouch for it, which is how
    OpenSSH treats a host on another port than 22.
    """
    mine = list(entries)
    revoked = [e for e in mine if e.marker == REVOKED and e.key == key]
    if any(e.matches(n) for e in revoked for n in names):
        return Verdict("revoked", next(e for e in revoked if any(map(e.matches, names))))
    plain = [e for e in mine if not e.marker]
    first = [e for e in plain if e.matches(names[0])]
    for entry in first:
        if entry.key == key:
            return Verdict("known", entry)
    for entry in first:
        if entry.kind == kind:
            return Verdict("changed", entry)
    if first:
        return Verdict("other", first[0])
    for entry in plain:
        if entry.key == key and any(map(entry.matches, names[1:])):
            return Verdict("known", entry)
    return Verdict("unknown", authority(mine, names))


def authority(entries: Iterable[Entry], names: Sequence[str]) -> Entry | None:
    """The line that names a certificate authority for this host."""
    of_ca = (e for e in entries if e.marker == CA)
    return next((e for e in of_ca if any(map(e.matches, names))), None)


def kinds(entries: Iterable[Entry], names: Sequence[str]) -> list[str]:
    """The key types recorded for a host: those to ask it for, in the order of the file."""
    plain = [e for e in entries if not e.marker]
    first = [e.kind for e in plain if e.matches(names[0])]
    rest = [e.kind for e in plain if any(map(e.matches, names[1:]))]
    return list(dict.fromkeys(first or rest))


def read(files: Iterable[str], names: Sequence[str] | None = None) -> list[Entry]:
    """All entries of these files, or those that may speak of `names`; a missing file has none."""
    found: list[Entry] = []
    for file in files:
        try:
            info = os.stat(file)
            book = _read_file(file, (info.st_mtime_ns, info.st_size, info.st_ino))
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("%s cannot be read, so its host keys are not known: %s", file, error)
            continue
        found += book.entries if names is None else book.about(names)
    return found


class _Book:
    """A file's entries, found by name: a sweep over a thousand hosts must not try each on each."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._named: dict[str, list[int]] = {}
        self._others: list[int] = []
        for index, entry in enumerate(entries):
            if set("*?!|") & set(entry.hosts):
                self._others.append(index)
                continue
            for name in entry.hosts.lower().split(","):
                self._named.setdefault(name, []).append(index)

    def about(self, names: Iterable[str]) -> list[Entry]:
        """The entries that may match one of these names, in the order of the file."""
        found = {*self._others, *(i for name in names for i in self._named.get(name, ()))}
        return [self.entries[index] for index in sorted(found)]


@lru_cache(maxsize=16)
def _read_file(file: str, version: tuple[int, int, int]) -> _Book:
    # Kept by what changes when the file does: a sweep over many hosts reads it once.
    with open(file, "rb") as stream:
        return _Book(parse(stream.read(), file))


def parse(data: bytes, file: str) -> list[Entry]:
    """The entries in a file's bytes. A damaged line is named in a warning and skipped."""
    found = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = raw.strip()
        if not line or line.startswith(b"#"):
            continue
        try:
            # A comment may be in any encoding, and a revoked key stays revoked whoever's it is.
            found.append(_parse_line(line.decode("utf-8", "surrogateescape"), file, number))
        except ValueError as error:
            log.warning("%s:%d is damaged and skipped: %s", file, number, error)
    return found


def _parse_line(line: str, file: str, number: int) -> Entry:
    marker = ""
    if line.startswith("@"):
        marker, *rest = line.split(None, 1)
        line = rest[0] if rest else ""
        if marker not in (REVOKED, CA):
            raise ValueError(f"unknown marker {marker}")
    fields = line.split(None, 3)
    if len(fields) < 3:
        raise ValueError("a host, a key type and a key are expected")
    hosts, kind, text = fields[:3]
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"the key is not base64 ({error})") from None
    name = kind.encode("utf-8", "surrogateescape")
    if key[: 4 + len(name)] != len(name).to_bytes(4, "big") + name:
        raise ValueError(f"the key is not of the type {kind}")
    return Entry(file, number, hosts, kind, key, marker)


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern of ssh, of which only `*` and `?` are special, means this name."""
    if "*" in pattern or "?" in pattern:
        return _glob(pattern).fullmatch(name) is not None
    return pattern == name


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    # Only `*` and `?` are special here: the brackets of `[host]:port` are literal.
    return re.compile(translate(pattern.replace("[", "[[]")))


def _hash_matches(hosts: str, name: str) -> bool:
    _, _, salt, digest = [*hosts.split("|"), "", ""][:4]
    try:
        return hmac.compare_digest(_hash(base64.b64decode(salt), name), base64.b64decode(digest))
    except binascii.Error:
        return False


def _hash(salt: bytes, name: str) -> bytes:
    return hmac.new(salt, name.encode(), hashlib.sha1).digest()


def add(file: str, name: str, kind: str, key: bytes, *, hashed: bool = False) -> None:
    """Record a new host's key in `file`, making it private if it is not there yet. OSError."""
    if hashed:
        salt = secrets.token_bytes(20)
        both = (base64.b64encode(salt), base64.b64encode(_hash(salt, name)))
        name = "|1|" + "|".join(part.decode() for part in both)
    line = f"{name} {kind} {base64.b64encode(key).decode()}\n".encode()
    os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
    with _append_lock:
        fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # a last line without its end would swallow ours
            os.write(fd, line)
        finally:
            os.close(fd)


def fingerprint(key: bytes) -> str:
    """A key as `ssh-keygen -l` shows it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode()
    return "SHA256:" + digest.rstrip("=")
