"""Secrets for jobs: variables of the machine that starts a host, which are written nowhere.

The run records their names alone. Their values go to the host in the script that starts it, which
a shell reads from its input, so they are in no file of the root and in no command line. Whoever
starts a host again, the watcher too, must have them in its own environment.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cache

from ctl import units
from fsworker.errors import UsageError

log = logging.getLogger(__name__)

NAMES = "FLEET_PASS_ENV"


def check(names: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names, each once; UsageError for one that is none, or has no value here."""
    for name in names:
        try:
            units.env_pair(f"{name}=")
        except ValueError:
            raise UsageError(f"--pass-env {name!r:.60} is not the name of a variable") from None
        if name not in environ:
            raise UsageError(f"--pass-env {name}: it is not set here")
    return tuple(dict.fromkeys(names))


@cache
def warn(names: tuple[str, ...]) -> None:
    """Say once which values a host that is started now will not get."""
    for name in names:
        if name not in os.environ:
            log.warning("%s is not set here: hosts started now decline jobs that ask for it", name)


def lines(names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Shell lines that give a host the values; one that is not set here is left out."""
    known = [name for name in names if name in environ]
    found = [f"{name}={shlex.quote(environ[name])}; export {name}" for name in known]
    if names:
        found.append(f"{NAMES}={','.join(names)}; export {NAMES}")
    return found
