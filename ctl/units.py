"""Text that people write for a duration, a yes or a no, and `K=V`; one reading for all sources.

Flags, environment variables and `fleet.toml` take the same spellings because they all end here.
Each function raises ValueError with a sentence that fits behind the name of what was set.
"""

from __future__ import annotations

import math
import re

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_YES, _NO = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def duration(value: object) -> float:
    """Seconds from `90`, `1.5`, `90s`, `2h` or `1h30m`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if math.isfinite(value) and value >= 0:
            return float(value)
        raise ValueError(f"{value} is not a duration: give seconds, 90s, 10m, 2h or 1h30m")
    text = str(value).strip().lower()
    parts = _PART.findall(text)
    plain = len(parts) == 1
    joined = re.sub(r"\s", "", text) == "".join(n + u for n, u in parts)
    if not parts or not joined or (not plain and not all(u for _, u in parts)):
        raise ValueError(f"{value!r} is not a duration: give seconds, 90s, 10m, 2h or 1h30m")
    return sum(float(n) * _SECONDS[u or "s"] for n, u in parts)


def positive(value: object) -> float:
    """A duration above zero."""
    seconds = duration(value)
    if seconds <= 0:
        raise ValueError(f"{value!r} must be above zero")
    return seconds


def count(value: object) -> int:
    """A whole number from 1 up."""
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{value!r} is not a whole number from 1 up")
    return int(text)


def whole(value: object) -> int:
    """A whole number from 0 up."""
    if str(value).strip() == "0":
        return 0
    try:
        return count(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a whole number from 0 up") from None


def yes_no(value: object) -> bool:
    """A truth value from true, yes, on, 1 and their opposites."""
    text = str(value).strip().lower()
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise ValueError(f"{value!r} is neither yes nor no")


def env_pair(text: str) -> tuple[str, str]:
    """(name, value) from `NAME=value`; the value may be empty and may hold `=`."""
    name, equals, value = text.partition("=")
    if not equals or not _ENV_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not NAME=value")
    if "\0" in value:
        raise ValueError(f"the value of {name} holds a NUL byte")
    return name, value


def human(seconds: float | None) -> str:
    """A duration for a table: 3.2s, 4m10s, 2h05m, 3d04h; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
