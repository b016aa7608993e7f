"""The command `fedavg`. It exists so that the three commands are installed together.

Merging itself is not in this version; saying so with an exit code is better than a missing command
or an aggregator that waits for ever.
"""

from __future__ import annotations

import sys

import click

import fsworker
from fsworker.errors import FleetError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fsworker.__version__, prog_name="fedavg")
def cli() -> None:
    """Merge the checkpoints of a group into one global model.

    This version has no command yet: the federation part of the protocol is not built.
    """


def main() -> None:
    """Entry point; a FleetError becomes its sentence and its exit code."""
    try:
        cli.main(prog_name="fedavg", standalone_mode=True)
    except FleetError as error:
        print(f"fedavg: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
