"""`ctl job show`: one job whole, with its attempts and what became of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ctl import render, roots, units
from ctl.jobs import naming
from ctl.jobs.board import Board, Row, row
from ctl.params import json_option, root_option
from ctl.session import Session
from fsworker.jobs.finish import finish
from fsworker.protocol import federation, jobstate
from fsworker.protocol.records.job import AttemptNote
from fsworker.protocol.records.needs import read_needs


@click.command()
@click.argument("names", metavar="JOB|GROUP…", nargs=-1, required=True)
@root_option
@json_option
@click.pass_obj
def command(session: Session, names: tuple[str, ...], root: str | None, as_json: bool) -> int:
    """Show a job: what was asked, where it is, its attempts, its result."""
    run = roots.open_run(*roots.find_root(root, session.config))
    board = Board.look(run)
    found = []
    for job in naming.jobs_of(run, names):
        now = row(run, board, job)
        if now.over:
            finish(run.store, job)  # in case its worker could not
        found.append((now, [n for _, n in jobstate.attempts(run.store, job) if n is not None]))
    if as_json:
        jobs = [_fields(run, now, notes) for now, notes in found]
        render.document({"root": run.root, "jobs": jobs})
        return 0
    for now, notes in found:
        for line in _lines(_fields(run, now, notes)):
            print(render.clean(line))
    return 0


def _fields(run: roots.Run, now: Row, notes: list[AttemptNote]) -> dict[str, Any]:
    group = now.job.federation_group_id if now.job else None
    members = sorted(federation.members(run.store, group).values()) if group else None
    return {
        **now.fields(),
        "asked": asdict(now.job) if now.job else None,
        "result": vars(now.result) if now.result else None,
        "attempts": [vars(note) for note in notes],
        "members": members,
    }


def _lines(told: dict[str, Any]) -> list[str]:
    result, asked = told["result"], told["asked"]
    where = f" on {told['host']}" if told["host"] else ""
    out = [f"{told['job_id']}: {told['status']}{where}, submitted {units.human(told['age_s'])} ago"]
    out.append(f"  episodes   {told['episode']} of {told['episodes']} finished")
    if told["error"]:
        out.append(f"  error      {told['error']}")
    if asked:
        out.append(f"  command    {' '.join(asked['command'])}")
        if needs := read_needs(asked["needs"]):
            out.append(f"  needs      {needs}")
    if told["group"]:
        out.append(f"  group      {told['group']}: {', '.join(told['members'] or [])}")
    if told["after"]:
        out.append(f"  after      {told['after']}")
    if result:
        out.append(f"  rewards    {_reward(told['total_reward'])} in all, "
                   f"{_reward(told['final_reward'])} last")  # fmt: skip
        out.append(f"  took       {units.human(result['elapsed_seconds'])} in its last attempt")
        out.append(f"  checkpoint {result['checkpoint'] or 'none'}")
    for note in told["attempts"]:
        words = f": given back, {note['returned']}" if note["returned"] else ""
        out.append(
            f"  attempt {note['attempt']}  {note['started_at']} on {note['host']}, from episode "
            f"{note['first']}{words}"
        )
    return out


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
