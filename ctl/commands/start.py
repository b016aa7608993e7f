"""`ctl start`: a run root, one worker on each host, and a proof that all of them are ready."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from ctl import (
    aggregating,
    bringup,
    current,
    launching,
    localfiles,
    locks,
    mounts,
    planning,
    render,
    roots,
    rundir,
    signs,
    watcher,
)
from ctl.bundle import onroot
from ctl.commands.restart_host import complain
from ctl.commands.stop import stop_run
from ctl.params import (
    COROUTINES,
    COUNT,
    ENV_PAIR,
    GPUS,
    POSITIVE,
    SIZE,
    START,
    WHOLE,
    json_option,
    member_options,
    python_options,
)
from ctl.planning import Plan, Wish
from ctl.session import Session
from ctl.slurm.options import check as check_slurm
from ctl.slurm.options import slurm_options
from fsworker.errors import FleetError, NotRunning, Refused, StorageError, UsageError
from fsworker.protocol import layout


@click.command()
@click.option(
    "--root",
    metavar="DIR",
    help="The run root, or with --trial what it lies below [default: FLEET_ROOT].",
)
@click.option("--experiment", help="With --trial: the run root is ROOT/EXPERIMENT/TRIAL/RUN_ID.")
@click.option("--trial", help="See --experiment.")
@click.option("--run-id", help="Name of the run [default: time and a random part].")
@click.option(
    "--fn",
    "--reward-fn",
    "fn",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="Function that the workers serve; may be given several times.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="PATTERN",
    help="Functions that tasks may call besides, as 'package.*'; may be given several times.",
)
@click.option(
    "--workers-json", metavar="JSON|FILE", help='[{"host": …, "shard": …, "concurrency": …}, …]'
)
@click.option("--hosts", metavar="SET", help="Hosts, as in node[01-16,20] [default: all allowed].")
@click.option("--shard-count", type=COUNT, help="Shards [default: highest shard + 1].")
@click.option("--concurrency", type=WHOLE, help="Slots of a worker; 0: jobs alone [default: 48].")
@click.option("--job-slots", type=WHOLE, help="Training jobs that a worker runs [default: 1].")
@click.option(
    "--pass-env",
    multiple=True,
    metavar="NAME",
    help="Variable of this machine that jobs may ask for; its value is written nowhere.",
)
@click.option("--slot-mem", type=SIZE, metavar="SIZE", help="Memory that a slot may use, as 2G.")
@click.option("--gpus", type=GPUS, metavar="N|LIST", help="GPUs that a worker's slots share out.")
@click.option("--slots-per-gpu", type=COUNT, help="Slots that may share a GPU [default: 1].")
@click.option("--slot-async", type=COROUTINES, metavar="N", help="Coroutines of a slot at once.")
@click.option("--slot-start", type=START, help="How slots start [default: spawn with GPUs].")
@click.option("--ready-timeout", type=POSITIVE, help="Time for all to be ready [default: 60s].")
@click.option(
    "--heartbeat-stale", type=POSITIVE, help="Age at which a heartbeat is stale [default: 15s]."
)
@click.option("--task-timeout", type=POSITIVE, help="Time that one task may take [default: any].")
@click.option("--max-deaths", type=COUNT, help="Worker deaths before a task is given up.")
@click.option("--launcher", help="How hosts are reached: ssh, local or slurm [ssh].")
@click.option("--ssh-config", metavar="FILE", help="Instead of ~/.ssh/config.")
@slurm_options
@click.option("--accept-new", is_flag=True, default=None, help="Add unknown host keys.")
@click.option("--no-respawn", is_flag=True, help="Run workers without their wrapper.")
@click.option("--ws", "workspace", metavar="DIR", help="Workspace: HOME and TMPDIR of workers.")
@python_options
@click.option(
    "--env",
    "env",
    type=ENV_PAIR,
    multiple=True,
    metavar="K=V",
    help="Environment of the workers; may be given several times.",
)
@click.option("--group", metavar="GROUP", help="Share the run root with this group.")
@member_options
@click.option("--replace", is_flag=True, help="Stop the workers of a live root first.")
@click.option("--federation", is_flag=True, help="Merge rounds: leave an aggregator running.")
@click.option("--watch", "with_watch", is_flag=True, help="Leave a watcher running.")
@click.option("--doctor", is_flag=True, help="Examine the hosts first; a failure starts nothing.")
@click.option("--dry-run", is_flag=True, help="Check everything, say what would be done.")
@json_option
@click.pass_obj
def command(session: Session, /, **options: Any) -> int:
    """Start a run: write its root, start a worker on each host, wait until all are ready.

    Without --experiment and --trial the run root is ROOT itself, also where ROOT is FLEET_ROOT.
    Everything is checked first. If one host fails, all that was started is stopped again.
    """
    root, run_id = choose_place(session, options)
    if options["federation"]:
        aggregating.check()
    watcher.check_stale(session.config.pick("watch_stale", None), options["with_watch"])
    check_slurm(session.config.pick("launcher", options["launcher"]), options)
    plan = make_plan(session, options, root, run_id)
    check_disk(plan, named=options["root"] is not None)
    check_live(plan, options["replace"])
    if options["dry_run"]:
        _dry_run(session, plan)
        return 0
    store = rundir.lay(plan)
    with locks.verb_lock(store, "start"):
        # Again: another start may have been here while this one waited for its turn.
        plan = make_plan(session, options, root, run_id)
        live = check_live(plan, options["replace"])
        if live:
            _replace(session, live)
        onroot.provide(store, plan.meta)
        if options["doctor"]:
            _examine(session, plan, store)
        session.left = lambda: signs.left_of_start(plan.root)
        rundir.publish(plan, store)
        started = _launch(session, plan, store, options)
    if options["federation"]:
        pid = aggregating.renew(store)
        session.say(f"aggregating pid={pid} log={store.path(aggregating.LOG)}")
    if options["with_watch"]:
        pid = watcher.start(plan.root, session.config.file)
        session.say(f"watching pid={pid} log={store.path('ctl/watch.log')}")
    if session.json:
        pids = [
            {"host": h, "wrap_pid": s.wrap_pid, "worker_pid": s.worker_pid}
            for h, s in started.items()
        ]
        render.document({"root": plan.root, "run_id": plan.manifest.run_id, "hosts": pids})
    else:
        session.line({"ok": True, "phase": "ready", "root": plan.root})
    return 0


def choose_place(session: Session, options: dict[str, Any]) -> tuple[str, str]:
    """(run root, run id) of the start; what cannot be changed by waiting for a lock."""
    config = session.config
    base = options["root"] if options["root"] is not None else config.get("root")
    if base is None:
        raise UsageError("no root is named: give --root, or set FLEET_ROOT to the folder for runs")
    if options["run_id"] is not None:
        roots.check_part(options["run_id"], "--run-id")
    unserved = options["concurrency"] == 0  # it runs jobs alone
    if not options["fn"] and not unserved and config.source("fn") == "default":
        session.note(f"no --fn is given: serving {config.get('fn')[0]}")
    run_id = options["run_id"] or roots.new_run_id()
    return roots.run_root(base, options["experiment"], options["trial"], run_id), run_id


def make_plan(session: Session, options: dict[str, Any], root: str, run_id: str) -> Plan:
    """Everything that can be decided without touching the disk, by what is there now."""
    before = _existing(root)
    if before and not options["run_id"]:
        run_id = before.manifest.run_id  # a run that is started again stays the same run
    wish = Wish(
        workers_json=options["workers_json"],
        hosts=options["hosts"],
        shard_count=options["shard_count"] or options["nodes"],
        functions=options["fn"],
        allow=options["allow"],
        experiment=options["experiment"],
        trial=options["trial"],
        env=options["env"],
        respawn=not options["no_respawn"],
        flags={name: options[name] for name in planning.FLAGS if options[name] is not None},
    )
    return planning.make(wish, session.config, session.allowed, root, run_id, before)


def _existing(root: str) -> roots.Run | None:
    """The run that is there already. FormatError when it has another protocol version."""
    try:
        return roots.open_run(root)
    except NotRunning:
        return None


def check_disk(plan: Plan, *, named: bool) -> None:
    """Check the place, and that hosts can be asked at all. `named`: by the command line."""
    if named:
        rundir.check_target(plan.root, plan.manifest.group)
    else:
        advice = f"give --root {plan.root}/NAME, or --experiment and --trial"
        rundir.check_target(plan.root, plan.manifest.group, advice)
    current.check(plan.meta.workspace or "")
    localfiles.check(plan.meta)
    launching.open_for(plan.meta).close()


def check_live(plan: Plan, replace: bool) -> roots.Run | None:
    """The live run that is to be replaced, if there is one; Refused when it is not to be."""
    run = _existing(plan.root)
    if run is None:
        return None
    rundir.check_shards(run.store, plan.manifest.shard_count)
    sign = signs.of_life(run)
    if sign and not replace:
        raise Refused(
            f"{plan.root} is live, {sign}: stop it first, or give --replace", path=plan.root
        )
    return run if sign else None


def _replace(session: Session, run: roots.Run) -> None:
    """Stop what lives. The verb lock must be held."""
    session.note(f"--replace: stopping the workers of {run.root}")
    report = stop_run(session, run, session.config.get("grace"), None)
    if report.failed:
        raise Refused(f"nothing is started: {'; '.join(report.problems)}", path=run.root)


def _examine(session: Session, plan: Plan, store: Any) -> None:
    """Have every host examine itself; a FleetError when one of them is not fit."""
    from ctl.doctor import measure, report  # lazily: only a start that asks for it pays

    patient = measure.Patient(store, plan.manifest.functions, plan.meta.env, layout.CTL)
    with launching.opened(plan.meta) as launcher:
        found = measure.examine(patient, launcher, plan.hosts, session.config.get("width"))
    report.tell(session, found)
    failure = measure.summary(found)
    if failure:
        raise failure


def _launch(session: Session, plan: Plan, store: Any, options: dict[str, Any]) -> dict[str, Any]:
    if doubt := mounts.doubt(plan.root):
        session.note(doubt)
    meta_fields = current_fields(plan)
    if not session.json:
        session.line({"ok": True, "phase": "manifest", **meta_fields})
    try:
        if plan.meta.launcher == "slurm":
            from ctl.slurm import starting  # lazily: other runs have no use for it

            starting.submit(session, plan, store, options)
        with launching.opened(plan.meta) as launcher:
            width, say = session.config.get("width"), session.say
            crew = bringup.Crew(store, plan.meta, plan.hosts, launcher, width, say, complain)
            started = bringup.bring_up(crew, plan.meta.ready_timeout)
    except (FleetError, KeyboardInterrupt) as error:
        locks.record(store, "start", event="start failed", reason=str(error))
        raise
    try:
        current.write(plan.meta.workspace or "", meta_fields)
    except StorageError as error:
        # The fleet runs: to call that a failure would have it started twice.
        complain(f"warning: {error}: name this run with --root {plan.root}")
    locks.record(store, "start", event="started", hosts=plan.hosts, launches=plan.meta.launches)
    return started


def current_fields(plan: Plan) -> dict[str, Any]:
    """The run's meta as scripts know it, in the manifest line and in the current-run file."""
    fields = dataclasses.asdict(plan.meta)
    return {**fields, "functions": list(plan.manifest.functions)}


def _dry_run(session: Session, plan: Plan) -> None:
    fields = current_fields(plan)
    if session.json:
        render.document({"dry_run": True, **fields})
        return
    render.line({"ok": True, "phase": "dry-run", **fields})
    for worker in plan.manifest.workers:
        session.say(
            f"would start host={worker.host} shard={worker.shard} "
            f"concurrency={worker.concurrency} launch={plan.meta.launches[worker.host]}"
        )
