"""What a group may ask for: merge rules with their parameters, and what becomes of keys.

Here and not beside the rules, so that who makes or shows a group can tell what is wrong with it
without what merges. What the rules do is `fedavg`'s.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsworker.errors import spelt

ABOVE_ZERO = math.ulp(0.0)
BELOW_ONE = math.nextafter(1, 0)
_LONG = 10**15
"""From here on a number is told by its magnitude."""


@dataclass(frozen=True)
class Param:
    """A parameter of a rule: its default and what it may be, `low` and `high` included.

    `whole` wants an integer. A default of None is worked out from the number of participants.
    """

    default: float | None
    low: float = 0.0
    high: float = math.inf
    whole: bool = False

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, as the end of a sentence; None when it may be."""
        if value is None and self.default is None:
            return None
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or value is None or not self.low <= value <= self.high:  # type: ignore[operator]
            return self._range
        if abs(value) > sys.float_info.max:  # type: ignore[arg-type]
            return "must be finite"
        if self.whole and value != int(value):  # type: ignore[call-overload]
            return "must be a whole number"
        return None

    @property
    def _range(self) -> str:
        low = "above 0" if self.low == ABOVE_ZERO else f"at least {self.low:g}"
        if math.isinf(self.high):
            return f"must be {low}"
        below = self.high in (BELOW_ONE, BELOW_ONE / 2)
        high = f"below {math.nextafter(self.high, 2):g}" if below else f"at most {self.high:g}"
        return f"must be {low} and {high}"


_DECAY = Param(0.9, 0, BELOW_ONE)
_F = Param(None, 0, whole=True)


def _adaptive(lr: float, beta1: float, beta2: float | None) -> dict[str, Param]:
    params = {"lr": Param(lr, ABOVE_ZERO), "beta1": Param(beta1, 0, BELOW_ONE)}
    if beta2 is not None:
        params["beta2"] = Param(beta2, 0, BELOW_ONE)
    return {**params, "tau": Param(1e-3, ABOVE_ZERO)}


RULES: Mapping[str, Mapping[str, Param]] = {
    "fedavg": {},
    "fedavgm": {"beta": _DECAY, "lr": Param(1.0, ABOVE_ZERO)},
    "fedadagrad": _adaptive(0.1, 0.0, None),
    "fedadam": _adaptive(0.1, 0.9, 0.99),
    "fedyogi": _adaptive(0.01, 0.9, 0.99),
    "diloco": {"lr": Param(0.7, ABOVE_ZERO), "momentum": _DECAY},
    "fedbuff": {"lr": Param(1.0, ABOVE_ZERO)},
    "median": {},
    "trimmed-mean": {"beta": Param(0.2, 0, BELOW_ONE / 2)},
    "krum": {"f": _F},
    "multi-krum": {"f": _F, "m": Param(None, 1, whole=True)},
}
"""The merge rules and their parameters."""

ACTIONS = ("rule", "mean", "max", "first", "base")
"""What can become of a key."""

LORA = ("product", "factors")
"""What can be averaged of low-rank adapters."""


def rule_problem(rule: str, options: Mapping[str, object]) -> str | None:
    """What is wrong with a rule that is asked for, by field; None when all is well."""
    if rule not in RULES:
        return f"field 'rule': there is no merge rule {rule!r:.40} (there are: {', '.join(RULES)})"
    known = RULES[rule]
    for name, value in options.items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            return f"field 'options': the rule {rule} has no option {name!r:.40}: {has}"
        if (wrong := known[name].problem(value)) is not None:
            return f"field 'options': {name} = {value!r:.40} of the rule {rule} {wrong}"
    return None


def tolerated(count: int, options: Mapping[str, Any]) -> int:
    """How many hostile ones of `count` Krum bears: its `f`, or the most that there may be."""
    given = options.get("f")
    return max(0, (count - 3) // 2) if given is None else int(given)


def trimmed(count: int, beta: float) -> int:
    """⌊β · count⌋, where 0.29 of 100 is 29 though the product of floats is below it."""
    return math.floor(beta * count + 1e-9)


def count_problem(rule: str, options: Mapping[str, Any], count: int) -> str | None:
    """Why a rule cannot be applied to `count` participants; None when it can.

    None too where it can be applied to nobody: that is told by `rule_problem`.
    """
    if rule_problem(rule, options) is not None:
        return None
    if rule in ("krum", "multi-krum"):
        return _krum_problem(options, count)
    if rule == "trimmed-mean":
        beta = options.get("beta", RULES[rule]["beta"].default)
        if 2 * trimmed(count, beta) >= count:
            return f"trimming {beta} at each end leaves nothing of {count} participants"
    return None


def _krum_problem(options: Mapping[str, Any], count: int) -> str | None:
    """n ≥ 2f + 3, and for Multi-Krum m ≤ n."""
    f, m = tolerated(count, options), options.get("m")
    if count < 2 * f + 3:
        hostile, needed = (str(f), str(2 * f + 3)) if f < _LONG else (f"{f:g}", "2f + 3")
        words = f"krum against {hostile} hostile participants needs {needed} of them"
        return f"{words}, here are {count}"
    if m is not None and m > count:
        return f"multi-krum is to merge the {m:g} best of only {count} participants"
    return None


def keys_problem(keys: Mapping[str, str], lora: str | None) -> str | None:
    """What is wrong with what is to become of keys, by field; None when all is well."""
    for pattern, action in keys.items():
        if spelt(pattern) != pattern:
            return f"field 'keys': pattern {pattern!r:.80} is no text: a key cannot be like that"
        if action not in ACTIONS:
            there = ", ".join(ACTIONS)
            return (
                f"field 'keys': pattern {pattern!r:.80}: there is no action {action!r:.40} "
                f"(there are: {there})"
            )
    if lora not in (None, *LORA):
        return f"field 'lora' is {lora!r:.40}, which is none of: {', '.join(LORA)}"
    return None
