"""The optimiser state of a rule as a file of its own: one tensor per kept value and key.

It is a safetensors file whose tensors are called `<value>/<key>` (`m/encoder.0.weight`), in the
shape of the key's tensor: float64 for a float64 model, else float32, whose rounding is far below
the noise of a round. Its metadata name the rule. The same state gives the same bytes. Whatever keys
a model may have, and however many, their state can be read again: `open_state` knows no limits.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType

from fedavg.agreement import Unmergeable
from fedavg.engine.reading import Reader
from fedavg.formats.base import Checkpoint, Entry
from fedavg.formats.errors import DamagedCheckpoint
from fedavg.formats.safetensor import looks_like, open_named
from fedavg.formats.source import Source
from fedavg.formats.storing import Storing
from fedavg.rule import Rule
from fsworker.protocol.fsops import Store, close_quietly, storage_error

_NAMES = {"float32": "F32", "float64": "F64"}
_ALIGNMENT = 8


def state_key(value: str, key: str) -> str:
    """What a kept value of a key is called in the file: what cannot be printed is spelt out."""
    if key.isprintable() and "\\" not in key:
        return f"{value}/{key}"
    spelt = (c if c.isprintable() and c != "\\" else ascii(c)[1:-1] for c in key)
    return f"{value}/{''.join(spelt)}"


def open_state(path: str) -> Checkpoint:
    """The state in a file. DamagedCheckpoint for what is none, FormatError, StorageError."""
    source = Source(path)
    try:
        head = source.read(0, min(source.size, 16))
        if not looks_like(head, source.size):
            raise DamagedCheckpoint(path, "it is no optimiser state: they are safetensors files")
        return open_named(source)
    except BaseException:
        source.close()
        raise


def state_dtype(entry: Entry) -> str:
    """In what type the state for a tensor is kept."""
    return "float64" if entry.dtype == "float64" else "float32"


def check_state(
    state: Checkpoint, rule: Rule, entries: Mapping[str, Entry], keys: Iterable[str]
) -> None:
    """Unmergeable when a state is not that of this rule and these keys.

    It may lack keys, if the model has all that it knows of: then more of them go by the rule now.
    """
    made_by = state.rest.get("__metadata__.rule")
    if made_by != rule.name:
        raise Unmergeable(
            f"{state.path} is the optimiser state of {made_by or 'no rule that is known'}, not of "
            f"{rule.name}: start anew without it"
        )
    values = rule.kind.state
    wanted = {state_key(value, key): entries[key] for key in keys for value in values}
    fits = {state_key(value, key) for key in entries for value in values} >= state.entries.keys()
    for name, entry in wanted.items():
        found = state.entries.get(name)
        if found is None and fits:
            continue
        if found is None:
            why = f"it lacks {name}"
        elif found.shape != entry.shape or found.dtype != state_dtype(entry):
            why = f"{name} has another shape or type"
        else:
            continue
        raise Unmergeable(
            f"{state.path} is not the optimiser state of {rule.name} for these models: {why}",
            key=entry.key,
        )


def negative(state: Checkpoint, rule: Rule, key: str, start: int, stop: int) -> Unmergeable | None:
    """The error for a state that is negative where it cannot be, or None.

    Looked for among the elements [start, stop) of what is kept for `key`, counted row by row.
    """
    for value in rule.kind.squares:
        name = state_key(value, key)
        if name not in state.entries:
            continue
        found = Reader().rows("state", [state], name, start, stop)[0]
        if places := (found < 0).nonzero().flatten().tolist():
            return Unmergeable(
                f"{name} in {state.path} is negative (element {start + places[0]} is "
                f"{float(found[places[0]]):g}), which no state of {rule.name} is: start anew "
                "without it",
                key=key,
            )
    return None


class StateWriter:
    """A state that is being written: every byte of every key, in any order, from any thread."""

    def __init__(
        self, path: str, rule: Rule, entries: Mapping[str, Entry], keys: Iterable[str]
    ) -> None:
        folder, _, self._name = os.path.abspath(path).rpartition("/")
        self.path = path
        self._store = Store(folder or "/")
        header, self._places, self._size = _header(rule, entries, keys)
        self._fd, self._made, self._storing = -1, False, Storing()
        try:
            self._fd = self._store.create(self._name)
            self._made = True
            os.ftruncate(self._fd, self._size)
            self._put(0, memoryview(header))
        except OSError as error:
            self.abort()
            raise storage_error(error, "write", path) from error

    def write(self, value: str, key: str, start: int, buffer: memoryview) -> None:
        """Bytes of a kept value from byte `start` of its tensor on. StorageError."""
        try:
            self._put(self._places[state_key(value, key)] + start, buffer)
        except OSError as error:
            raise storage_error(error, "write", self.path) from error

    def close(self) -> None:
        """Finish: on disk when this returns. StorageError."""
        try:
            self._storing.end()
            fd, self._fd = self._fd, -1
            self._store.seal(fd)
        except OSError as error:
            raise storage_error(error, "write", self.path) from error

    def end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """For an ExitStack: remove the file, even one that is complete, when an error came."""
        if error is not None:
            self.abort()

    def abort(self) -> None:
        """Give up, and remove what was made."""
        with suppress(OSError):
            self._storing.end()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            close_quietly(fd)
        if self._made:
            self._store.remove_quietly(self._name)

    def _put(self, place: int, buffer: memoryview) -> None:
        while buffer:
            done = os.pwrite(self._fd, buffer, place)
            self._storing.wrote(self._fd, done)
            place, buffer = place + done, buffer[done:]


def _header(
    rule: Rule, entries: Mapping[str, Entry], keys: Iterable[str]
) -> tuple[bytes, dict[str, int], int]:
    """The file's first bytes, where each tensor's bytes begin, and the file's size."""
    described: dict[str, object] = {"__metadata__": {"rule": rule.name}}
    places, end = {}, 0
    # float64 first, so that every tensor begins at a multiple of its element's size.
    wide = {key: state_dtype(entries[key]) for key in keys}
    for key in sorted(wide, key=lambda k: wide[k], reverse=True):
        itemsize = 8 if wide[key] == "float64" else 4
        size = entries[key].nbytes // entries[key].itemsize * itemsize
        for value in rule.kind.state:
            name = state_key(value, key)
            described[name] = {
                "dtype": _NAMES[wide[key]],
                "shape": list(entries[key].shape),
                "data_offsets": [end, end + size],
            }
            places[name], end = end, end + size
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    begin = 8 + len(text)
    return (
        struct.pack("<Q", len(text)) + text,
        {n: begin + p for n, p in places.items()},
        begin + end,
    )
