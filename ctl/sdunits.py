"""Units for systemd: the templates, filled in for this installation, and names of their instances.

The run root is the instance's name, escaped, so that one template serves every run and no path is
ever quoted: systemd gives it back byte by byte as %f.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping

from fsworker.errors import FormatError, UsageError

SERVICES = ("watch", "aggregator", "worker")
MAX_NAME = 255
"""Bytes that systemd allows for the name of a unit."""
_KEPT = re.compile(rb"[A-Za-z0-9:_.]")
_FLEET = ("FLEET_CONFIG", "FLEET_HOSTS", "FLEET_WORKSPACE", "FLEET_ROOT")
"""What a shell may have set that a unit needs as well."""
_WORKERS = ("FLEET_WORKER_TOKEN",)


def escape(path: str) -> str:
    """An absolute path as systemd-escape(1) spells it with --path."""
    raw = os.fsencode(os.path.normpath(path)).strip(b"/")
    if not raw:
        return "-"
    out = []
    for i, byte in enumerate(raw):
        char = bytes([byte])
        if char == b"/":
            out.append("-")
        elif _KEPT.match(char) and not (char == b"." and i == 0):
            out.append(char.decode())
        else:
            out.append(f"\\x{byte:02x}")
    return "".join(out)


def instance(service: str, root: str) -> str:
    """The unit that runs `service` for one run root. UsageError for a root with too long a name."""
    name = f"shardfleet-{service}@{escape(root)}.service"
    if len(name) > MAX_NAME:
        raise UsageError(
            f"{root} makes a unit name of {len(name)} bytes, systemd allows {MAX_NAME}: "
            "give the run a shorter path, for example a symbolic link",
            path=root,
        )
    return name


def template(service: str) -> str:
    """The name of the file that holds the unit of all instances."""
    return f"shardfleet-{service}@.service"


def text(service: str) -> str:
    """The unit, for the Python that runs this."""
    for folder in _folders():
        try:
            with open(os.path.join(folder, template(service)), encoding="utf-8") as file:
                return file.read().replace("@PYTHON@", _quoted(sys.executable))
        except FileNotFoundError:
            continue
    raise FormatError(f"this installation lacks {template(service)}: install shardfleet again")


def environment(environ: Mapping[str, str], services: Collection[str] = ()) -> str:
    """What an EnvironmentFile must hold for these units to see what this shell has set."""
    lines = []
    for name in (*_FLEET, *(_WORKERS if "worker" in services else ())):
        if name in environ:
            value = re.sub(r'([\\"$`])', r"\\\1", environ[name])
            lines.append(f'{name}="{value}"\n')
    return "".join(lines)


def _folders() -> tuple[str, ...]:
    """Where the templates are: in the installed package, or beside it in a checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    return (os.path.join(here, "systemd"), os.path.join(os.path.dirname(here), "systemd"))


def _quoted(word: str) -> str:
    """A word of ExecStart: quoted, and with specifiers made harmless."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_./+-]", word) else word
