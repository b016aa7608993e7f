"""A folder of shards with its index, as Hugging Face saves large models.

`<name>.index.json` says in its `weight_map` which file has which tensor; the files are safetensors
or `.pt`. Both must say the same: a tensor that is missing, or that two shards have, would otherwise
be merged or not by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Protocol

from fedavg.formats import keys
from fedavg.formats.base import Checkpoint, Entry, Plan
from fedavg.formats.contents import Content, Fixed, Region
from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint
from fedavg.formats.jsontext import parse
from fedavg.formats.source import Source
from fsworker.protocol.fsops import Store, storage_error

SUFFIX = ".index.json"
MAX_INDEX = 64 << 20
MAX_SHARDS = 10_000


class OpenFile(Protocol):
    """How a shard is opened; it knows the formats, which know nothing of shards."""

    def __call__(self, path: str) -> Checkpoint:
        """The checkpoint in a file."""


def open_folder(path: str, open_file: OpenFile) -> Checkpoint:
    """The folder's shards as one checkpoint; the rest of each is below its file's name."""
    try:
        names = Store(path).scan("")
    except OSError as error:
        raise storage_error(error, "list", path) from None
    name = _index_name(path, names)
    index = Source(f"{path}/{name}")
    try:
        if index.size > MAX_INDEX:
            raise UnsupportedCheckpoint(index.path, f"it has {index.size} bytes")
        raw = index.read(0, index.size)
    finally:
        index.close()
    expected = _by_shard(parse(raw, "its index", index.path), index.path)
    with ExitStack() as opened:
        shards = {}
        for shard in expected:
            if shard not in names:
                raise DamagedCheckpoint(index.path, f"it names {shard!r:.200}, which is missing")
            shards[shard] = opened.enter_context(_open_shard(f"{path}/{shard}", open_file))
        entries, rest, home = _join(shards, expected, index.path)
        close = opened.pop_all().close

    def read(entry: Entry, start: int, stop: int, buffer: memoryview) -> None:
        shards[home[entry.key]].read_into(entry.key, start, stop, buffer)

    def plan(replace: Mapping[str, object]) -> Plan:
        return _plan(shards, Fixed(raw), name, replace)

    def check_unchanged() -> None:
        for checkpoint in shards.values():
            checkpoint.check_unchanged()

    return Checkpoint(
        path, "shards", entries, rest, read, close, plan, check_unchanged=check_unchanged
    )


def _index_name(path: str, names: list[str]) -> str:
    found = [name for name in names if name.endswith(SUFFIX) and name[0] != "."]
    if len(found) != 1:
        raise UnsupportedCheckpoint(
            path, f"it is a folder with {len(found)} files *{SUFFIX}, one must say what it holds"
        )
    return found[0]


def _by_shard(index: Mapping[str, object], path: str) -> dict[str, dict[str, str]]:
    """For each shard its keys, with the names that the index gives them."""
    table = index.get("weight_map")
    if not isinstance(table, dict) or not table:
        raise DamagedCheckpoint(path, "it has no weight_map")
    found: dict[str, dict[str, str]] = {}
    seen: dict[str, str] = {}
    for name, shard in table.items():
        if not _is_file_name(shard):
            raise DamagedCheckpoint(path, f"it names {shard!r:.200}, which is no file beside it")
        key = keys.canonical(name)
        if key in seen:
            raise UnsupportedCheckpoint(path, f"{seen[key]!r} and {name!r} are both {key!r}")
        seen[key] = name
        found.setdefault(shard, {})[key] = name
    if len(found) > MAX_SHARDS:
        raise UnsupportedCheckpoint(path, f"it names {len(found)} shards")
    return found


def _is_file_name(name: object) -> bool:
    """A name that can neither lead out of the folder nor replace the index."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) < 256:
        return False
    return "/" not in name and name[0] != "." and not name.endswith(SUFFIX)


def _open_shard(path: str, open_file: OpenFile) -> Checkpoint:
    found = open_file(path)
    if found.format not in ("pt", "safetensors"):
        found.close()
        raise UnsupportedCheckpoint(found.path, f"it is a shard of format {found.format}")
    return found


def _join(
    shards: Mapping[str, Checkpoint], expected: Mapping[str, Mapping[str, str]], index: str
) -> tuple[dict[str, Entry], dict[str, object], dict[str, str]]:
    """(entries, rest, shard of each key), shards and index found to say the same."""
    entries: dict[str, Entry] = {}
    rest: dict[str, object] = {}
    home: dict[str, str] = {}
    for shard, checkpoint in shards.items():
        for key, entry in checkpoint.entries.items():
            if key in home:
                raise DamagedCheckpoint(index, f"{key!r:.200} is in {home[key]} and in {shard}")
            home[key], entries[key] = shard, entry
        rest.update({f"{shard}/{key}": value for key, value in checkpoint.rest.items()})
    for shard, names in expected.items():
        for key, name in names.items():
            if home.get(key) != shard:
                raise DamagedCheckpoint(index, f"{name!r:.200} should be in {shard} and is not")
    extra = next((key for key, shard in home.items() if key not in expected[shard]), None)
    if extra is not None:
        raise DamagedCheckpoint(index, f"{home[extra]} has {extra!r:.200}, which it does not name")
    return entries, rest, home


def _plan(
    shards: Mapping[str, Checkpoint], index: Fixed, name: str, replace: Mapping[str, object]
) -> Plan:
    """A folder with the same shards; the index is the same file, since it names no bytes."""
    files: dict[str, Content] = {}
    regions: dict[str, Region] = {}
    place: dict[str, str] = {}
    owned: set[str] = set()
    for shard, checkpoint in shards.items():
        own = {
            key.removeprefix(f"{shard}/"): value
            for key, value in replace.items()
            if key.startswith(f"{shard}/")
        }
        inner = checkpoint.plan(own)
        files[shard] = inner.files[""]
        regions.update(inner.regions)
        place.update(dict.fromkeys(inner.regions, shard))
        owned |= inner.owned
    files[name] = index
    return Plan(files, regions, place, frozenset(owned), folder=True)
