"""`ctl job`: training jobs. Its commands are the files beside this one."""

from __future__ import annotations

import os

import click

from ctl.lazy import LazyGroup


@click.group(cls=LazyGroup, folder=os.path.dirname(__file__), package=__name__)
def command() -> None:
    """Submit training jobs, and see to them.

    `ctl jobs` lists them all.
    """
