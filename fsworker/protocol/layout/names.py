"""The folders of a run root, its single files, and how a user's name becomes a part of a path."""

from __future__ import annotations

import re
import secrets

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


def encode(name: str, *, dots: bool = False) -> str:
    """A user's name as one part of a path: ASCII letters, digits, `_`, `-`, the rest `%XX`.

    With `dots`, `.` stays too (host names), except at the start, where it would hide the file.
    Raises ValueError for an empty name and for one longer than MAX_NAME once encoded.
    """
    raw = name.encode("utf-8", "surrogatepass")
    out = "".join(
        chr(c) if _PLAIN.match(bytes([c])) or (dots and c == 0x2E and i) else f"%{c:02X}"
        for i, c in enumerate(raw)
    )
    if not out:
        raise ValueError("a name must not be empty")
    if len(out) > MAX_NAME:
        raise ValueError(f"the name {name[:40]!r}… takes {len(out)} bytes, {MAX_NAME} is the limit")
    return out


def decode(part: str) -> str:
    """The name that `encode` was given. Raises ValueError for what `encode` never writes."""
    if not _ENCODED.fullmatch(part):
        raise ValueError(f"{part!r} is not an encoded name")
    raw = re.sub(rb"%([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), part.encode())
    return raw.decode("utf-8", "surrogatepass")


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
