"""The command group: finds commands by their files, and turns errors into exit codes.

To add a command, add `fedavg/commands/<verb>.py` with one click command in it; nothing here
changes. A command is imported when it is called, and torch only by what needs it. It returns its
exit code (None is 0) and raises FleetError for what a user can understand.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import pkgutil
import re
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

import fsworker
from fsworker.errors import FleetError, StorageError

COMMANDS = os.path.join(os.path.dirname(__file__), "commands")
INTERRUPTED, BROKEN_PIPE = 130, 141
_SUMMARY = re.compile(r'@click\.(?:command|group).*?\ndef .*?"""(.*?)(?:\n\s*\n|""")', re.DOTALL)


class LazyGroup(click.Group):
    """A group whose commands are the files of `fedavg/commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, without importing one."""
        found = (module.name for module in pkgutil.iter_modules([COMMANDS]))
        return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that was named."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module("fedavg.commands." + cmd_name.replace("-", "_"))
        command = next(v for v in vars(module).values() if isinstance(v, click.Command))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the first sentence of their help, read from their source."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in self.list_commands(ctx)])


def _summary(name: str) -> str:
    with open(os.path.join(COMMANDS, name.replace("-", "_") + ".py"), encoding="utf-8") as file:
        found = _SUMMARY.search(file.read())
    text = " ".join(found[1].split()) if found else ""
    return text.split(". ")[0].rstrip(".")


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(fsworker.__version__, prog_name="fedavg")
@click.option("--debug", is_flag=True, help="Log everything, and show tracebacks.")
def cli(debug: bool) -> None:
    """Merge the checkpoints of a group into one global model.

    \b
    Exit codes: 0 ok; 1 failed; 2 wrong input; 3 not running; 5 refused; 6 timed out; 7 storage;
    8 damaged or other version; 10 busy; 130, 143 interrupted; 141 nobody reads the output.
    """
    logging.getLogger().setLevel(logging.DEBUG if debug else logging.WARNING)


def main(argv: list[str] | None = None) -> int:
    """Run one command line; the exit code."""
    args = sys.argv[1:] if argv is None else argv
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    _interrupt_on_term()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name is no reason to fail
    try:
        with cli.make_context("fedavg", list(args)) as ctx:
            result = cli.invoke(ctx)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else error.format_message(), file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its reader left
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, args)


def _report(error: BaseException, args: list[str]) -> int:
    """Tell what went wrong; the exit code that says the same to scripts."""
    if "--debug" in args:
        import traceback  # lazily: only --debug shows them

        traceback.print_exception(error, file=sys.stderr)
    sentence, code = _explain(error)
    if "--json" in args:
        fields = {k: getattr(error, k, None) for k in ("path", "participant", "key", "action")}
        known = {k: v for k, v in fields.items() if v is not None}
        kind = type(error).__name__
        print(json.dumps({"error": sentence, "exit_code": code, "kind": kind, **known}))
    else:
        from fedavg.formats.errors import shown  # lazily: most commands end well

        print(f"fedavg: {shown(sentence)}", file=sys.stderr)
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, FleetError):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split()), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        number = error.args[0] if error.args and isinstance(error.args[0], int) else signal.SIGINT
        return "interrupted", 128 + number
    if isinstance(error, click.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "safetensors", "numpy"):
        return f"{error.name} is not installed here: pip install 'shardfleet[fedavg]'", 1
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", StorageError.exit_code
    text = " ".join(str(error).split()) or "no further detail"
    return f"unexpected {type(error).__name__}: {text} (run with fedavg --debug for the place)", 1


def _interrupt_on_term() -> None:
    """Make TERM end a command the way Ctrl-C does: what it began is undone."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        return  # not the main thread: a test or a program that embeds us
