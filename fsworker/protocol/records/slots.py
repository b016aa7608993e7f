"""What each slot of a worker is given, and in which words it is asked for.

It goes a long way: from options to the manifest, the launch meta, the request to the host and the
command line of the worker. So it is one value, which nobody on that way has to know field by field.
"""

from __future__ import annotations

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
