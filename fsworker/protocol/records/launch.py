"""What a host is asked to start, said once: both ends of a connection must mean the same by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsworker.errors import UsageError
from fsworker.protocol.records import coding
from fsworker.protocol.records.slots import SlotTerms


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One start of one host's worker. `wait` is how long the host watches it, in seconds.

    `host` is the name under which it is allowed; whoever sends the request fills it in.
    """

    root: str
    launch: int
    shard: int
    concurrency: int = 48
    slots: SlotTerms = field(default_factory=SlotTerms)
    job_slots: int = 1
    respawn: bool = True
    python: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    log_level: str = "INFO"
    wait: float = 10.0
    host: str = ""
    labels: tuple[str, ...] = ()

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> LaunchRequest:
        """The request in an object from JSON. FormatError, UsageError name what is wrong with it.

        What another release adds is ignored.
        """
        asked = coding.from_object(cls, dict(request), "the start request")
        if not asked.root.startswith("/"):
            raise UsageError(f"the root must be an absolute path, not {asked.root!r}")
        return asked

    def worker_argv(self, command: Sequence[str]) -> list[str]:
        """The command line of the worker; `command` runs this package there."""
        argv = [*command, "run", "--root", self.root]
        argv += ["--shard", str(self.shard), "--host", self.host]
        argv += ["--concurrency", str(self.concurrency), "--launch", str(self.launch)]
        argv += ["--job-slots", str(self.job_slots), "--log-level", self.log_level]
        argv += [word for label in self.labels for word in ("--label", label)]
        return [*argv, *self.slots.argv()]
