"""Every name and path under a run root, and the grammar by which names are read back.

The folder names are the protocol: a worker in another language needs this page and `segment`.
Nothing here touches a disk. Paths are relative to the root, with `/` between parts. Names that
come from users (hosts, streams, jobs, task ids) are encoded before they become a part of a path,
so that no spelling of them can leave its folder or be taken for another kind of file. A name that
no rule here matches parses to None and is ignored by every reader.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace

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

_PLAIN = re.compile(rb"[A-Za-z0-9_-]")
_ENCODED = re.compile(r"(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+")
_INC = r"[0-9a-f]{12}"
_NUM = r"(?:0|[1-9][0-9]{0,9})"
_BATCH = rf"(?P<batch>(?P<stream>(?:[A-Za-z0-9_-]|%[0-9A-F]{{2}})+)-{_INC}-{_NUM})"
_INBOX_NAME = re.compile(rf"{_BATCH}\.(?P<attempt>{_NUM})\.(?P<deaths>{_NUM})")
_CLAIM_NAME = re.compile(rf"(?P<shard>{_NUM})~{_INBOX_NAME.pattern}")
_OUTBOX_NAME = re.compile(
    rf"{_BATCH}\.(?P<attempt>{_NUM})~(?P<inc>{_INC})\."
    rf"(?P<kind>result|done|part(?P<part>{_NUM}))"
)
_COUNTERS_NAME = re.compile(rf"\.counters~(?P<inc>{_INC})\.json")
_CANCEL_NAME = re.compile(r"(?P<target>(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+)~[0-9a-f]{8}")
_OWNER_NAME = re.compile(rf"(?P<host>(?:[A-Za-z0-9_.-]|%[0-9A-F]{{2}})+)~(?P<inc>{_INC})")


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


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A worker's life as the owner of claims: the host that it serves and its incarnation."""

    host: str
    incarnation: str

    @property
    def name(self) -> str:
        """The name of its folder under `claims/`."""
        return f"{encode(self.host, dots=True)}~{self.incarnation}"

    @property
    def folder(self) -> str:
        """Its folder under the root."""
        return f"{CLAIMS}/{self.name}"


def parse_owner(name: str) -> Owner | None:
    """The owner whose claims folder has this name."""
    m = _OWNER_NAME.fullmatch(name)
    if not m:
        return None
    try:
        return Owner(decode(m["host"]), m["inc"])
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """A batch as it lies in an inbox or among an owner's claims."""

    batch: str
    shard: int
    attempt: int = 0
    deaths: int = 0

    @property
    def stream(self) -> str:
        """The encoded name of the stream that its results belong to."""
        return stream_of(self.batch)

    def claimed(self) -> Token:
        """The same batch after one more claim."""
        return replace(self, attempt=self.attempt + 1)

    def returned(self, *, died: bool) -> Token:
        """The same batch back in its inbox; `died` when its owner is proven to have died."""
        return replace(self, deaths=self.deaths + int(died))


def batch_id(stream: str, incarnation: str, seq: int) -> str:
    """The id of a client's `seq`-th batch. Never used twice: the incarnation is random."""
    return f"{encode(stream)}-{incarnation}-{seq}"


def stream_of(batch: str) -> str:
    """The encoded stream name in a batch id."""
    return batch.rsplit("-", 2)[0]


def seq_of(batch: str) -> int:
    """The sequence number in a batch id."""
    return int(batch.rsplit("-", 1)[1])


def inbox_dir(shard: int) -> str:
    """The folder of a shard's pending batches."""
    return f"{INBOX}/{shard}"


def inbox_path(token: Token) -> str:
    """Where a pending batch lies."""
    return f"{INBOX}/{token.shard}/{token.batch}.{token.attempt}.{token.deaths}"


def parse_inbox_name(shard: int, name: str) -> Token | None:
    """The pending batch that a file of shard `shard` is."""
    m = _INBOX_NAME.fullmatch(name)
    return Token(m["batch"], shard, int(m["attempt"]), int(m["deaths"])) if m else None


def claim_path(owner: Owner, token: Token) -> str:
    """Where a batch lies that `owner` holds."""
    return f"{owner.folder}/{token.shard}~{token.batch}.{token.attempt}.{token.deaths}"


def parse_claim_name(name: str) -> Token | None:
    """The batch that a file in an owner's folder is."""
    m = _CLAIM_NAME.fullmatch(name)
    return Token(m["batch"], int(m["shard"]), int(m["attempt"]), int(m["deaths"])) if m else None


def outbox_dir(stream: str) -> str:
    """The folder of a stream's results; `stream` is encoded, as `stream_of` gives it."""
    return f"{OUTBOX}/{stream}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One file of an outbox stream: what an owner's attempt at a batch left there."""

    batch: str
    attempt: int
    incarnation: str

    def _name(self, kind: str) -> str:
        stem = f"{outbox_dir(stream_of(self.batch))}/{self.batch}"
        return f"{stem}.{self.attempt}~{self.incarnation}.{kind}"

    @property
    def result(self) -> str:
        """The results; they mean nothing without `done`."""
        return self._name("result")

    @property
    def done(self) -> str:
        """The token at its end: this attempt is the one that counts."""
        return self._name("done")

    def part(self, i: int) -> str:
        """The `i`-th early results or intents of this attempt."""
        return self._name(f"part{i}")


def outcome(owner: Owner, token: Token) -> Outcome:
    """Where `owner` leaves what comes of its attempt at `token`."""
    return Outcome(token.batch, token.attempt, owner.incarnation)


def parse_outbox_name(name: str) -> tuple[Outcome, str, int] | None:
    """(outcome, kind, part number) of a file in a stream's folder; kind: result, done or part."""
    m = _OUTBOX_NAME.fullmatch(name)
    if not m:
        return None
    out = Outcome(m["batch"], int(m["attempt"]), m["inc"])
    return (out, "part", int(m["part"])) if m["part"] is not None else (out, m["kind"], 0)


def counters_path(stream: str, incarnation: str) -> str:
    """Where a client keeps how much it has sent to and read from a stream (encoded name).

    Hidden, so that whoever reads the stream passes it over.
    """
    return f"{outbox_dir(stream)}/.counters~{incarnation}.json"


def parse_counters_name(name: str) -> str | None:
    """The incarnation of the client whose counters a file of a stream's folder holds."""
    m = _COUNTERS_NAME.fullmatch(name)
    return m["inc"] if m else None


def temporary(path: str, unique: str) -> str:
    """A dotfile beside `path` that no reader looks at; `unique` keeps two writers apart."""
    folder, _, name = path.rpartition("/")
    hidden = f".tmp~{unique}~{name}"
    return f"{folder}/{hidden}" if folder else hidden


def is_foreign(name: str) -> bool:
    """Whether every reader must ignore `name`: hidden, temporary, or a server's leftover."""
    return name.startswith(".")


def status_path(host: str) -> str:
    """A host's heartbeat."""
    return f"{STATUS}/{encode(host, dots=True)}.json"


def parse_status_name(name: str) -> str | None:
    """The host whose heartbeat has this name."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "json" or is_foreign(name):
        return None
    try:
        return decode(stem)
    except ValueError:
        return None


def host_file(host: str, suffix: str) -> str:
    """A host's file under `ctl/`: suffix pid, wrap.pid, identity.json, stop, log, wrap.log.

    A host called `watch` or `x.wrap` is spelled so that its files are neither the watcher's nor
    those of the wrapper of `x`.
    """
    part = encode(host, dots=True)
    if part == "watch":
        part = "%77atch"
    elif part.endswith(".wrap"):
        part = part.removesuffix(".wrap") + "%2Ewrap"
    return f"{CTL}/{part}.{suffix}"


def stop_covers(content: str, launch: int) -> bool:
    """Whether a stop intent means this launch: it names the highest it covers, empty means all.

    What is neither empty nor a number was written by hand, to stop something: it covers all.
    """
    text = content.strip()
    return not (text.isascii() and text.isdigit()) or launch <= int(text)


def dead_path(batch: str) -> str:
    """The copy of a batch that was given up."""
    return f"{DEAD}/{batch}"


def cancel_path(target: str, unique: str) -> str:
    """A request to cancel. `target`, a batch or an encoded stream, says to whom it matters."""
    return f"{CANCEL}/{target}~{unique}"


def parse_cancel_name(name: str) -> str | None:
    """The target of the request that a file in `ctl/cancel/` is."""
    m = _CANCEL_NAME.fullmatch(name)
    return m["target"] if m else None
