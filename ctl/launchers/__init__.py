"""The launchers by name. To add one: a module here, a line in LAUNCHERS, a contract-test row.

The modules are imported when first asked for: one of them pulls in paramiko, which costs more than
most commands take.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fsworker.errors import UsageError
from fsworker.protocol.records.hostterms import HostTerms

if TYPE_CHECKING:
    from ctl.launchers.base import Launcher

LAUNCHERS = {
    "local": "ctl.launchers.local:LocalLauncher",
    "ssh": "ctl.launchers.ssh:SshLauncher",
    "slurm": "ctl.launchers.slurm:SlurmLauncher",
}


def open_launcher(
    name: str,
    options: Mapping[str, Any] | None = None,
    terms: Mapping[str, HostTerms] | None = None,
) -> Launcher:
    """The launcher `name` with its options; UsageError names what is wrong with them.

    `terms` is what differs on single hosts.

    Options of all: `python`, `pythonpath`, `setup` (lines for the shell), `bundle` (the file that
    hosts run from whose terms say so, or all with `from_bundle`) and, in seconds,
    `connect_timeout`, `start_timeout`, `command_timeout`, `stop_extra_timeout`, `retry_timeout`.
    """
    if name not in LAUNCHERS:
        raise UsageError(f"there is no launcher {name!r}: use one of {', '.join(LAUNCHERS)}")
    module, _, attribute = LAUNCHERS[name].partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    given = dict(options or {})
    common = {
        "python": _text(given.pop("python", None) or sys.executable, "python"),
        "pythonpath": _texts(given.pop("pythonpath", ()), "pythonpath"),
        "setup": _texts(given.pop("setup", ()), "setup"),
        "timeouts": _timeouts(given),
        "terms": terms,
        "bundle": given.pop("bundle", None),
        "from_bundle": bool(given.pop("from_bundle", False)),
    }
    unknown = sorted(set(given) - set(kind.options))
    if unknown:
        raise UsageError(f"the launcher {name!r} has no option {unknown[0]!r}")
    launcher: Launcher = kind(**common, **given)
    return launcher


def _timeouts(given: dict[str, Any]) -> Any:
    from ctl.launchers.base import Timeouts

    found = {}
    for item in fields(Timeouts):
        key = f"{item.name}_timeout"
        value = given.pop(key, None)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise UsageError(f"launcher option {key!r} must be a number of seconds, not {value!r}")
        found[item.name] = float(value)
    return Timeouts(**found)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"launcher option {name!r} must be a text, not {value!r}")
    return value


def _texts(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"launcher option {name!r} must be a list of texts, not {value!r}")
    return tuple(_text(item, name) for item in value)
