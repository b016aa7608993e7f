"""How long to wait before looking again: briefly while something is about to come, then longer."""

from __future__ import annotations

FIRST, FACTOR = 0.001, 1.25
SOON, LATER = 0.05, 0.25
"""Longest pauses in seconds: in the first `PATIENT` seconds of waiting, and after."""

PATIENT = 10.0


class Pace:
    """Pauses that grow until `reset`."""

    def __init__(self) -> None:
        self._pause = FIRST
        self._waited = 0.0

    def reset(self) -> None:
        """Something came, or was asked for: look again soon."""
        self._pause, self._waited = FIRST, 0.0

    def next(self) -> float:
        """The next pause, in seconds."""
        pause = self._pause
        self._waited += pause
        longest = SOON if self._waited < PATIENT else LATER
        self._pause = min(pause * FACTOR, longest)
        return pause
