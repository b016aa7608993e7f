"""Tasks that leave a trace of every execution, so that a test can tell results from executions."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path


def count(folder: str, index: int, seconds: float) -> int:
    """Do `seconds` of work; each process notes in a file of its own what it began and finished."""
    _note(folder, f"+{index}")
    time.sleep(seconds)
    _note(folder, f"-{index}")
    return 3 * index


def _note(folder: str, word: str) -> None:
    name = f"{os.environ['FLEET_HOST']}.{os.environ['FLEET_INCARNATION']}.{os.getpid()}"
    with open(os.path.join(folder, name), "a") as file:
        file.write(word + "\n")


def executions(folder: Path, sign: str = "+") -> Counter[int]:
    """How often each task was begun (`+`) or finished (`-`), over all processes."""
    words = (word for path in folder.iterdir() for word in path.read_text().split())
    return Counter(int(word[1:]) for word in words if word[0] == sign)


def hosts_of(folder: Path, index: int) -> list[str]:
    """The hosts whose processes have begun a task, in no order."""
    paths = [p for p in folder.iterdir() if f"+{index}" in p.read_text().split()]
    return [path.name.partition(".")[0] for path in paths]
