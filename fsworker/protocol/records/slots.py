"""What each slot of a worker is given, and in which words it is asked for.

It goes a long way: from options to the manifest, the launch meta, the request to the host and the
command line of the worker. So it is one value, which nobody on that way has to know field by field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotTerms:
    """What a slot gets; None: nothing is said.

    `memory` is the limit of its memory in bytes. `gpus` are the devices that the worker's slots
    share out: a number, or names as a device mask holds them; `per_gpu` slots may share one.
    `coroutines` is how many calls of `async def` functions it executes at once.
    """

    memory: int | None = None
    gpus: str | None = None
    per_gpu: int | None = None
    coroutines: int = 1

    def argv(self) -> list[str]:
        """The options of `fsworker run` that say the same."""
        said = {
            "--slot-mem": self.memory,
            "--gpus": self.gpus,
            "--slots-per-gpu": self.per_gpu,
            "--slot-async": self.coroutines if self.coroutines > 1 else None,
        }
        return [word for k, v in said.items() if v is not None for word in (k, str(v))]


LEAST_MEMORY, MOST_MEMORY = 1 << 20, 1 << 62
MOST_COROUTINES = 100
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size(value: object) -> int:
    """Bytes from a number, or from `512M`, `1.5G`, `2GiB`: units are powers of 1,024.

    ValueError with a sentence that fits behind the name of what was set.
    """
    found = _SIZE.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if found is None:
        raise ValueError(f"{value!r} is not a size: give bytes, 512M, 1.5G or 2GiB")
    count = float(found[1]) * 1024 ** _POWER[found[2].lower()]
    if count < LEAST_MEMORY:
        raise ValueError(f"{value!r:.40} cannot be: the least is 1M")
    if count >= MOST_MEMORY:
        raise ValueError(f"{value!r:.40} cannot be: it must be less than {MOST_MEMORY >> 40}T")
    return int(count)


def human_size(count: int) -> str:
    """Bytes as people write them: `512 MiB`, `1.5 GiB`."""
    amount, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, bigger
    return f"{amount:.4g} {unit}"


def gpus(value: object) -> str:
    """The devices that slots share out, as one text: a number, or a mask. ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        value = ",".join(value)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(
            f"{value!r} names no GPUs: give a number, or names as in 0,1 or GPU-…,MIG-…"
        )
    return ",".join(part.strip() for part in value.split(","))
