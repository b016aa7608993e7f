"""Options that several commands share, so that the same word means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ctl import slotterms, units
from fsworker.protocol.records import slots
from fsworker.protocol.records.needs import parse_needs

F = TypeVar("F", bound=Callable[..., Any])


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


_PYTHON_OPTIONS = (
    click.option("--venv", metavar="DIR", help="Virtual environment of the workers."),
    click.option(
        "--python", metavar="FILE", help="Interpreter of the workers [default: this one]."
    ),
    click.option("--repo", metavar="DIR", help="Folder put on the workers' PYTHONPATH."),
    click.option(
        "--bundle/--no-bundle",
        default=None,
        help="Run workers from one file on the root, by python3: hosts need no packages.",
    ),
)


def python_options(command: F) -> F:
    """By what workers run."""
    for option in reversed(_PYTHON_OPTIONS):
        command = option(command)
    return command


_MEMBER_OPTIONS = (
    click.option("--log-level", help="Log level of the workers [default: INFO]."),
    click.option(
        "--label", "labels", multiple=True, metavar="LABEL", help="What the workers offer."
    ),
    click.option("--attach", metavar="SET", help="Names that may join by fsworker attach."),
)


def member_options(command: F) -> F:
    """What holds for all workers, and who may become one."""
    for option in reversed(_MEMBER_OPTIONS):
        command = option(command)
    return command


def _need(word: str) -> str:
    parse_needs([word])
    return word


_NEED_OPTIONS = (
    click.option(
        "--need",
        "need",
        type=Read("k=v", _need),
        multiple=True,
        metavar="K=V",
        help="Of its worker: label=NAME, cpus=N, gpus=N, memory=SIZE; several times.",
    ),
    click.option(
        "--wait-for-workers", is_flag=True, help="Wait for one, where no worker offers that."
    ),
)


def need_options(command: F) -> F:
    """What work needs of its worker."""
    for option in reversed(_NEED_OPTIONS):
        command = option(command)
    return command


def verb(group: click.Group, name: str, *more: Callable[..., Any]) -> Callable[..., click.Command]:
    """A command of a group that is about a run: with --root, --json, and `more`, in this order."""

    def make(function: Callable[..., Any]) -> click.Command:
        found = click.pass_obj(function)
        for option in reversed((*more, root_option, json_option)):
            found = option(found)
        return group.command(name)(found)

    return make


def patience_option(whose: str) -> Callable[..., Any]:
    """--timeout of what lets tasks finish first; `whose` says which tasks those are."""
    return click.option(
        "--timeout", type=DURATION, default=600.0, help=f"What {whose} [default: 10m]."
    )


def wait_options(until: str) -> Callable[[F], F]:
    """--wait and --timeout of what asks for an end; `until` says what is waited for."""
    wait = click.option("--wait", is_flag=True, help=f"Wait until {until}.")
    timeout = click.option(
        "--timeout", type=POSITIVE, default=60.0, help="With --wait [default: 60s]."
    )

    def add(command: F) -> F:
        return wait(timeout(command))

    return add


GIVEN_BACK = "running tasks get; then they are given back to run elsewhere"
ready_option = click.option(
    "--ready-timeout", type=POSITIVE, help="Time to be ready [default: the run's]."
)
