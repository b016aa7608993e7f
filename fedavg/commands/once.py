"""`fedavg once`: what can be merged now is merged; for cron, and for scripts."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

PASSES = 1000
"""Rounds that one call merges of a group at most; there can only be as many as were uploaded."""


@click.command()
@click.argument("groups", nargs=-1, metavar="[GROUP...]")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(groups: tuple[str, ...], root: str | None, threads: int, as_json: bool) -> int:
    """Close and merge the rounds that are ready, and end.

    Exit code 1: a group failed or is stuck; 3: a GROUP is not there; 10: another aggregator is at
    work.
    """
    from fedavg.aggregator import Aggregator, leadership, refuse_absent  # lazily: imports torch
    from fedavg.formats.errors import shown
    from fedavg.roots import open_root

    store = open_root(root)
    refuse_absent(store, groups, "nothing was merged")
    with leadership(store) as alone:
        aggregator = Aggregator(store, groups, alone=alone, threads=threads)
        aggregator.catch_up(PASSES)
    bad = [g for g, report in aggregator.reports.items() if report.state in ("failed", "stuck")]
    if as_json:
        rows = {group: asdict(report) for group, report in aggregator.reports.items()}
        print(json.dumps({"root": store.root, "groups": rows, "exit_code": int(bool(bad))}))
        return int(bool(bad))
    for group, report in sorted(aggregator.reports.items()):
        print(shown(f"{group}: round {report.round}: {report.state}: {report.why}"))
    if not aggregator.reports:
        print("there are no groups")
    return int(bool(bad))
