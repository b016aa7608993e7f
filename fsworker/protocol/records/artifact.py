"""The records that make a folder a finished checkpoint: `done.json` and the digests in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from fsworker.errors import FormatError
from fsworker.protocol.records.run import _Record

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_NAME = 512
_LARGEST = 1 << 60


@dataclass(frozen=True, slots=True, order=True)
class FileDigest:
    """One file of a folder: its name relative to it, its bytes, its SHA-256 in hex."""

    name: str
    size: int
    sha256: str

    def problem(self) -> str | None:
        """Why this cannot be a file inside its folder; None when it can."""
        parts = self.name.split("/")
        if not self.name or len(self.name) > _MOST_NAME or not self.name.isprintable():
            return f"the file name {self.name!r:.80} is empty, too long or not printable"
        if any(part.startswith(".") or not part for part in parts):
            return f"the file name {self.name!r:.80} leads out of its folder or is hidden"
        if not 0 <= self.size <= _LARGEST or not _SHA256.fullmatch(self.sha256):
            return f"size or digest of {self.name!r:.80} is none"
        return None


def tree_digest(files: Iterable[FileDigest]) -> str:
    """One SHA-256 for a whole folder: of the lines `sha256 size name`, sorted by name."""
    lines = (f"{f.sha256} {f.size} {f.name}\n" for f in sorted(files))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def check_files(files: tuple[FileDigest, ...], path: str) -> None:
    """FormatError, naming `path`, when a list of digests cannot be that of one folder."""
    if not files:
        raise FormatError(f"{path}: it lists no file", path=path)
    for file in files:
        if (problem := file.problem()) is not None:
            raise FormatError(f"{path}: {problem}", path=path)
    if len({file.name for file in files}) < len(files):
        raise FormatError(f"{path}: it lists a file twice", path=path)


def checkpoint_name(files: Iterable[FileDigest], stem: str = "checkpoint") -> str:
    """What to open of a folder's files: the one that there is, a file or a folder of shards.

    Of several, the one that is called `<stem>` or `<stem>.*`. ValueError when none is meant, or
    more than one.
    """
    tops = {file.name.partition("/")[0] for file in files}
    found = sorted(top for top in tops if top == stem or top.startswith(stem + "."))
    if len(tops) == 1:
        return tops.pop()
    if len(found) != 1:
        there = ", ".join(found) or "nothing of that name"
        raise ValueError(f"it must hold one {stem}.* (a file, or a folder of shards), not {there}")
    return found[0]


@dataclass(frozen=True)
class Done(_Record):
    """What a finished episode is; `done.json`. No reader looks at a checkpoint without one.

    `files` are the checkpoint's, one or a folder of shards with its index. `base` is the digest
    (`merge.json`'s) of the global model that the episode started from; None: from none. `samples`
    is how much data is behind it; None: the same as everybody (weight 1). `rewards` are those of
    the episode, in order; what is not finite is null. `incarnation` is the worker's.
    """

    job: str
    attempt: int
    incarnation: str
    episode: int
    files: tuple[FileDigest, ...]
    base: str | None = None
    samples: float | None = None
    rewards: tuple[float | None, ...] = ()
    total_reward: float | None = None

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Done:
        """The record in `data`; FormatError names `path` and the field."""
        done: Done = super().from_json(data, path)
        check_files(done.files, path)
        if done.base is not None and not _SHA256.fullmatch(done.base):
            words = f"field 'base' is {done.base!r:.80}, which is no digest of a model"
            raise FormatError(f"{path}: {words}", path=path)
        return done

    @property
    def digest(self) -> str:
        """One digest for the whole checkpoint."""
        return tree_digest(self.files)
