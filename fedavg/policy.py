"""What becomes of each entry of a checkpoint: which are merged by the rule, which by other means.

A rule is made for weights. Counters must not be scaled, masks not be averaged, the second moments
of an optimiser not be moved below zero by a server's step: so each key gets an action, by its name
and type. Pure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from fedavg.formats.base import Entry
from fsworker.errors import UsageError

Action = Literal["rule", "mean", "max", "first", "base"]
"""rule: the rule itself. mean: what the rule averages with, without a server's step or state (the
rule itself where it has none). max: the largest. first: the first participant's. base: as it is in
the model that the round started from."""

ACTIONS: tuple[Action, ...] = get_args(Action)
Lora = Literal["product", "factors"]

FLOAT_DTYPES = frozenset({"float64", "float32", "bfloat16", "float16"})
INTEGER_DTYPES = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}
)

STATISTICS = ("*running_mean", "*running_var")
"""Buffers that describe data: they are averaged, and no server's step moves them."""

_COUNTERS = ("num_batches_tracked", "step", "steps", "*_step", "*_steps", "count", "counter*",
             "*_count", "*_counter", "episode", "episodes", "epoch", "epochs")  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """Patterns (as in a shell, on the whole key) with their actions, the first that fits wins.

    `lora` says what to merge of low-rank adapters: "product" the matrix that the two factors stand
    for, "factors" each factor by itself; None refuses them.
    """

    patterns: tuple[tuple[str, Action], ...] = ()
    lora: Lora | None = None

    def action(self, entry: Entry) -> Action | None:
        """The action for an entry; None when nothing says what to do with its type."""
        if (deciding := self.deciding(entry)) is not None:
            return deciding[1]
        if entry.dtype in FLOAT_DTYPES:
            return _of_float(entry)
        if entry.dtype in INTEGER_DTYPES:
            return "max" if _is_counter(entry) else "first"
        return None

    def deciding(self, entry: Entry) -> tuple[str, Action] | None:
        """The pattern, with its action, that decides about an entry; None where none fits.

        One that would average numbers which are no floats is passed over for them, so that
        `*=mean` can be said of a whole model.
        """
        for pattern, action in self.patterns:
            fits = entry.dtype in FLOAT_DTYPES or action not in ("rule", "mean")
            if fits and fnmatch.fnmatchcase(entry.key, pattern):
                return pattern, action
        return None

    def takes_largest(self, key: str, value: object) -> bool:
        """Whether of a leaf that is no tensor the largest is kept.

        That is so for whole numbers, but not for those in lists: they belong to each other. A list
        and a dict whose keys are numbers look alike here, so that below one only counters by their
        names are taken (`state.0.step`).
        """
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        if (action := self.leaf_action(key)) is not None:
            return action == "max"
        return _is_called_counter(key) or not any(part.isdigit() for part in key.split("."))

    def leaf_action(self, key: str) -> Action | None:
        """What a pattern says of a leaf that is no tensor; None where none fits."""
        deciding = self.deciding_leaf(key)
        return None if deciding is None else deciding[1]

    def deciding_leaf(self, key: str) -> tuple[str, Action] | None:
        """The same with its pattern."""
        return next((p for p in self.patterns if fnmatch.fnmatchcase(key, p[0])), None)

    def record(self) -> dict[str, object]:
        """For a plan; `policy_from` reads it."""
        return {"patterns": [list(p) for p in self.patterns], "lora": self.lora}


def policy_from(patterns: Iterable[tuple[str, str]], lora: str | None = None) -> Policy:
    """A policy from what a user or a plan wrote. UsageError for an unknown action."""
    checked = []
    for pattern, action in patterns:
        if action not in ACTIONS:
            raise UsageError(
                f"key pattern {pattern!r}: there is no action {action!r} "
                f"(there are: {', '.join(ACTIONS)})"
            )
        checked.append((pattern, action))
    if lora not in (None, *get_args(Lora)):
        raise UsageError(f"lora is {lora!r}, which is none of: {', '.join(get_args(Lora))}")
    return Policy(tuple(checked), lora)  # type: ignore[arg-type]


def actions(policy: Policy, entries: Mapping[str, Entry]) -> dict[str, Action | None]:
    """The action of each entry that holds bytes of its own, in their order."""
    return {k: policy.action(e) for k, e in entries.items() if e.owner == k}


def _of_float(entry: Entry) -> Action:
    if any(fnmatch.fnmatchcase(entry.key, pattern) for pattern in STATISTICS):
        return "mean"
    parts = entry.key.split(".")
    if any("optim" in part for part in parts):
        # The optimiser of a participant: `step` is a counter though torch keeps it as a float.
        return "max" if parts[-1] == "step" else "mean"
    return "rule"


def _is_counter(entry: Entry) -> bool:
    if entry.dtype == "bool":
        return False
    return entry.nbytes == entry.itemsize or _is_called_counter(entry.key)


def _is_called_counter(key: str) -> bool:
    return any(fnmatch.fnmatchcase(key.split(".")[-1], name) for name in _COUNTERS)
