"""What a task or a job needs of the worker that executes it, and what a worker offers. Pure.

A need is met by a worker as a whole: it has all the labels, and its inventory at least so much. It
reserves nothing: tasks that run beside each other on a worker share what it has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fsworker.protocol.records.run import Heartbeat
from fsworker.protocol.records.slots import human_size, size

DIGEST_LENGTH = 12
MOST_LABELS, MOST_LABEL = 32, 100
MOST_COUNT = 1_000_000
KEYS = ("labels", "cpus", "gpus", "memory")


@dataclass(frozen=True)
class Needs:
    """What a task or job needs; empty and 0 stand for nothing asked.

    All of `labels`, at least so many `cpus` and `gpus`, and `memory` bytes.
    """

    labels: tuple[str, ...] = ()
    cpus: int = 0
    gpus: int = 0
    memory: int = 0

    def __post_init__(self) -> None:
        # Equal needs are equal however they were written.
        object.__setattr__(self, "labels", tuple(sorted(set(self.labels))))

    def __bool__(self) -> bool:
        return bool(self.labels or self.cpus or self.gpus or self.memory)

    def fields(self) -> dict[str, Any]:
        """What is asked for, without the rest; this is what a batch's meta holds."""
        found = {key: getattr(self, key) for key in KEYS if getattr(self, key)}
        if self.labels:
            found["labels"] = list(self.labels)
        return found

    @cached_property
    def digest(self) -> str:
        """What stands for these needs in the name of a batch; empty for none."""
        if not self:
            return ""
        text = json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]

    def __str__(self) -> str:
        told = [f"label {label}" for label in self.labels]
        told += [counted(getattr(self, key), key) for key in ("cpus", "gpus") if getattr(self, key)]
        told += [f"memory {human_size(self.memory)}"] if self.memory else []
        return ", ".join(told) or "nothing"

    def problem(self) -> str | None:
        """What no needs can be; None when all is well."""
        if len(self.labels) > MOST_LABELS:
            return f"{len(self.labels)} labels are more than {MOST_LABELS}"
        for label in self.labels:
            if (why := label_problem(label)) is not None:
                return why
        for key in ("cpus", "gpus"):
            count = getattr(self, key)
            if type(count) is not int or not 0 <= count <= MOST_COUNT:
                return f"{key} must be a whole number from 0 to {MOST_COUNT}, not {count!r:.40}"
        if type(self.memory) is not int or not 0 <= self.memory < 1 << 62:
            return f"memory must be bytes from 0 up, not {self.memory!r:.40}"
        return None


def counted(count: int, key: str) -> str:
    """How many there are of something whose plural ends in s: `1 gpu`, `2 gpus`."""
    return f"{count} {key.removesuffix('s') if count == 1 else key}"


def label_problem(label: object) -> str | None:
    """Why something cannot be a label; None when it can."""
    if not isinstance(label, str):
        return f"a label must be a text, not {label!r:.40}"
    if not label or label.strip() != label or "," in label or not label.isprintable():
        return f"{label!r:.40} cannot be a label: give a word without commas"
    if len(label) > MOST_LABEL:
        return f"the label {label!r:.40} has more than {MOST_LABEL} characters"
    return None


def labels_of(value: object) -> tuple[str, ...]:
    """Labels from a text with commas between them, or from a list. ValueError."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, Iterable) or isinstance(words, (bytes, Mapping)):
        raise ValueError(f"labels must be a list of texts, not {value!r:.60}")
    found = [word.strip() if isinstance(word, str) else word for word in words]
    for label in found:
        if label != "" and (why := label_problem(label)) is not None:
            raise ValueError(why)
    return tuple(dict.fromkeys(filter(None, found)))


def read_needs(value: object) -> Needs:
    """Needs from a map of `labels`, `cpus`, `gpus` and `memory` (as 16G), or as they are.

    ValueError names what cannot be.
    """
    if isinstance(value, Needs):
        found = value
    elif isinstance(value, Mapping):
        if unknown := sorted(set(map(str, value)) - set(KEYS)):
            raise ValueError(f"there is no need {unknown[0]!r}: there are {', '.join(KEYS)}")
        memory = value.get("memory") or 0
        found = Needs(
            labels_of(value.get("labels") or ()),
            value.get("cpus") or 0,
            value.get("gpus") or 0,
            0 if str(memory).strip() == "0" else size(memory),
        )
    else:
        raise ValueError(f"needs must be a map of {', '.join(KEYS)}, not {value!r:.60}")
    if (why := found.problem()) is not None:
        raise ValueError(why)
    return found


def parse_needs(words: Iterable[str]) -> Needs:
    """Needs from words such as `label=a100`, `gpus=1` and `memory=16G`. ValueError."""
    found: dict[str, Any] = {"labels": []}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(f"{word!r} is none: give label=NAME, cpus=N, gpus=N or memory=SIZE")
        if key in ("label", "labels"):
            found["labels"] += labels_of(value)
        elif key in ("cpus", "gpus") and not (value.isascii() and value.isdigit()):
            raise ValueError(f"{word!r}: give {key} as a whole number")
        else:
            # Cut: Python refuses to read thousands of digits, and so many are too large anyway.
            found[key] = int(value.lstrip("0")[:40] or "0") if key in ("cpus", "gpus") else value
    return read_needs(found)


def of_meta(meta: Mapping[str, Any]) -> Needs | None:
    """The needs in a batch's meta; None for what is none."""
    try:
        return read_needs(meta.get("needs") or {})
    except ValueError:
        return None


@dataclass(frozen=True)
class Offer:
    """What a worker offers. `memory` is in bytes, None where it is not known.

    `tasks` and `jobs`: whether it has slots for them. A task sees `slot_gpus` devices and may use
    `slot_memory` bytes where the slots share them out or are limited (None: what the worker has).
    """

    labels: frozenset[str] = frozenset()
    cpus: int = 0
    gpus: int = 0
    memory: int | None = None
    tasks: bool = True
    jobs: bool = True
    slot_gpus: int | None = None
    slot_memory: int | None = None

    def lacks(self, needs: Needs, *, job: bool = False) -> list[str]:
        """What keeps this worker from serving a task (or job) of these needs; nothing if it may."""
        lacking = [] if (self.jobs if job else self.tasks) else [f"slots for {_kind(job)}"]
        lacking += [f"label {label}" for label in needs.labels if label not in self.labels]
        gpus, memory = self.gpus, self.memory
        if not job:
            gpus = gpus if self.slot_gpus is None else self.slot_gpus
            memory = memory if self.slot_memory is None else self.slot_memory
        if self.cpus < needs.cpus:
            lacking.append(f"{counted(needs.cpus, 'cpus')} (has {self.cpus})")
        if gpus < needs.gpus:
            where = "has" if job or self.slot_gpus is None else "a slot has"
            lacking.append(f"{counted(needs.gpus, 'gpus')} ({where} {gpus})")
        if needs.memory and (memory is None or memory < needs.memory):
            has = "unknown" if memory is None else f"has {human_size(memory)}"
            lacking.append(f"memory {human_size(needs.memory)} ({has})")
        return lacking

    def __str__(self) -> str:
        told = [f"labels {', '.join(sorted(self.labels))}"] if self.labels else []
        told += [counted(self.cpus, "cpus"), counted(self.gpus, "gpus")]
        told += [f"memory {human_size(self.memory)}"] if self.memory else []
        return ", ".join(told)


def of_inventory(labels: Iterable[str], inventory: Mapping[str, Any]) -> Offer | None:
    """What a worker of this inventory offers; None for one that does not route by needs.

    Workers of before have no `slots` in their inventory, and pass over batches that need anything.
    """
    slots, jobs = (_count(inventory, key) for key in ("slots", "job_slots"))
    if slots is None or jobs is None:
        return None
    memory = _count(inventory, "memory_mb")
    parts = inventory.get("slot_gpus")
    shared = isinstance(parts, list) and all(isinstance(part, str) for part in parts) and parts
    return Offer(
        frozenset(labels),
        _count(inventory, "cpus") or 0,
        _count(inventory, "gpu_count") or 0,
        None if memory is None else memory << 20,
        slots > 0,
        jobs > 0,
        min(len(part.split(",")) if part else 0 for part in parts or ()) if shared else None,
        _count(inventory, "slot_memory"),
    )


def of_beat(beat: Heartbeat) -> Offer | None:
    """What the worker offers whose heartbeat this is."""
    return of_inventory(beat.labels, beat.inventory)


def _count(inventory: Mapping[str, Any], key: str) -> int | None:
    value = inventory.get(key)
    return value if type(value) is int and value >= 0 else None


def _kind(job: bool) -> str:
    return "jobs" if job else "tasks"
