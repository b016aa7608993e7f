"""`ctl doctor`: measure whether hosts and filesystem are fit, before or while a run is there."""

from __future__ import annotations

import os

import click

from ctl import completion, launching, planning, render, roots
from ctl.bundle import onroot
from ctl.doctor import measure, report
from ctl.doctor.measure import Patient
from ctl.drift import onroot as drift
from ctl.hosts import names_of
from ctl.params import json_option
from ctl.planning import Wish
from ctl.session import Session
from fsworker.errors import NotRunning, UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import LaunchMeta


@click.command()
@click.argument("hosts", metavar="[HOSTS]", required=False, shell_complete=completion.hosts)
@click.option(
    "--root", metavar="DIR", help="A run root, or any folder in which one is to be [FLEET_ROOT]."
)
@click.option("--fn", "functions", multiple=True, help="Functions that hosts must know.")
@click.option("--launcher", help="How hosts are reached [default: the run's, or ssh].")
@json_option
@click.pass_obj
def command(
    session: Session,
    hosts: str | None,
    root: str | None,
    functions: tuple[str, ...],
    launcher: str | None,
    as_json: bool,
) -> int:
    """Examine hosts: login, Python, functions, filesystem, limits, and who differs in code.

    All is measured on each host at once, nothing is assumed: files are written to the root and
    removed again, functions are imported, and the time is taken until the other side sees a file.
    Each line is ok, warn or fail. Exit code 1: something fails.
    """
    base = root or session.config.get("root")
    if base is None:
        raise UsageError("no root is named: give --root, or set FLEET_ROOT")
    meta, patient = _patient(session, os.path.abspath(base), hosts, functions, launcher)
    names = _hosts(session, meta, hosts)
    with onroot.lent(patient.store, meta) as meta, launching.opened(meta, names) as opened:
        found = measure.examine(patient, opened, names, session.config.get("width"))
    failure = measure.summary(found)
    if as_json:
        lines = [check.fields(host) for host, checks in found.items() for check in checks]
        render.document({"root": base, "checks": lines, "exit_code": int(failure is not None)})
        return int(failure is not None)
    report.show(found)
    if failure:
        raise failure
    return 0


def _patient(
    session: Session,
    base: str,
    hosts: str | None,
    functions: tuple[str, ...],
    launcher: str | None,
) -> tuple[LaunchMeta, Patient]:
    """The run that is at `base`, or the one that a start would make there."""
    try:
        run = roots.open_run(base)
        served = functions or run.manifest.functions
        if launcher is None or launcher == run.need_meta().launcher:
            meta, running = run.need_meta(), drift.members(run.store)
            return meta, Patient(run.store, served, meta.env, layout.CTL, running)
    except NotRunning:
        served = functions
    if not os.path.isdir(base):
        raise UsageError(f"{base} is not a folder: name the run root, or the folder for it")
    flags = {"launcher": launcher} if launcher else {}
    wish = Wish(hosts=hosts, functions=functions, flags=flags)
    plan = planning.make(wish, session.config, session.allowed, base, "doctor", None)
    return plan.meta, Patient(Store(base), served, plan.meta.env)


def _hosts(session: Session, meta: LaunchMeta, hosts: str | None) -> list[str]:
    """The hosts to examine: those named, or those of the run; each must be allowed."""
    names = names_of(hosts, "HOSTS") if hosts else [w.host for w in meta.workers]
    if meta.launcher == "local" and not len(session.allowed):
        return names  # contacts nobody: without a list, the names are only labels
    return [host.name for host in session.allowed.select(names)]
