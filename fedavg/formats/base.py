"""What every format gives: entries, other leaves, and bytes on demand.

A checkpoint is opened without reading its tensors, however large it is; the bytes of a tensor are
read in pieces, in the order in which a row-major copy of it would lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from fedavg.formats.contents import Content, Region


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a checkpoint.

    `key` is canonical, `name` is what the file calls it. `dtype` is torch's name of the element
    type (`"bfloat16"`), `nbytes` what its elements take without gaps (`itemsize` bytes each).

    `owner` is the key of the tensor whose bytes these are: the own key, or, where the file keeps
    one storage for both (tied weights, or a view of a larger tensor that is an entry too), the key
    of the other. Such an entry can be read like any other, but a Writer writes its owner alone.
    """

    key: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    itemsize: int
    owner: str
    place: Any = field(repr=False, compare=False)  # where the bytes lie: the format's own


@dataclass(frozen=True, slots=True)
class Plan:
    """How a checkpoint will lie on disk, laid out before its tensors have bytes.

    files: the content of each file by its name; one file of the name "" unless it is a `folder`.
    regions: where the tensors go that own their bytes, by key; `place` says in which file.
    owned: the keys of the other tensors.
    """

    files: Mapping[str, Content]
    regions: Mapping[str, Region]
    place: Mapping[str, str]
    owned: frozenset[str] = frozenset()
    folder: bool = False


Read = Callable[[Entry, int, int, memoryview], None]
MakePlan = Callable[[Mapping[str, object]], Plan]


class Checkpoint:
    """An open checkpoint, read-only. A context manager; `close` ends it.

    entries: the tensors by canonical key, in the order of the file.
    rest: the leaves that are no tensor, by the same kind of key. Numbers, strings, bools and None
        are themselves (numpy's scalars too); bytes, sets, torch.Size and the like are values that
        can be compared and are kept as they are.
    format: "pt", "safetensors", "json", "shards" or "stable-baselines3".
    lists: how long each list of a JSON file is, by its key; empty for other formats.
    plan: lays out a checkpoint of the same form, with some of `rest` replaced; for a Writer.
    check_unchanged: raises ChangedCheckpoint if a file that is read bit by bit was written to or
        replaced since it was opened.
    """

    def __init__(
        self,
        path: str,
        format: str,
        entries: Mapping[str, Entry],
        rest: Mapping[str, object],
        read: Read,
        close: Callable[[], None],
        plan: MakePlan,
        lists: Mapping[str, int] | None = None,
        check_unchanged: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.format = format
        self.entries = MappingProxyType(dict(entries))
        self.rest = MappingProxyType(dict(rest))
        self.plan = plan
        self.check_unchanged = check_unchanged
        self.lists = MappingProxyType(dict(lists or {}))
        self._read = read
        self._close = close

    def read_into(self, key: str, start: int, stop: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes [start, stop) of a tensor's row-major elements.

        `start` and `stop` are bytes, at element boundaries, within [0, nbytes]; `buffer` is
        writable and holds exactly stop - start bytes. By `pread`, from any thread. Raises KeyError
        for an unknown key, ValueError for other bounds, DamagedCheckpoint for a file that was cut
        since it was opened, StorageError for what the filesystem refuses.
        """
        entry = self.entries[key]
        view = buffer.cast("B") if buffer.format != "B" or buffer.ndim != 1 else buffer
        if not 0 <= start <= stop <= entry.nbytes or len(view) != stop - start:
            raise ValueError(f"bytes {start} to {stop} of {entry} into {len(view)}")
        if start % entry.itemsize or stop % entry.itemsize:
            raise ValueError(f"bytes {start} to {stop} of {entry} are not whole elements")
        if start < stop:
            self._read(entry, start, stop, view)

    def close(self) -> None:
        """Close its files."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
