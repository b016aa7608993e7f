"""The command `fsworker`: options in, one life of a worker, errors as one sentence."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fsworker import bundled
from fsworker.errors import FleetError, UsageError
from fsworker.life.boundlog import StderrHandler
from fsworker.protocol.records.needs import MOST_COUNT, labels_of
from fsworker.protocol.records.run import LOG_LEVELS, MOST_SLOTS
from fsworker.protocol.records.slots import MOST_COROUTINES, MOST_MEMORY, SlotTerms, gpus, size

if TYPE_CHECKING:
    from fsworker.loop.options import Options

_CPUS = click.IntRange(0, MOST_COUNT)
_RAM_MB = click.IntRange(0, (MOST_MEMORY >> 20) - 1)


def _read(read: Callable[[object], Any]) -> Callable[..., Any]:
    """A callback that reads an option by a function that raises ValueError with a sentence."""

    def convert(_: click.Context, param: click.Parameter, value: object) -> Any:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error), param=param) from None

    return convert


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(bundled.version(), prog_name="fsworker")
def cli() -> None:
    """Execute tasks on a host of a fleet."""


@cli.command()
@click.option("--root", required=True, envvar="FLEET_ROOT", help="The run root.")
@click.option("--shard", type=click.IntRange(0), default=0, show_default=True, help="Home shard.")
@click.option("--host", required=True, help="The name under which this host is allowed.")
@click.option(
    "--concurrency",
    type=click.IntRange(0, MOST_SLOTS),
    default=48,
    show_default=True,
    help="Slots; 0: this worker runs jobs alone.",
)
@click.option(
    "--job-slots",
    type=click.IntRange(0, MOST_SLOTS),
    default=1,
    show_default=True,
    help="Training jobs that run at once.",
)
@click.option("--slot-mem", callback=_read(size), metavar="SIZE", help="Memory of a slot, as 2G.")
@click.option("--gpus", callback=_read(gpus), metavar="N|LIST", help="GPUs for the slots.")
@click.option("--slots-per-gpu", type=click.IntRange(1), help="Slots that may share a GPU.")
@click.option(
    "--slot-async",
    type=click.IntRange(1, MOST_COROUTINES),
    default=1,
    help="Coroutines that a slot runs at once.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=_read(labels_of),
    help="What this host offers; several times.",
)
@click.option("--cpus", type=_CPUS, default=0, help="What to say of cpus [detect].")
@click.option("--ram-mb", type=_RAM_MB, default=0, help="Likewise of memory [detect].")
@click.option("--max-idle", type=click.FloatRange(0), default=0.0, help="Seconds; 0: never ends.")
@click.option("--once", "--run-once", is_flag=True, help="End after the first work.")
@click.option(
    "--poll-interval",
    type=click.FloatRange(0, min_open=True),
    default=0.5,
    show_default=True,
    help="Seconds between two looks for a job.",
)
@click.option("--launch", type=click.IntRange(0), default=None, help="Number of this launch.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds that running batches get to finish after TERM.",
)
@click.option("--term-grace", type=click.FloatRange(0), default=0.0, help="See attach.")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
)
def run(**asked: Any) -> None:
    """Claim and execute work of one run until told to stop.

    TERM drains: what has not begun is given back, what runs may finish within the grace. A second
    TERM or INT gives everything back now.
    """
    from fsworker.worker import Worker

    _occupy_standard_descriptors()
    logging.basicConfig(
        level=asked.pop("log_level").upper(),
        handlers=[StderrHandler()],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    code = Worker(_options(asked)).run()
    if code:
        sys.exit(code)


def _options(asked: dict[str, Any]) -> Options:
    """What was asked of the worker. UsageError."""
    from fsworker.loop.options import Options

    if not os.path.isabs(asked["root"]):
        raise UsageError(f"--root {asked['root']!r} must be an absolute path")
    if not asked["concurrency"] and not asked["job_slots"]:
        raise UsageError("--concurrency 0 and --job-slots 0 leave the worker nothing to do")
    launch = asked.pop("launch")
    number = _launch_from_environment() if launch is None else launch
    slots = SlotTerms(*map(asked.pop, ("slot_mem", "gpus", "slots_per_gpu", "slot_async")))
    memory = asked.pop("ram_mb")
    return Options(**asked, launch=number, memory_mb=memory, slots=slots)


@cli.command()
@click.option("--root", required=True, envvar="FLEET_ROOT", help="The run root.")
@click.option("--token", envvar="FLEET_WORKER_TOKEN", help="What ctl token create printed.")
@click.option("--name", help="The name to attach under [default: this node's].")
@click.option(
    "--labels",
    default="",
    callback=_read(labels_of),
    help="What this machine offers, with commas between.",
)
@click.option("--python", help="The interpreter of the worker [default: this one].")
@click.option("--parallel", type=click.IntRange(0, MOST_SLOTS), default=1, show_default=True)
@click.option("--job-slots", type=click.IntRange(0, MOST_SLOTS), default=1, show_default=True)
@click.option("--shard", type=click.IntRange(0), help="Home shard [default: the emptiest].")
@click.option("--cpus", type=_CPUS, default=0, help="0: detect.")
@click.option("--ram-mb", type=_RAM_MB, default=0, help="0: detect.")
@click.option("--gpus", callback=_read(gpus), metavar="N|LIST", help="0: none [default: detect].")
@click.option("--slot-mem", callback=_read(size), metavar="SIZE", help="Memory of a slot, as 2G.")
@click.option("--max-idle", type=click.FloatRange(0), default=0.0, help="Seconds; 0: never ends.")
@click.option(
    "--grace", type=click.FloatRange(0), default=10.0, show_default=True, help="As in run; seconds."
)
@click.option(
    "--term-grace",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="The same where a scheduler sends TERM to every process of an allocation at once.",
)
@click.option("--run-once", is_flag=True, help="End after the first work.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS, case_sensitive=False), default="INFO")
def attach(**asked: Any) -> None:
    """Join a run from this machine, without the controller.

    Joins under a name that the run was started with (ctl start --attach), or by a token. What is
    not there yet is waited for; a refusal is final. TERM ends it as gently as any worker. Exit
    code: 0 it was stopped or had no more to do, 2, 5 and 8 refused, 10 the name is in use.
    """
    from fsworker.attach import process
    from fsworker.attach.entry import Wish

    if not asked["root"]:
        raise UsageError("--root is empty: name the run root")
    if not asked["parallel"] and not asked["job_slots"]:
        raise UsageError("--parallel 0 and --job-slots 0 leave the worker nothing to do")
    name = os.uname().nodename if asked["name"] is None else asked["name"]
    wish = Wish(name, asked["parallel"], asked["labels"], asked["token"], asked["shard"])
    options = process.Options(
        root=os.path.abspath(asked["root"]),
        wish=wish,
        python=asked["python"],
        slots=SlotTerms(asked["slot_mem"], asked["gpus"]),
        job_slots=asked["job_slots"],
        cpus=asked["cpus"],
        memory_mb=asked["ram_mb"],
        max_idle=asked["max_idle"],
        grace=asked["grace"],
        term_grace=asked["term_grace"],
        once=asked["run_once"],
        log_level=asked["log_level"].upper(),
    )
    code = process.attach(options)
    if code:
        sys.exit(code)


def _launch_from_environment() -> int:
    text = os.environ.get("FLEET_LAUNCH", "0")
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"FLEET_LAUNCH must be a number, not {text!r}")
    return int(text)


def _occupy_standard_descriptors() -> None:
    """Nothing of ours may ever get a descriptor that user code takes for its standard ones."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def main() -> None:
    """Entry point; a FleetError becomes its sentence and its exit code."""
    arguments = sys.argv[1:]
    if arguments and arguments[0].startswith("-") and arguments[0] not in _OWN_OPTIONS:
        arguments = ["run", *arguments]  # `python -m fsworker --root …` of older scripts
    try:
        cli.main(arguments, prog_name="fsworker", standalone_mode=True)
    except FleetError as error:
        print(f"fsworker: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


_OWN_OPTIONS = ("--help", "-h", "--version")
