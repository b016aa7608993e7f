"""The messages of one side that are not answered yet, shared by its line and the application."""

from __future__ import annotations

import threading

from fsworker.agent.parcels import Parcel


class Outgoing:
    """Parcels in the order of sending."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parcels: list[Parcel] = []

    def __bool__(self) -> bool:
        return bool(self._parcels)

    def add(self, parcel: Parcel) -> None:
        """One more."""
        with self._lock:
            self._parcels.append(parcel)

    def all(self) -> list[Parcel]:
        """Those that there are now."""
        with self._lock:
            return list(self._parcels)

    def cancel(self, kind: str, about: str | None = None) -> None:
        """Mark these (None: about whatever) to be taken back."""
        with self._lock:
            for parcel in self._of(kind, about):
                parcel.cancelled = True

    def forget(self, parcel: Parcel) -> None:
        """It is not sent again; what lies there of it may be taken."""
        with self._lock:
            if parcel in self._parcels:
                self._parcels.remove(parcel)

    def waiting(self, kind: str, about: str) -> bool:
        """Whether such a message is not answered yet."""
        with self._lock:
            return any(not p.cancelled for p in self._of(kind, about))

    def answered(self, number: int) -> Parcel | None:
        """Remove and return what was written under a number; None when nobody waits for it."""
        with self._lock:
            found = next((p for p in self._parcels if number in p.numbers), None)
            if found is not None:
                self._parcels.remove(found)
        return None if found is None or found.cancelled else found

    def _of(self, kind: str, about: str | None) -> list[Parcel]:
        return [p for p in self._parcels if p.kind == kind and about in (None, p.about)]
