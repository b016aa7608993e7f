"""Batches, who holds them, and what an outbox stream holds of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from fsworker.protocol.layout.jobs import RESERVED_STREAMS
from fsworker.protocol.layout.names import (
    CLAIMS,
    DEAD,
    DOTTED,
    INBOX,
    INC,
    NAME,
    NUM,
    OUTBOX,
    decode,
    dotted,
    encode,
)

_BATCH = rf"(?P<batch>(?P<stream>{NAME})-{INC}-{NUM})"
_INBOX_NAME = re.compile(
    rf"{_BATCH}\.(?P<attempt>{NUM})\.(?P<deaths>{NUM})(?:\.(?P<needs>[0-9a-f]{{12}}))?"
)
_CLAIM_NAME = re.compile(rf"(?P<shard>{NUM})~{_INBOX_NAME.pattern}")
_OUTBOX_NAME = re.compile(
    rf"{_BATCH}\.(?P<attempt>{NUM})~(?P<inc>{INC})\."
    rf"(?P<kind>result|done|part(?P<part>{NUM}))"
)
_COUNTERS_NAME = re.compile(rf"\.counters~(?P<inc>{INC})\.json")
JOB_PREFIX = encode("jobs/")
"""What the encoded stream of a job begins with; the rest is the job's id, encoded."""

_OWNER_NAME = re.compile(rf"(?P<host>{DOTTED})~(?P<inc>{INC})")


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A worker's life as the owner of claims: the host that it serves and its incarnation."""

    host: str
    incarnation: str

    @property
    def name(self) -> str:
        """The name of its folder under `claims/`."""
        return f"{dotted(self.host)}~{self.incarnation}"

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
        return Owner(decode(m["host"], dotted), m["inc"])
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """A batch as it lies in an inbox or among an owner's claims.

    `needs` is the digest of what its tasks need of a worker, empty for nothing: whoever does not
    know what it stands for, or does not offer it, must not claim the batch.
    """

    batch: str
    shard: int
    attempt: int = 0
    deaths: int = 0
    needs: str = ""

    @property
    def stream(self) -> str:
        """The encoded name of the stream that its results belong to."""
        return stream_of(self.batch)

    @property
    def is_job(self) -> bool:
        """Whether this is a training job, which takes a worker's job slot; told by its name."""
        return is_job(self.batch)

    def claimed(self) -> Token:
        """The same batch after one more claim."""
        return replace(self, attempt=self.attempt + 1)

    def returned(self, *, died: bool) -> Token:
        """The same batch back in its inbox; `died` when its owner is proven to have died."""
        return replace(self, deaths=self.deaths + int(died))

    def forwarded(self, shard: int) -> Token:
        """The same batch in another shard's inbox; an attempt more, so that its name is new."""
        return replace(self, shard=shard, attempt=self.attempt + 1)

    @property
    def _name(self) -> str:
        name = f"{self.batch}.{self.attempt}.{self.deaths}"
        return f"{name}.{self.needs}" if self.needs else name


def batch_id(stream: str, incarnation: str, seq: int) -> str:
    """The id of a client's `seq`-th batch. Never used twice: the incarnation is random."""
    return f"{encode(stream)}-{incarnation}-{seq}"


def stream_of(batch: str) -> str:
    """The encoded stream name in a batch id."""
    return batch.rsplit("-", 2)[0]


def seq_of(batch: str) -> int:
    """The sequence number in a batch id."""
    return int(batch.rsplit("-", 1)[1])


def job_stream(job: str) -> str:
    """The stream of a job, before it is encoded: its folder is the job's."""
    return f"jobs/{job}"


def check_stream(name: str) -> str:
    """The encoded name of a stream for tasks. ValueError for one that is none, or reserved."""
    part = encode(name)
    if part in RESERVED_STREAMS or part.startswith(JOB_PREFIX):
        raise ValueError("jobs and groups lie under that name")
    return part


def is_job(batch: str) -> bool:
    """Whether a batch is a training job."""
    return batch.startswith(JOB_PREFIX)


def job_of(batch: str) -> str:
    """The id of the job that a batch is."""
    return decode(stream_of(batch)[len(JOB_PREFIX) :])


def inbox_dir(shard: int) -> str:
    """The folder of a shard's pending batches."""
    return f"{INBOX}/{shard}"


def inbox_path(token: Token) -> str:
    """Where a pending batch lies."""
    return f"{INBOX}/{token.shard}/{token._name}"


def parse_inbox_name(shard: int, name: str) -> Token | None:
    """The pending batch that a file of shard `shard` is."""
    m = _INBOX_NAME.fullmatch(name)
    if m is None or not _is_name(m["stream"]):
        return None
    return Token(m["batch"], shard, int(m["attempt"]), int(m["deaths"]), m["needs"] or "")


def claim_path(owner: Owner, token: Token) -> str:
    """Where a batch lies that `owner` holds."""
    return f"{owner.folder}/{token.shard}~{token._name}"


def parse_claim_name(name: str) -> Token | None:
    """The batch that a file in an owner's folder is."""
    m = _CLAIM_NAME.fullmatch(name)
    if m is None or not _is_name(m["stream"]):
        return None
    needs = m["needs"] or ""
    return Token(m["batch"], int(m["shard"]), int(m["attempt"]), int(m["deaths"]), needs)


def outbox_dir(stream: str) -> str:
    """The folder of a stream's results; `stream` is encoded, as `stream_of` gives it."""
    if stream.startswith(JOB_PREFIX):
        return f"{OUTBOX}/jobs/{stream[len(JOB_PREFIX) :]}"
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
    if m is None or not _is_name(m["stream"]):
        return None
    out = Outcome(m["batch"], int(m["attempt"]), m["inc"])
    return (out, "part", int(m["part"])) if m["part"] is not None else (out, m["kind"], 0)


@lru_cache(maxsize=4096)
def _is_name(stream: str) -> bool:
    """Whether `encode` writes this, so that whoever has a token can ask for its stream or job."""
    try:
        return bool(decode(stream) and decode(stream.removeprefix(JOB_PREFIX)))
    except ValueError:
        return False


def counters_path(stream: str, incarnation: str) -> str:
    """Where a client keeps how much it has sent to and read from a stream (encoded name).

    Hidden, so that whoever reads the stream passes it over.
    """
    return f"{outbox_dir(stream)}/.counters~{incarnation}.json"


def parse_counters_name(name: str) -> str | None:
    """The incarnation of the client whose counters a file of a stream's folder holds."""
    m = _COUNTERS_NAME.fullmatch(name)
    return m["inc"] if m else None


def dead_path(batch: str) -> str:
    """The copy of a batch that was given up."""
    return f"{DEAD}/{batch}"
