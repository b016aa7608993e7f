"""`ctl config`: the answer to "why does it use that value?"."""

from __future__ import annotations

import click

from ctl import completion, render
from ctl.bundle import onroot
from ctl.config import Config
from ctl.hosts import names_of
from ctl.session import Session
from fsworker.errors import FleetError, UsageError


@click.command()
@click.argument("host", required=False, shell_complete=completion.hosts)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.pass_obj
def command(session: Session, host: str | None, as_json: bool) -> None:
    """Show all settings, and where each value came from; with HOST also what holds for it alone."""
    config = session.config
    host = None if host is None else _one(session, host)
    own = config.tables.sources(host) if host else {}
    release = onroot.release(bundle=_bundles(config))
    if as_json:
        settings = {
            name: {"value": setting.value, "source": setting.source}
            for name, setting in config.settings.items()
        }
        told: dict[str, object] = {
            "shardfleet": release,
            "file": config.file,
            "looked": config.looked,
            "settings": settings,
        }
        if host:
            here = {name: {"value": v, "source": source} for name, (v, source) in own.items()}
            told["host"] = {"name": host, "settings": here}
        render.document(told)
        return
    print(f"# shardfleet {', '.join(f'{k} {v}' for k, v in release.items() if v)}")
    found = "this one holds" if config.file else "none is there"
    print(f"# fleet.toml: {config.file or ', '.join(config.looked)} ({found})")
    rows = [(name, _shown(s.value), s.source) for name, s in config.settings.items()]
    rows += [(f"{host}: {name}", _shown(v), source) for name, (v, source) in own.items()]
    render.table(("setting", "value", "from"), rows)


def _one(session: Session, text: str) -> str:
    """The host that is meant. UsageError unless it is exactly one."""
    names = names_of(text, "HOST")
    if len(names) != 1:
        raise UsageError(f"config shows one host at a time: {text!r} names {len(names)}")
    try:
        if len(session.allowed):
            return session.allowed.check(names[0]).name
    except FleetError as error:  # what would hold for it is told all the same
        session.note(str(error))
    return names[0]


def _bundles(config: Config) -> bool:
    """Whether any host is to run from a bundle."""
    tables = (table.terms.bundle for table in config.tables.tables)
    return bool(config.get("bundle")) or any(tables)


def _shown(value: object) -> str:
    if value is None or value == () or value == {}:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items())
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
