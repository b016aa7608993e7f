"""`ctl job metrics`: the numbers that jobs reported, also while they run."""

from __future__ import annotations

import click

from ctl import render, roots
from ctl.jobs import naming, points
from ctl.jobs.points import Series
from ctl.params import json_option, root_option
from ctl.session import Session


@click.command()
@click.argument("names", metavar="JOB|GROUP…", nargs=-1, required=True)
@root_option
@click.option("--name", "wanted", multiple=True, metavar="NAME", help="Plot this number.")
@json_option
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    root: str | None,
    wanted: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show what jobs reported.

    The names over all of the selection with their last values; with --name, or when there is but
    one name, a plot of it. Exit code 1: nothing was reported, or not under that name.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    found = {job: points.read(run.store, job) for job in naming.jobs_of(run, names)}
    known = sorted({name for series in found.values() for name in series})
    missing = [name for name in wanted if name not in known]
    code = int(bool(missing) or not known)
    chosen = list(wanted) or known
    if as_json:
        jobs = {job: _fields(series, chosen, bool(wanted)) for job, series in found.items()}
        told = {"root": run.root, "names": known, "jobs": jobs, "exit_code": code}
        render.document(told)
        return code
    if not known:
        session.say("nothing was reported")
    elif not wanted:
        _table(found)
    for name in missing:
        session.note(f"no job reported {name!r}; there are {', '.join(known) or 'none'}")
    for name in wanted or (known if len(known) == 1 else ()):
        if name in known:
            lines = {job: s[name].points for job, s in found.items() if name in s}
            print(*points.plot(name, lines), sep="\n")
    return code


def _table(found: dict[str, dict[str, Series]]) -> None:
    rows = []
    for job, series in found.items():
        for name, one in sorted(series.items()):
            values = [value for _, value in one.points]
            step, last = one.last or (None, None)
            low, high = (min(values), max(values)) if values else (None, None)
            rows.append((job, name, one.count, *map(_text, (step, last, low, high))))
    render.table(("job", "name", "points", "step", "last", "least", "most"), rows)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _fields(
    series: dict[str, Series], chosen: list[str], whole: bool
) -> dict[str, dict[str, object]]:
    told: dict[str, dict[str, object]] = {}
    for name in chosen:
        if name in series:
            one = series[name]
            told[name] = {"points": one.count, "last": one.last}
            if whole:
                told[name]["values"] = one.points
    return told
