"""Which GPUs a slot sees: each its own part of those that the worker may use.

Two processes that believe a device is theirs end in out-of-memory errors, so parts never overlap
unless sharing was asked for. Devices are told apart by their place in the mask and passed on as
they are written there: indices, UUIDs and MIG identifiers alike. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsworker.errors import Refused
from fsworker.inventory.grants import MASKS, OVERRIDE, visible
from fsworker.protocol.records.slots import SlotTerms


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a worker, and in which variables their masks are told.

    `source` is the option or variable that named them. Without any, `names` is empty; then slots
    are told to see none if somebody said so (`said`), else nothing.
    """

    names: tuple[str, ...] = ()
    variables: tuple[str, ...] = MASKS[:1]
    source: str = ""
    said: bool = False


def find(asked: str | None, environ: Mapping[str, str]) -> Devices:
    """The devices that an option, FLEET_GPUS or a mask in the environment names, in this order.

    A number means so many: the first ones of the mask where there is one. Refused for more than
    that, and for a device that is named twice.
    """
    present = tuple(name for name in MASKS if name in environ)
    mask = _parse(environ[present[0]], present[0]) if present else None
    variables = present[:1] or MASKS[:1]
    for text, source in ((asked, "--gpus"), (environ.get(OVERRIDE), OVERRIDE)):
        if text is None or not text.strip():
            continue
        if not (text.isascii() and text.isdigit()):
            return Devices(_parse(text, source), variables, source, said=True)
        count = int(text)
        known = mask if mask is not None else tuple(map(str, range(count)))
        if count > len(known):
            raise Refused(
                f"{source} asks for {count} GPUs, but {present[0]} has {len(known)}: "
                "ask for fewer, or name them"
            )
        return Devices(known[:count], variables, source, said=True)
    return Devices(mask, variables, present[0]) if mask else Devices()


def _parse(text: str, source: str) -> tuple[str, ...]:
    names = visible(text)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Refused(f"{source} names the GPU {twice} twice: name each once")
    return names


def share(found: Devices, slots: int, per_gpu: int | None) -> list[dict[str, str]]:
    """The environment of each slot. Refused for more slots than devices, unless they may share."""
    count = len(found.names)
    if not count:
        return [_environment(found, ()) if found.said else {} for _ in range(slots)]
    if slots > count * (per_gpu or 1):
        some = f"{count} GPU{'s' if count > 1 else ''} ({found.source}: {','.join(found.names)})"
        more = f", {per_gpu} slots each" if per_gpu else ""
        raise Refused(
            f"{slots} slots do not fit on {some}{more}: lower the concurrency, let slots share "
            f"with --slots-per-gpu {-(-slots // count)}, or give --gpus 0 if they need none"
        )
    return [_environment(found, _part(found.names, slots, i)) for i in range(slots)]


def _part(names: Sequence[str], slots: int, number: int) -> Sequence[str]:
    """The devices of slot `number`: all are given out, and none twice unless they must be."""
    count = len(names)
    first = number * count // slots
    return names[first : max(first + 1, (number + 1) * count // slots)]


def _environment(found: Devices, names: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys((*found.variables, OVERRIDE), ",".join(names))


def inventory(found: Devices, parts: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """What a heartbeat says about them; nothing where nobody said anything of them."""
    if not found.names:
        return {"gpu_count": 0} if found.said else {}
    slots = [part[OVERRIDE] for part in parts]
    return {"gpu_count": len(found.names), "gpus": list(found.names), "slot_gpus": slots}


def start_method(asked: str, found: Devices) -> str:
    """How slots start: a mask acts before the functions are imported, and a fork comes after."""
    if asked != "auto":
        return asked
    return "spawn" if found.names else "fork"


def plan(
    terms: SlotTerms, slots: int, environ: Mapping[str, str]
) -> tuple[Devices, list[dict[str, str]]]:
    """(the devices of a worker, the environment of each of its slots)."""
    found = find(terms.gpus, environ)
    return found, share(found, slots, terms.per_gpu)
