"""What holds for one host: the tables `[defaults]` and `[hosts."node[01-08]"]` of fleet.toml. Pure.

A cluster is seldom of one kind: the login of some nodes goes through a gateway, others need a
module or another Python. A table that names a set of hosts holds for each of them; where several
do, the one that is written last wins, value by value (environments and ssh options name by name);
labels add up.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ctl import units
from ctl.hosts import names_of
from fsworker.errors import UsageError
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.needs import labels_of

_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*")


@dataclass(frozen=True)
class Table:
    """One table: its name as written, the hosts it is about (None: all), and what it says."""

    name: str
    hosts: frozenset[str] | None
    terms: HostTerms

    def holds_for(self, host: str) -> bool:
        """Whether it is about this host."""
        return self.hosts is None or host.lower() in self.hosts


@dataclass(frozen=True)
class Tables:
    """All tables of a file, in the order in which they hold."""

    tables: tuple[Table, ...] = ()
    names: tuple[str, ...] = field(default=())
    """The hosts that are named by tables, in order."""

    def terms(self, host: str) -> HostTerms:
        """What holds for a host."""
        found = HostTerms()
        for table in self.tables:
            if table.holds_for(host):
                found = _over(found, table.terms)
        return found

    def sources(self, host: str) -> dict[str, tuple[Any, str]]:
        """Each value that holds for a host, with the table that it came from, or the tables."""
        found: dict[str, tuple[Any, str]] = {}
        for table in self.tables:
            if not table.holds_for(host):
                continue
            for key, value in _said(table.terms).items():
                below, source = found.get(key, ((), ""))
                if key == "labels" and below:  # the one thing that adds up
                    both = tuple(dict.fromkeys((*below, *value)))
                    found[key] = (both, f"{source} and {table.name}")
                else:
                    found[key] = (value, table.name)
        return found


def read(defaults: object, hosts: object, file: str) -> Tables:
    """The tables as tomllib gives them. UsageError names file, table and key."""
    tables: list[Table] = []
    names: list[str] = []
    if defaults is not None:
        tables.append(_table(f"{file}: [defaults]", None, defaults))
    for key, value in (hosts or {}).items() if isinstance(hosts, dict) else ():
        where = f'{file}: [hosts."{key}"]'
        members = names_of(key, where)
        names += members
        tables.append(_table(where, frozenset(m.lower() for m in members), value))
    return Tables(tuple(tables), tuple(dict.fromkeys(names)))


def setup_for(common: tuple[str, ...], terms: HostTerms) -> tuple[str, ...]:
    """The shell lines for a host: its temporary folder is made first, its own lines come last."""
    folder = [f"mkdir -p -- {shlex.quote(terms.tmp)}"] if terms.tmp else []
    return (*folder, *common, *terms.setup)


def env_for(common: Mapping[str, str], terms: HostTerms) -> dict[str, str]:
    """The workers' environment on a host."""
    tmp = {"TMPDIR": terms.tmp} if terms.tmp else {}
    return {**common, **tmp, **terms.env}


def _table(where: str, hosts: frozenset[str] | None, value: object) -> Table:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a table, not {value!r:.40}")
    found: dict[str, Any] = {}
    for key, raw in value.items():
        reader = _KEYS.get(key.replace("-", "_"))
        if reader is None:
            raise UsageError(f"{where}: there is no key {key!r}: use {', '.join(_KEYS)}")
        try:
            found[key.replace("-", "_")] = reader(raw)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{where} {key}: {error}") from None
    return Table(where, hosts, HostTerms(**found))


def _over(below: HostTerms, above: HostTerms) -> HostTerms:
    return replace(
        below,
        python=above.python or below.python,
        setup=above.setup or below.setup,
        env={**below.env, **above.env},
        tmp=above.tmp or below.tmp,
        ssh={**below.ssh, **above.ssh},
        bundle=below.bundle if above.bundle is None else above.bundle,
        labels=tuple(dict.fromkeys((*below.labels, *above.labels))),
    )


def _said(terms: HostTerms) -> dict[str, Any]:
    plain = {name: getattr(terms, name) for name in ("python", "setup", "tmp", "labels")}
    found: dict[str, Any] = {key: value for key, value in plain.items() if value}
    found |= {} if terms.bundle is None else {"bundle": terms.bundle}
    found |= {f"env.{name}": value for name, value in terms.env.items()}
    return found | {f"ssh.{name}": value for name, value in terms.ssh.items()}


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value or "\n" in value:
        raise ValueError(f"it must be one line of text, not {value!r}")
    return value


def _path(value: object) -> str:
    if not posixpath.isabs(_text(value)):
        raise ValueError(f"it must be an absolute path, not {value!r}")
    return str(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"it must be true or false, not {value!r}")
    return value


def _lines(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.splitlines())
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise ValueError(f"it must be a list of shell lines, not {value!r}")


def _env(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'it must be a table of NAME = "value", not {value!r}')
    return dict(units.env_pair(f"{name}={_scalar(name, v)}") for name, v in value.items())


def _ssh(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"it must be a table such as {{ Port = 2222 }}, not {value!r}")
    for name in value:
        if not _OPTION.fullmatch(name):
            raise ValueError(f"{name!r} is no option of ssh_config")
    return {name: _text(_scalar(name, v)) for name, v in value.items()}


def _scalar(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (str, int)):
        return str(value)
    raise ValueError(f"{name} must be a text or a number, not {value!r}")


_KEYS: dict[str, Callable[[Any], Any]] = {
    "python": _text,
    "setup": _lines,
    "env": _env,
    "tmp": _path,
    "ssh": _ssh,
    "bundle": _truth,
    "labels": labels_of,
}
