"""The folders of a run root, its single files, and how a user's name becomes a part of a path."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable

MANIFEST = "manifest.json"
MARKER = ".shardfleet"
"""Written first by `ctl start`: says that a folder is ours even when no manifest followed."""

CTL, INBOX, CLAIMS, OUTBOX = "ctl", "inbox", "claims", "outbox"
DEAD, QUARANTINE, STATUS = "dead", "quarantine", "status"
CANCEL = CTL + "/cancel"
FOLDERS = (CTL, CANCEL, INBOX, CLAIMS, OUTBOX, DEAD, QUARANTINE, STATUS)

LAUNCH_META = CTL + "/launch_meta.json"
EVENTS = CTL + "/events.jsonl"
WATCH_PID, WATCH_STOP, WATCH_LOG = CTL + "/watch.pid", CTL + "/watch.stop", CTL + "/watch.log"
WATCH_ERR = CTL + "/watch.err"
WATCH_LOCK = CTL + "/watch.lock"

MAX_NAME = 160
"""Bytes that an encoded user name may take: what is left of 255 for the parts around it."""

INC = r"[0-9a-f]{12}"
NUM = r"(?:0|[1-9][0-9]{0,9})"
NAME = r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+"
"""What `encode` writes."""
DOTTED = r"(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+"
"""What it writes with `dots`."""

_PLAIN = re.compile(rb"[A-Za-z0-9_-]")
_ENCODED = re.compile(DOTTED)
_ENDING = re.compile(r"\.[A-Za-z0-9_-]{1,40}")


def ending(name: str) -> str:
    """The ending of a file's name, with its dot, that another name may take over; else empty.

    One that just fits behind a short name need not fit behind a longer one.
    """
    found = os.path.splitext(name)[1]
    return found if _ENDING.fullmatch(found) else ""


def encode(name: str, *, dots: bool = False) -> str:
    """A user's name as one part of a path: ASCII letters, digits, `_`, `-`, the rest `%XX`.

    With `dots`, `.` stays too (host names), except at the start, where it would hide the file.
    Raises ValueError for an empty name, for one longer than MAX_NAME once encoded, and for lone
    surrogates, which no record could name.
    """
    try:
        raw = name.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"the name {name!r:.80} is no text that can be written") from None
    out = "".join(
        chr(c) if _PLAIN.match(bytes([c])) or (dots and c == 0x2E and i) else f"%{c:02X}"
        for i, c in enumerate(raw)
    )
    if not out:
        raise ValueError("a name must not be empty")
    if len(out) > MAX_NAME:
        raise ValueError(f"the name {name[:40]!r}… takes {len(out)} bytes, {MAX_NAME} is the limit")
    return out


def decode(part: str, spell: Callable[[str], str] = encode) -> str:
    """The name that `spell` (`encode`, `dotted`) was given. ValueError for what it never writes.

    So a name has one spelling: another one would be a second folder of the same job or group.
    """
    if not _ENCODED.fullmatch(part):
        raise ValueError(f"{part!r:.80} is not an encoded name")
    raw = re.sub(rb"%([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), part.encode())
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{part!r:.80} is not an encoded name: it is no UTF-8") from None
    if spell(name) != part:
        raise ValueError(f"{part!r:.80} is not an encoded name: {spell(name)} is how it is written")
    return name


def dotted(name: str) -> str:
    """`encode` with dots, as the names of hosts are written."""
    return encode(name, dots=True)


def new_incarnation() -> str:
    """A token that no other process start has: 12 hex digits from the system's random source."""
    return secrets.token_hex(6)


def temporary(path: str, unique: str) -> str:
    """A dotfile beside `path` that no reader looks at; `unique` keeps two writers apart."""
    folder, _, name = path.rpartition("/")
    hidden = f".tmp~{unique}~{name}"
    return f"{folder}/{hidden}" if folder else hidden


def is_foreign(name: str) -> bool:
    """Whether every reader must ignore `name`: hidden, temporary, or a server's leftover."""
    return name.startswith(".")
