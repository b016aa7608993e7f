"""What every command of one `ctl` call shares: its settings, its hosts, the run that it means.

Loaded when first asked for, so that a command pays only for what it uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from ctl import stdio

if TYPE_CHECKING:
    from ctl.config import Config
    from ctl.hosts import Allowed


@dataclass
class Session:
    """One call of `ctl`; click hands it to commands as `ctx.obj`."""

    json: bool = False
    debug: bool = False
    config_path: str | None = None
    quiet: bool = False
    unsaid: OSError | None = None
    """Why a line could not be written, if one could not; the command does its work all the same."""
    left: Callable[[], str | None] | None = None
    """What an interrupt of this command leaves behind, and what ends that; asked when it comes."""

    @cached_property
    def config(self) -> Config:
        """The settings; what the user should know about them goes to stderr once."""
        from ctl.config import load  # lazily, as below: --help needs neither

        config = load(self.config_path)
        if config.notes:
            self.note("; ".join(config.notes))
        return config

    @cached_property
    def allowed(self) -> Allowed:
        """The hosts that may be contacted."""
        from ctl.hosts import allowed_hosts

        config = self.config
        return allowed_hosts(
            config.get("hosts"),
            config.source("hosts"),
            config.get("hosts_file"),
            config.source("hosts_file"),
        )

    def note(self, sentence: str) -> None:
        """Tell the user something that is not an error; never on stdout, which scripts read."""
        if not self.quiet:
            stdio.complain(f"note: {sentence}")

    def say(self, sentence: str) -> None:
        """One line of output for people and scripts; on stderr when stdout carries `--json`.

        Nobody to hear it, or a full disk under it, is no reason to leave workers half stopped: it
        is noted in `unsaid`, and the command ends with that once all else is done.
        """
        stream = sys.stderr if self.json else sys.stdout
        self._try(lambda: print(sentence, file=stream, flush=True), stream)

    def line(self, fields: Mapping[str, Any]) -> None:
        """One JSON object on a line of stdout, as scripts read it; otherwise as `say`."""
        from ctl import render

        self._try(lambda: render.line(fields), sys.stdout)

    def _try(self, write: Callable[[], None], stream: TextIO) -> None:
        try:
            write()
        except OSError as error:
            self.unsaid = self.unsaid or error
            stdio.abandon(stream)
