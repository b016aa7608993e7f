"""`ctl config`: the answer to "why does it use that value?"."""

from __future__ import annotations

import click

from ctl import render
from ctl.session import Session


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.pass_obj
def command(session: Session, as_json: bool) -> None:
    """Show all settings, and where each value came from."""
    config = session.config
    if as_json:
        settings = {
            name: {"value": setting.value, "source": setting.source}
            for name, setting in config.settings.items()
        }
        render.document({"file": config.file, "looked": config.looked, "settings": settings})
        return
    found = "this one holds" if config.file else "none is there"
    print(f"# fleet.toml: {config.file or ', '.join(config.looked)} ({found})")
    rows = [(name, _shown(s.value), s.source) for name, s in config.settings.items()]
    render.table(("setting", "value", "from"), rows)


def _shown(value: object) -> str:
    if value is None or value == () or value == {}:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items())
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
