"""Every error that a user may see, each with the exit code that scripts rely on.

One root class carries what a sentence about a failure needs: the path it concerns, the host,
and what to do. Commands turn any of them into one line on stderr and `exit_code`; the table of
codes stands in `docs/exit-codes.md`.
"""

from __future__ import annotations


def spelt(text: str) -> str:
    """`text` with each lone surrogate spelt out (`\\udcff`), so that any file can hold it.

    They come from file names that are no UTF-8 and from JSON's escapes, and no encoding has them.
    """
    return text.encode("utf-8", "backslashreplace").decode()


class FleetError(Exception):
    """A failure that is told in one sentence and ends a command with `exit_code`.

    `path`, `host` and `action` repeat what the sentence says, for callers that decide by them.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        host: str | None = None,
        action: str | None = None,
    ) -> None:
        super().__init__(spelt(message))  # it may become a record's reason, or a line of a log
        self.path = path
        self.host = host
        self.action = action

    def __reduce__(self) -> tuple[object, ...]:
        # Fields set by keyword would be lost by the default way exceptions are pickled.
        return (type(self), self.args, self.__dict__)


class UsageError(FleetError):
    """The input is wrong: an option, a file, a host list."""

    exit_code = 2


class NotRunning(FleetError):
    """There is no such run, or nothing of it runs."""

    exit_code = 3


class UnknownState(FleetError):
    """Whether it runs cannot be told from here."""

    exit_code = 4


class Refused(FleetError):
    """It could be done but must not: a live root, a host not allowed, a root not trusted."""

    exit_code = 5


class NotOffered(Refused):
    """No worker of the run offers what a task or a job needs."""


class DeadlineExceeded(FleetError):
    """It did not happen in the time that was given."""

    exit_code = 6


class StorageError(FleetError):
    """The shared filesystem said no: full, over quota, I/O error, unfit mount."""

    exit_code = 7


class FormatError(FleetError):
    """A file is damaged, is not what its name claims, or has another format version."""

    exit_code = 8


class NoWorkers(FleetError):
    """Nobody has served the run for a while."""

    exit_code = 9


class Busy(FleetError):
    """Another process holds the lock that this one needs."""

    exit_code = 10
