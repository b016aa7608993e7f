"""What a checkpoint says about the training behind it: episodes and rewards, counted, not believed.

A job that reports twenty episodes and saved three has done three. All forms are read without torch:
a `.json` by its keys, a `.pt` by the plain values at its top, a `.safetensors` by its metadata, a
folder by its index. Keys are those that training scripts write: `episodes_completed`, `episodes` or
`episode`, `rewards`, `total_reward`, `samples`.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsworker.jobs import pickled
from fsworker.jobs.pickled import Unreadable
from fsworker.protocol.fsfolders import Entry

COUNTS = ("episodes_completed", "episodes_done", "episodes", "episode")
SAMPLES = ("samples", "num_samples", "sample_count")
MOST_JSON = 256 << 20
_INDEX = re.compile(r"([^/]+\.)?index\.json|checkpoint\.json")


@dataclass(frozen=True)
class Summary:
    """What a checkpoint holds besides weights; None and empty where it does not say."""

    episodes: int | None = None
    rewards: tuple[float | None, ...] = ()
    total: float | None = None
    samples: float | None = None


@dataclass(frozen=True)
class Found:
    """A checkpoint in a folder: its name there."""

    name: str
    index: str | None = None
    """The name of the index in it, where it is a folder."""


def find(entries: list[Entry], wanted: str) -> Found | None:
    """The checkpoint among the top entries of a folder: the one that was asked for, else the one
    that is called `checkpoint` with another ending, if there is one alone."""
    top = {e.name: e.kind == "folder" for e in entries if "/" not in e.name and e.kind != "other"}
    others = [name for name in top if name.partition(".")[0] == "checkpoint"]
    name = wanted if wanted in top else others[0] if len(others) == 1 else None
    if name is None:
        return None
    inside = (e.name.removeprefix(f"{name}/") for e in entries if e.name.startswith(f"{name}/"))
    index = next((n for n in sorted(inside) if _INDEX.fullmatch(n)), None)
    return Found(name, (index or "") if top[name] else None)


def read(path: str, index: str | None = None) -> Summary:
    """The summary of the checkpoint at `path`, of a folder by its index.

    Unreadable says why it is none; raises OSError.
    """
    if index is not None:
        return _of(_folder_index(path, index))
    if path.endswith(".json"):
        return _of(_read_json(path))
    if path.endswith(".safetensors"):
        return _of(_safetensors(path))
    return _of(pickled.read(path))


def _read_json(path: str) -> Any:
    with open(path, "rb") as file:
        data = file.read(MOST_JSON + 1)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not valid JSON: {error}") from None


def _safetensors(path: str) -> Any:
    """The metadata in the header; complete only if the file is as long as the header says."""
    with open(path, "rb") as file:
        head = file.read(8)
        size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= size <= MOST_JSON:
            raise Unreadable("it does not begin as a safetensors file")
        try:
            header = json.loads(file.read(size))
            ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise Unreadable("its header cannot be read") from None
        if os.fstat(file.fileno()).st_size != 8 + size + max(ends, default=0):
            raise Unreadable("it is not as long as its header says")
    return header.get("__metadata__")


def _folder_index(path: str, index: str) -> Any:
    if not index:
        raise Unreadable("it is a folder without an index (…index.json)")
    value = _read_json(os.path.join(path, index))
    return value.get("metadata", value) if isinstance(value, dict) else None


def _of(value: Any) -> Summary:
    if not isinstance(value, Mapping):
        return Summary()
    rewards = _list(value.get("rewards"))
    count = next((n for key in COUNTS if (n := _whole(value.get(key))) is not None), None)
    weighed = (_number(value.get(key)) for key in SAMPLES)
    return Summary(
        len(rewards) if count is None and rewards else count,
        tuple(_number(reward) for reward in rewards),
        _number(value.get("total_reward")),
        next((n for n in weighed if n is not None and n >= 0), None),
    )


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):  # metadata of safetensors are texts
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return list(value) if isinstance(value, (list, tuple)) else []


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


def new_episodes(before: Summary | None, after: Summary, asked: int, *, complete: bool) -> int:
    """How many episodes a process added to what it started from.

    Scripts count in two ways: only their own episodes, or all since the first. A process that
    ended well did what it was asked for, so its count tells which; one that was cut short counts
    from the first where its rewards begin with those that it started from. Never more than asked.
    """
    count = after.episodes
    if count is None:
        return asked if complete else 0
    earlier = before.episodes if before is not None and before.episodes is not None else 0
    if complete and count in (asked, asked + earlier):
        return asked
    old = before.rewards if before is not None else ()
    goes_on = bool(old) and after.rewards[: len(old)] == old and count >= earlier
    return max(0, min(asked, count - earlier if goes_on else count))


def new_rewards(after: Summary, count: int) -> tuple[float | None, ...]:
    """The rewards of the last `count` episodes."""
    return after.rewards[-count:] if count else ()
