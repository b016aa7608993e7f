"""Why a checkpoint is not read: three reasons that whoever admits uploads tells apart.

They are the project's errors with exit codes (8, 8 and 5), and each names the file first.
"""

from __future__ import annotations

from fsworker.errors import FormatError, Refused


def shown(text: str) -> str:
    """What a file calls things, as part of one line: line breaks, escapes and the like are spelt.

    Else a participant's keys could break a sentence in two, or steer the terminal of who reads it.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class DamagedCheckpoint(FormatError):
    """It is cut, padded, contradicts itself, or is no checkpoint at all."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(shown(f"{path} is damaged: {why}"), path=path)
        self.why = why

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.why))


class ChangedCheckpoint(DamagedCheckpoint):
    """It was written to or replaced while it was read: it may be whole the next time."""


class UnsupportedCheckpoint(FormatError):
    """It may be whole, but is or holds what is not merged; the sentence says what to do."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(shown(f"{path} cannot be merged: {why}"), path=path)
        self.why = why

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.why))


class UnsafeCheckpoint(Refused):
    """It names code that loading it would run. Nothing of it was run.

    `name` is the global as the file names it, such as `posix.system`.
    """

    def __init__(self, path: str, name: str) -> None:
        super().__init__(
            f"{path} is refused: it names {name}, and only tensors and plain values are read; "
            "save state_dicts, numbers and strings alone",
            path=path,
        )
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.name))
