"""JSON records: dataclass in, dataclass out, and errors that name the file and the field.

A decoder of our own, because it runs below the respawn wrapper, where only the standard library
may be counted on. It is strict in what a field holds and lenient in what it does not know:
unknown fields are ignored, so that a newer minor version stays readable; a newer major version is
refused.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
import typing
from functools import cache
from typing import Any, TypeVar

from fsworker.errors import FormatError

FORMAT_MAJOR, FORMAT_MINOR = 1, 0
FORMAT = f"{FORMAT_MAJOR}.{FORMAT_MINOR}"

T = TypeVar("T")

_LONE = re.compile("[\ud800-\udfff]")
"""Lone surrogates: JSON's escapes and Python have them, and no encoding."""


def encode(record: Any) -> bytes:
    """A record as JSON bytes with its format version first and a newline at the end.

    Lone surrogates, as file names that are no UTF-8 have them, are spelt out: `\\udcff`.
    """
    fields = {"format": FORMAT, **dataclasses.asdict(record)}
    text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    # Two backslashes: one would be JSON's own escape, and `decode` refuses what it stands for.
    text = _LONE.sub(lambda lone: f"\\\\u{ord(lone[0]):04x}", text)
    return text.encode("utf-8") + b"\n"


def decode(cls: type[T], data: bytes, path: str) -> T:
    """The record of class `cls` in `data`; `path` is what an error names.

    Raises FormatError for bytes that are not one JSON object, another major version, a field that
    is missing, and a value of the wrong type, not a finite number or with a lone surrogate.
    """
    return from_object(cls, load_object(data, path), path)


def load_object(data: bytes, path: str) -> dict[str, Any]:
    """The JSON object in `data`, its format version checked."""
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        detail = "it is empty" if not data.strip() else str(error)
        raise FormatError(f"{path} is not valid JSON: {detail}", path=path) from None
    if not isinstance(value, dict):
        raise FormatError(f"{path} must hold a JSON object, not {_kind(value)}", path=path)
    check_version(value.get("format", FORMAT), path)
    return value


def check_version(version: object, path: str) -> None:
    """Raise FormatError when `version` is of another major than ours, naming both."""
    major = str(version).partition(".")[0]
    if major != str(FORMAT_MAJOR):
        raise FormatError(
            f"{path} has format version {version}, this shardfleet reads version {FORMAT}: "
            "use the release that wrote it",
            path=path,
        )


def from_object(cls: type[T], value: dict[str, Any], path: str, prefix: str = "") -> T:
    """A dataclass from a decoded JSON object; `prefix` locates it within the file."""
    found: dict[str, Any] = {}
    kind: type = cls  # a bare type is hashable to the type checker, type[T] is not
    for name, hint, required in _fields(kind):
        if name in value:
            found[name] = _convert(hint, value[name], path, prefix + name)
        elif required:
            raise FormatError(f"{path}: field {prefix + name!r} is missing", path=path)
    return cls(**found)


@cache
def _fields(cls: type) -> list[tuple[str, Any, bool]]:
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return [
        (f.name, hints[f.name], f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(cls)
    ]


def _convert(hint: Any, value: Any, path: str, field: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _written(value, path, field)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, path, field)
    if origin is tuple and isinstance(value, list):
        if args[0] == float | None and (numbers := _numbers(value)) is not None:
            return numbers
        return tuple(_convert(args[0], v, path, f"{field}[{i}]") for i, v in enumerate(value))
    if origin is dict and isinstance(value, dict):
        named = ((_written(k, path, field), v) for k, v in value.items())
        return {k: _convert(args[1], v, path, f"{field}.{k}") for k, v in named}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return from_object(hint, value, path, field + ".")
    if _is_plain(hint, value):
        return float(value) if hint is float else _written(value, path, field)
    want = getattr(origin or hint, "__name__", str(hint))
    raise FormatError(f"{path}: field {field!r} must be {want}, not {_kind(value)}", path=path)


def _numbers(value: list[Any]) -> tuple[float | None, ...] | None:
    """Numbers and nulls at once, for there may be millions; None where each has to be looked at."""
    kinds = set(map(type, value))
    if not kinds <= {float, int, type(None)}:
        return None
    found = [v for v in value if v is not None]
    if found and max(abs(min(found)), abs(max(found))) > sys.float_info.max:
        return None
    return tuple(None if v is None else float(v) for v in value)


def _written(value: Any, path: str, field: str) -> Any:
    """`value`, when all text in it can be written again."""
    within = [value]
    while within:  # not by recursion: what is nested as deep as JSON may be would end it
        one = within.pop()
        if isinstance(one, str) and not one.isascii() and _LONE.search(one):
            raise FormatError(
                f"{path}: field {field!r} holds {one!r:.40}, a text with a lone surrogate, which "
                "cannot be written: leave that out",
                path=path,
            )
        if isinstance(one, dict):
            within += [*one, *one.values()]
        elif isinstance(one, list):
            within += one
    return value


def _is_plain(hint: Any, value: Any) -> bool:
    if hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max  # also of an int without end
    return type(value) is hint


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.40}"


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")
