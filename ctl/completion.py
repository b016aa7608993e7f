"""What a shell offers for HOST: the hosts of the run that is meant, or those that are allowed.

A TAB must be quick and silent whatever is wrong, so no error leaves this module and nothing is
asked of any host.
"""

from __future__ import annotations

import json
import os

import click

from fsworker.protocol import layout

MOST = 500
"""Names that are offered at most."""


def hosts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names that begin with what was typed and were not named yet."""
    try:
        known = _of_run(ctx) or _allowed(ctx)
    except Exception:  # a shell shows whatever we say in the middle of the line
        return []
    named = ctx.params.get(param.name or "") or ()
    taken = {named} if isinstance(named, str) else set(named)
    found = (name for name in known if name.startswith(incomplete) and name not in taken)
    return sorted(found)[:MOST]


def _of_run(ctx: click.Context) -> list[str]:
    from ctl import roots  # lazily, like all here: no command pays for completion
    from ctl.config import load
    from fsworker.errors import FleetError

    try:
        root, _ = roots.find_root(ctx.params.get("root"), load(_config_path(ctx)))
        with open(os.path.join(root, layout.LAUNCH_META), "rb") as file:
            return [str(worker["host"]) for worker in json.load(file)["workers"]]
    except (FleetError, OSError, ValueError, KeyError, TypeError):
        return []


def _allowed(ctx: click.Context) -> list[str]:
    from ctl.session import Session

    session = Session(config_path=_config_path(ctx), quiet=True)
    return list(session.allowed.names)


def _config_path(ctx: click.Context) -> str | None:
    from ctl.session import Session

    session = ctx.find_object(Session)
    return session.config_path if session else None
