"""`fedavg verify`: is every global model of a group what its records say?"""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from fsworker.errors import FormatError


@click.command()
@click.argument("group")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
@click.option(
    "--recompute", is_flag=True, help="Merge again every round whose uploads are kept, and compare."
)
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(group: str, root: str | None, recompute: bool, threads: int, as_json: bool) -> int:
    """Walk the chain of a group's merges and read every model that is kept.

    Exit code 8: a model, a plan or a merge record is not what another one says. 7: something cannot
    be read, or there is no room in TMPDIR to compute a model again.
    """
    from fedavg import verifying  # lazily: this imports torch
    from fedavg.formats.errors import shown
    from fedavg.roots import open_root
    from fsworker.protocol import federation

    store = open_root(root)
    federation.read_group(store, group)
    links = []
    for link in verifying.walk(store, group, recompute=recompute, threads=threads):
        links.append(link)
        if not as_json:  # at once: what is found stays said, whatever comes later
            why = f": {link.why}" if link.why else ""
            print(shown(f"round {link.round}: {link.found}{why}"))
    broken = [link for link in links if link.found == "broken"]
    code = FormatError.exit_code if broken else 0
    if as_json:
        rows = [asdict(link) for link in links]
        print(json.dumps({"group": group, "rounds": rows, "exit_code": code}))
        return code
    if not links:
        print(shown(f"{group} has no merged round yet"))
    if broken:
        raise FormatError(f"{len(broken)} of {len(links)} rounds of {group!r} are broken")
    return code
