"""The command group, and errors to exit codes.

To add a command, add `ctl/commands/<verb>.py` with
one click command or group in it; nothing here changes. A command returns its exit code (None is 0)
and raises FleetError for what a user can understand; all else ends in `main`.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from ctl import stdio
from ctl.lazy import LazyGroup, common_options
from ctl.session import Session
from fsworker.errors import FleetError, StorageError, UsageError
from fsworker.protocol.fsops import storage_error

log = logging.getLogger(__name__)

COMMANDS = os.path.join(os.path.dirname(__file__), "commands")
INTERRUPTED, BROKEN_PIPE = 130, 141
_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib import metadata  # lazily: slow, and only --version asks

    try:
        click.echo(f"shardfleet {metadata.version('shardfleet')}")
    except metadata.PackageNotFoundError:
        click.echo("shardfleet, from a checkout that is not installed")
    ctx.exit(0)


@click.group(
    cls=LazyGroup,
    folder=COMMANDS,
    package="ctl.commands",
    params=common_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version.",
)
def cli() -> None:
    """Run a fleet of workers on hosts that share only a filesystem and SSH.

    \b
    Exit codes: 0 ok; 1 failed or degraded; 2 wrong input; 3 not running; 4 unknown;
    5 refused; 6 timed out; 7 storage; 8 damaged or other version; 9 no workers;
    10 busy; 129, 130, 143 interrupted by HUP, Ctrl-C, TERM; 141 nobody reads the output.

    \b
    Completion: eval "$(_CTL_COMPLETE=bash_source ctl)"    (or zsh_source, fish_source)
    """


def main(argv: list[str] | None = None) -> int:
    """Run one command line; the exit code."""
    args = sys.argv[1:] if argv is None else argv
    own = args[: args.index("--")] if "--" in args else args
    session = Session(json="--json" in own, debug="--debug" in own)
    try:
        stdio.prepare()
        _configure_logging(session.debug)
        _catch_signals()
        return _run(args, session)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        stdio.complain(error.ctx.get_help() if error.ctx else error.format_message())
        return 2
    except BrokenPipeError:
        stdio.abandon_stdout()  # its reader left
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, session)


def _run(args: list[str], session: Session) -> int:
    if "_CTL_COMPLETE" in os.environ:
        cli.main(args, prog_name="ctl")  # answers the shell and exits
    # Not by click's own `main`, which decides about interrupts and lost readers before we can.
    with cli.make_context("ctl", args, obj=session) as ctx:
        result = cli.invoke(ctx)
    sys.stdout.flush()
    if session.unsaid is not None:
        raise session.unsaid
    return result if isinstance(result, int) else 0


def _report(error: BaseException, session: Session) -> int:
    """Tell the user what went wrong; the exit code that says the same to scripts."""
    if session.debug:
        import traceback  # lazily: only --debug shows them

        traceback.print_exception(error, file=sys.stderr)
    sentence, code = _explain(error)
    if isinstance(error, (KeyboardInterrupt, click.Abort)) and session.left:
        sentence = ": ".join(filter(None, (sentence, session.left())))
    try:
        # Also what was printed before the error came: or Python fails on it at its very end.
        sys.stdout.flush()
        if session.json:
            from ctl import render

            fields = {k: getattr(error, k, None) for k in ("path", "host", "action")}
            render.error(sentence, code, type(error).__name__, fields)
            return code
    except BrokenPipeError:
        stdio.abandon_stdout()
        code = BROKEN_PIPE
    except OSError:
        stdio.abandon_stdout()
        code = StorageError.exit_code
    stdio.complain(f"ctl: {sentence}")
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, FleetError):
        return str(error), error.exit_code
    if isinstance(error, click.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split()), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        number = error.args[0] if error.args and isinstance(error.args[0], int) else signal.SIGINT
        return "interrupted", 128 + number
    if isinstance(error, OSError) and error.errno in _STORAGE:
        where = error.filename if isinstance(error.filename, str) else "the output"
        return str(storage_error(error, "write", where)), StorageError.exit_code
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the folder that you are in is gone: change to another one", UsageError.exit_code
    text = " ".join(str(error).split()) or "no further detail"
    return f"unexpected {type(error).__name__}: {text} (run again with --debug for the place)", 1


def _configure_logging(debug: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # It reports each failed connection at ERROR with a traceback; our launchers say it once.
    logging.getLogger("paramiko").setLevel(logging.DEBUG if debug else logging.CRITICAL)


def _catch_signals() -> None:
    """Make TERM and a lost terminal end a verb the way Ctrl-C does: with what it began undone."""

    def raise_interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        try:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, raise_interrupt)
        except ValueError:  # not the main thread: a test or a program that embeds us
            return
