"""`ctl job submit`: a training run, as a command line with places to fill in."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ctl import render, roots, statusview
from ctl.jobs import asking, submitting
from ctl.params import (
    COUNT,
    DURATION,
    ENV_PAIR,
    POSITIVE,
    json_option,
    need_options,
    root_option,
)
from ctl.session import Session
from fsworker.errors import UsageError
from fsworker.jobs import templates
from fsworker.protocol.records.job import Job


@click.command()
@click.argument("words", metavar="[--] COMMAND…", nargs=-1, type=click.UNPROCESSED)
@root_option
@click.option("--file", "path", metavar="FILE", help="Read the job from a job.toml.")
@click.option("--id", "job_id", metavar="ID", help="Its name [default: time and a random part].")
@click.option("--episodes", type=COUNT, help="Episodes to train [default: 1].")
@click.option("--timeout", "timeout_seconds", type=POSITIVE, help="For each process [default: 1h].")
@click.option("--weights", metavar="FILE", help="Checkpoint to start from [default: fresh].")
@click.option("--after", metavar="JOB", help="Start when JOB has ended, from its last checkpoint.")
@click.option("--per-episode-sync", is_flag=True, default=None, help="A process an episode.")
@click.option("--agent-loop", is_flag=True, default=None, help="One process; episodes are tasks.")
@click.option("--federation-group", "federation_group_id", metavar="ID", help="Share one model.")
@click.option("--federation-size", type=COUNT, help="Participants of the group.")
@click.option(
    "--sync-timeout",
    "sync_server_weights_timeout_seconds",
    type=POSITIVE,
    help="Longest wait for the group's model [default: 2h].",
)
@click.option("--count", type=COUNT, help="Submit that many, alike but for their ids.")
@click.option("--param", "params", type=ENV_PAIR, multiple=True, metavar="K=V", help="For {K}.")
@click.option("--trace", metavar="FILE", help="For {trace}.")
@click.option("--agent", help="For {agent}: dqn, greedy, random or others.")
@click.option("--steps", type=COUNT, help="For {steps}.")
@click.option("--duration", type=DURATION, help="For {duration}, in seconds.")
@click.option("--namespace", help="For {namespace}.")
@click.option("--deploy", help="For {deploy}.")
@click.option("--target", help="For {target}.")
@click.option("--checkpoint", metavar="NAME", help="What it saves [default: checkpoint.pt].")
@click.option("--cwd", metavar="DIR", help="Folder that it runs in [default: this one].")
@click.option("--pass-env", multiple=True, metavar="NAME", help="Variable of its host it needs.")
@click.option("--preflight", metavar="CMD", help="Must succeed, or another host takes the job.")
@click.option("--postflight", metavar="CMD", help="Runs when it has ended, however it did.")
@click.option("--grace", type=DURATION, help="Time to save after TERM [default: 10s].")
@need_options
@click.option("--log-limit", metavar="SIZE", help="Head and tail of its log [64M; 0: all].")
@click.option("--keep-checkpoints", type=COUNT, help="Of the newest episodes [default: all].")
@click.option("--dry-run", is_flag=True, help="Check everything, show the job.")
@json_option
@click.pass_obj
def command(
    session: Session,
    /,
    words: tuple[str, ...],
    root: str | None,
    path: str | None,
    wait_for_workers: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Submit a training job.

    In COMMAND, {episode} {episodes} {total} {weights} {checkpoint} {job} and the names of options
    and parameters are filled in; {transfer} becomes `--load WEIGHTS --transfer`, or nothing for a
    fresh start. It must save a checkpoint to {checkpoint} that says how many episodes it has.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    jobs = asking.make(_told(words, path, options), path or "the command line")
    if not jobs[0].agent_loop and not templates.uses(jobs[0], ["checkpoint"]):
        session.note("the command does not name {checkpoint}: it must save to FLEET_CHECKPOINT")
    if dry_run:
        submitting.check(run, jobs, wait=wait_for_workers)
    else:
        submitting.submit(run, jobs, wait=wait_for_workers)
        if not statusview.alive_hosts(run, 15.0):
            session.note("no worker is alive: the job waits for one")
    _show(session, run, jobs, as_json, dry_run)
    return 0


def _told(words: tuple[str, ...], path: str | None, options: dict[str, Any]) -> dict[str, Any]:
    said = {k: v for k, v in options.items() if v not in (None, ())}
    if "params" in said:
        said["params"] = dict(said["params"])
    if "need" in said:
        said["needs"] = asking.needs_of(said.pop("need"), "--need")
    if words:
        said["command"] = words
    if path is None:
        if not words:
            raise UsageError("no command is named: give it behind --, or --file job.toml")
        said.setdefault("cwd", ".")
        return asking.absolute(said)
    file = asking.read_file(path)
    both = {k: {**file.get(k, {}), **said.get(k, {})} for k in ("params", "needs")}
    return {**file, **asking.absolute(said), **both}


def _show(session: Session, run: roots.Run, jobs: list[Job], as_json: bool, dry_run: bool) -> None:
    if as_json:
        fields = [asdict(job) for job in jobs] if dry_run else [job.job_id for job in jobs]
        render.document({"root": run.root, "jobs": fields, "dry_run": dry_run})
        return
    for job in jobs:
        if dry_run:
            session.say(job.to_json().decode().rstrip())
        else:
            session.say(job.job_id)
