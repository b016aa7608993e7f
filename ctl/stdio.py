"""The standard streams, whatever they are: closed, without a reader, in ASCII, on a full disk.

None of that deserves a traceback, and closed ones or a name that cannot be printed are no reason
for a verb to fail.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def prepare() -> None:
    """Open what is closed, and let no character be one that cannot be printed."""
    # A file of ours, or a child's, must never get a descriptor that others take for a stream.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = _nothing()
    if sys.stderr is None:
        sys.stderr = _nothing()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nothing() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


def complain(text: str) -> None:
    """A line on stderr; where even that cannot be written there is nobody left to tell."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        abandon(sys.stderr)


def abandon_stdout() -> None:
    """Drop what stdout could not take."""
    abandon(sys.stdout)


def abandon(stream: TextIO) -> None:
    """Drop what a stream could not take: Python tries again at its end, and complains there."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return  # not a stream of the system: a test took its place
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
