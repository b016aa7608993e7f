"""What holds for one host only: how it is reached, and what its worker is given."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class HostTerms:
    """What differs on a host; None and empty stand for nothing said.

    `setup` are shell lines that run there after those of all hosts, `tmp` is the folder for
    temporary files, and `ssh` holds options as ssh_config(5) names them. `bundle`: whether the host
    runs from the run's bundle.
    """

    python: str | None = None
    setup: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    tmp: str | None = None
    ssh: dict[str, str] = field(default_factory=dict)
    bundle: bool | None = None
    labels: tuple[str, ...] = ()
    """What its worker offers beside those of all workers."""
