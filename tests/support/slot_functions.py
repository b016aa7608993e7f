"""Functions for tests of what slots are given: memory, devices, an environment, an event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

AT_IMPORT = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "FLEET_GPUS")}
_running = 0


def pid() -> int:
    return os.getpid()


def at_import(name: str) -> str | None:
    time.sleep(0.2)  # so that each slot is asked
    return AT_IMPORT[name]


def variables(*names: str) -> list[str | None]:
    found = [os.environ.get(name) for name in names]
    os.environ.update(dict.fromkeys(names, "spoilt"))
    return found


def grow(mib: int, step: int = 8) -> int:
    """Hold so much memory, by and by."""
    held = []
    for _ in range(0, mib, step):
        held.append(b"x" * (step << 20))
    return len(held) * step


def in_numbers(mib: int) -> int:
    import numpy

    return int(numpy.ones((mib, 1 << 17)).nbytes >> 20)


def children_grow(mib: int, count: int, seconds: float = 30.0) -> str:
    """Each of several processes holds so much, which alone none may not."""
    code = f"import time; held = b'x' * ({mib} << 20); print(flush=True); time.sleep({seconds})"
    found = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(count)
    ]
    for child in found:
        assert child.stdout is not None
        child.stdout.readline()
    time.sleep(seconds)
    return "held"


def note(path: str, name: str, seconds: float = 0.0) -> str:
    """Write down that it begins, with the pid, and that it ends."""
    with open(path, "a") as file:
        file.write(f"{name} {os.getpid()}\n")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.path.exists(f"{path}.go"):
        time.sleep(0.01)
    with open(path, "a") as file:
        file.write(f"/{name} {os.getpid()}\n")
    return name


async def together(count: int) -> int:
    """Wait until so many of us run in this process at once."""
    global _running
    _running += 1
    try:
        while _running < count:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        return os.getpid()
    finally:
        _running -= 1


async def nap(seconds: float, value: Any = None) -> Any:
    await asyncio.sleep(seconds)
    return value


async def note_async(path: str, name: str, seconds: float) -> str:
    with open(path, "a") as file:
        file.write(f"{name}\n")
    await asyncio.sleep(seconds)
    return name


async def stubborn(seconds: float) -> str:
    """Go on although it was told to end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            pass
    return "done"


async def block(seconds: float) -> str:
    await asyncio.sleep(0.1)
    time.sleep(seconds)
    return "blocked"


async def end_process() -> None:
    await asyncio.sleep(0.2)
    os._exit(7)


async def leave_task(path: str) -> str:
    """Start what outlives it, if nobody ends it."""

    async def late() -> None:
        await asyncio.sleep(1.0)
        with open(path, "w") as file:
            file.write("late")

    left = asyncio.get_running_loop().create_task(late())
    await asyncio.sleep(0)
    return str(left.done())


async def raise_late(kind: str) -> None:
    await asyncio.sleep(0)
    raise {"exit": SystemExit(3), "value": ValueError("no"), "memory": MemoryError()}[kind]
