"""The records of a group: what it is, who is in, what a round merged, and who was refused.

`plan.json` is the commit of a round: everything after it follows from it alone, so it holds no
time, no host and no path that another aggregator would write differently. `merge.json` names the
digests of its plan and of the merge before it, which makes the rounds of a group a chain.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from fsworker.errors import FormatError
from fsworker.protocol.records.artifact import FileDigest, check_files, tree_digest
from fsworker.protocol.records.rules import count_problem, keys_problem, rule_problem
from fsworker.protocol.records.run import _Record

REJECT, DELTA = "reject", "delta"
LATE = (REJECT, DELTA)
"""What becomes of an upload whose round is closed: refused, or applied to a later round."""
MOST_SAMPLES = float(1 << 53)
"""Sample counts above this are no counts: a float64 does not hold them."""


def sha256(data: bytes) -> str:
    """The SHA-256 of a record's bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Group(_Record):
    """What a group is; `group.json`. Rule, options, quorum, deadline and keep may change.

    `size` is how many participants it has. `quorum` of them suffice to close a round (None: all).
    With a `deadline` (seconds from the round's first upload, by the file server's clock) a round
    waits that long for those who are missing; without one it closes as soon as the quorum is
    there. `episodes` is the last one (None: no end). `late` says what becomes of late uploads.
    `options` are the rule's, `keys` policies by key pattern, `lora` how factors are merged.
    `keep_rounds` rounds keep their uploads and models; plans and merges are kept for ever.
    """

    group: str
    size: int
    rule: str = "fedavg"
    options: dict[str, Any] = field(default_factory=dict)
    quorum: int | None = None
    deadline: float | None = None
    episodes: int | None = None
    keep_rounds: int = 3
    late: str = REJECT
    keys: dict[str, str] = field(default_factory=dict)
    lora: str | None = None

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Group:
        """The record in `data`; FormatError names `path` and the field."""
        group: Group = super().from_json(data, path)
        if (problem := group.problem()) is not None:
            raise FormatError(f"{path}: {problem}", path=path)
        return group

    @property
    def needed(self) -> int:
        """How many participants a round needs."""
        return self.size if self.quorum is None else self.quorum

    def problem(self) -> str | None:
        """What no group can be; None when all is well."""
        if self.size < 1:
            return f"field 'size' must be 1 or more, not {self.size}"
        if self.quorum is not None and not 1 <= self.quorum <= self.size:
            return f"field 'quorum' must be 1 to {self.size}, not {self.quorum}"
        if self.deadline is not None and self.deadline < 0:
            return f"field 'deadline' must be 0 or more seconds, not {self.deadline:g}"
        if self.episodes is not None and self.episodes < 1:
            return f"field 'episodes' must be 1 or more, not {self.episodes}"
        if self.keep_rounds < 1:
            return f"field 'keep_rounds' must be 1 or more, not {self.keep_rounds}"
        if self.late not in LATE:
            return f"field 'late' must be one of {', '.join(LATE)}, not {self.late!r:.40}"
        return None


def terms_problem(group: Group) -> str | None:
    """What no aggregator can do of what a group asks for, by field; None when all is well.

    Apart from `Group.problem`, since a newer version may have rules that this one has not, and an
    older one took a rule that no round of the group's size can be closed by.
    """
    wrong = rule_problem(group.rule, group.options) or keys_problem(group.keys, group.lora)
    if wrong is None and (why := count_problem(group.rule, group.options, group.size)) is not None:
        wrong = f"field 'rule' does not fit the group's size: {why}; take another, or other options"
    return wrong


@dataclass(frozen=True)
class Member(_Record):
    """A place of a group that is taken; `members/<place>/member.json`."""

    job: str


@dataclass(frozen=True, slots=True)
class Contributor:
    """An upload that counts in a round.

    `episode` is the upload's, lower than the round's where it came late; `base` is the digest of
    the model that it started from (None: from none), that of `before_ep_<episode>`.
    """

    job: str
    episode: int
    weight: float
    digest: str
    files: tuple[FileDigest, ...]
    base: str | None = None


@dataclass(frozen=True)
class Plan(_Record):
    """Who counts in a round and how, decided once; `rounds/<round>/plan.json`.

    `base` is the digest of the model that the round improves on (None: there is none yet),
    `previous` the digest of the `merge.json` before, `state` that of the optimiser state that the
    rule goes on from (None: anew). `refused` says why, by job; `missing` are members without an
    upload.
    """

    group: str
    round: int
    rule: str
    contributors: tuple[Contributor, ...]
    options: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    lora: str | None = None
    base: str | None = None
    previous: str | None = None
    state: str | None = None
    refused: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Plan:
        """The record in `data`; FormatError names `path` and the field."""
        plan: Plan = super().from_json(data, path)
        if not plan.contributors:
            raise FormatError(f"{path}: nobody contributes to the round", path=path)
        for contributor in plan.contributors:
            check_files(contributor.files, path)
        return plan


@dataclass(frozen=True)
class Merge(_Record):
    """What a round gave; `to_worker/before_ep_<round + 1>/merge.json`.

    `files` are those of the global model and `digest` is the one digest of them all, which
    participants name as the `base` of what they upload. `state` are the files of the optimiser's
    state, which the next round goes on from. `plan` and `previous` are the digests of this round's
    `plan.json` (None: no round, a model to start from) and of the `merge.json` before (None: the
    first). `versions` are those of what computed it.
    """

    group: str
    round: int
    rule: str
    files: tuple[FileDigest, ...]
    digest: str
    plan: str | None = None
    previous: str | None = None
    base: str | None = None
    state: tuple[FileDigest, ...] = ()
    state_digest: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Merge:
        """The record in `data`; FormatError names `path` and the field."""
        merge: Merge = super().from_json(data, path)
        check_files(merge.files + merge.state, path)
        if tree_digest(merge.files) != merge.digest:
            raise FormatError(f"{path}: its digest is not that of its files", path=path)
        if (tree_digest(merge.state) if merge.state else None) != merge.state_digest:
            raise FormatError(f"{path}: its state_digest is not that of its state", path=path)
        return merge


@dataclass(frozen=True)
class Refusal(_Record):
    """Why an upload does not count; `refused/after_ep_<episode>/<job>.json`.

    `kind` is one word for scripts (`late`, `stale`, `damaged`, `unsafe`, `misshapen`,
    `not finite`, `stranger`, `samples`); `digest` is that of the upload, if it has one. `terms`
    stand for what of the group's terms it was judged by: by others it is judged anew, as long as
    its round is open. None: it would be refused by any.
    """

    group: str
    episode: int
    job: str
    kind: str
    reason: str
    digest: str | None = None
    terms: str | None = None


@dataclass(frozen=True)
class Waiting(_Record):
    """Since when the open round waits (epoch seconds by the file server); `waiting.json`."""

    round: int
    since: float


@dataclass(frozen=True)
class Retired(_Record):
    """Models that episodes before this one started from were removed; `retired.json`."""

    before: int


@dataclass(frozen=True)
class Times(_Record):
    """When a round got its first upload and when it closed; `rounds/<round>/times.json`."""

    since: float
    closed: float


@dataclass(frozen=True, slots=True)
class OldRound:
    """The records of a round as they were in its folders, to the byte.

    `published` is when `merge.json` was written (epoch seconds by the file server).
    """

    plan: str
    merge: str
    times: str | None
    published: float


@dataclass(frozen=True)
class Archive(_Record):
    """The rounds from `first` on, in their order; `archive/<first>.json`."""

    group: str
    first: int
    rounds: tuple[OldRound, ...]


@dataclass(frozen=True)
class Final(_Record):
    """Where the last model of a group is; `final.json`. `folder` is relative to the run root."""

    group: str
    round: int
    folder: str
    digest: str


@dataclass(frozen=True)
class GroupReport:
    """What an aggregator says of a group: `state` in one word, `why` in a sentence.

    `state` is one of those of `rounds.Decision`, or `reading`, `merging`, `finished`, `failed`, or
    `absent` for a group that the aggregator was told to look after and that is not there.
    `admitted` are the uploads of the open round that were read and found good.
    """

    round: int
    state: str
    why: str = ""
    admitted: tuple[str, ...] = ()


@dataclass(frozen=True)
class AggregatorBeat(_Record):
    """An aggregator's sign of life; `outbox/federation/.aggregator.json`. `seq` grows.

    Of one without a lock `.aggregator~<incarnation>.json`.

    `beat_at` (epoch seconds by its own clock) is for people: nothing is decided by it.
    """

    host: str
    pid: int
    incarnation: str
    seq: int
    beat_at: float
    groups: dict[str, GroupReport] = field(default_factory=dict)
    stopped: bool = False
