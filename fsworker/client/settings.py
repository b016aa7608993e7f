"""What a client starts from: what it was told, checked, and what the run says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fsworker.errors import NotRunning, UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.needs import Needs
from fsworker.protocol.records.run import Manifest


@dataclass(frozen=True, slots=True)
class Settings:
    """What a client may choose. Times in seconds; `stream` None: one of its own, removed at the
    end; `outstanding`: tasks that are not answered yet before `submit` blocks; `needs` and
    `wait_for_workers`: as in Options, for tasks that have none of their own."""

    stream: str | None = None
    timeout: float | None = None
    batch_size: int = 8192
    no_worker_timeout: float | None = 60.0
    outstanding: int = 65_536
    needs: Needs | Mapping[str, Any] | None = None
    wait_for_workers: bool = False

    def fields(self) -> dict[str, Any]:
        """All of them by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def usual(self) -> dict[str, Any]:
        """The options of every task that has none of its own."""
        return {n: getattr(self, n) for n in ("timeout", "needs", "wait_for_workers")}

    def checked(self) -> Settings:
        """Itself. UsageError names what cannot be."""
        for name in ("timeout", "no_worker_timeout"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and value > 0):
                raise UsageError(f"{name} must be a number of seconds above 0, not {value!r}")
        for name in ("batch_size", "outstanding"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number from 1 up, not {value!r}")
        if self.stream is not None:
            try:
                layout.check_stream(self.stream)
            except (ValueError, AttributeError) as error:
                raise UsageError(f"stream {self.stream!r:.80} cannot be used: {error}") from None
        return self


def read_manifest(store: Store) -> Manifest:
    """What a run is. NotRunning when there is none; FormatError for another version."""
    path = store.path(layout.MANIFEST)
    try:
        data = store.read(layout.MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise NotRunning(
            f"there is no run at {store.root}: {layout.MANIFEST} is missing", path=store.root
        ) from None
    except OSError as error:
        raise storage_error(error, "read", path) from None
    manifest: Manifest = Manifest.from_json(data, path)
    return manifest
