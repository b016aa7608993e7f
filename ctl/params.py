"""Options that several commands share, so that the same word means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ctl import slotterms, units
from fsworker.protocol.records import slots


class Read(click.ParamType[Any]):
    """An option type made of a function that raises ValueError with a sentence."""

    def __init__(self, name: str, read: Callable[[Any], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value that the text means."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Read("duration", units.duration)
POSITIVE = Read("duration", units.positive)
COUNT = Read("number", units.count)
WHOLE = Read("number", units.whole)
ENV_PAIR = Read("name=value", units.env_pair)
SIZE = Read("size", slots.size)
GPUS = Read("gpus", slots.gpus)
COROUTINES = Read("number", slotterms.coroutines)
START = click.Choice(("auto", "fork", "spawn"))

root_option = click.option(
    "--root",
    metavar="DIR",
    help="Run root [default: FLEET_ROOT if it is one, else the current run].",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
