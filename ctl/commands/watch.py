"""`ctl watch`: restart what died, return its work, say why; from now on or once from cron."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ctl import roots
from ctl.params import DURATION, POSITIVE, root_option
from ctl.session import Session
from ctl.watcher import check_stale
from fsworker.errors import FleetError, Refused, UnknownState
from fsworker.protocol.layout import WATCH_ERR
from fsworker.protocol.records.run import LaunchMeta

if TYPE_CHECKING:
    from ctl.rootio import RootIO

ANSWER_WITHIN = 45.0
"""Seconds for the first answer from the root, the start of a Python on a busy node included."""


@click.command()
@root_option
@click.option(
    "--heartbeat-stale", type=POSITIVE, help="Age at which a host is probed [default: 60s]."
)
@click.option("--interval", type=POSITIVE, help="Time between two sweeps [default: 10s].")
@click.option(
    "--restart-cooldown",
    type=DURATION,
    help="Least time between two restarts of a host [default: 30s].",
)
@click.option(
    "--fence-after",
    type=DURATION,
    help="Time out of reach after which claims return [default: 60s].",
)
@click.option("--grace", type=DURATION, help="Time to end after TERM, before KILL [default: 60s].")
@click.option("--once", is_flag=True, help="Look once, do what is due, and end: for cron.")
@click.pass_obj
def command(
    session: Session,
    root: str | None,
    heartbeat_stale: float | None,
    interval: float | None,
    restart_cooldown: float | None,
    fence_after: float | None,
    grace: float | None,
    once: bool,
) -> int:
    """Watch a run: restart what died and return its work to the inbox.

    Ends on TERM or Ctrl-C, or when ctl/watch.stop is there. Exit code: 0 ended or all well,
    1 (--once) somebody needs help, 4 (--once) the root does not answer, 10 another watcher is at
    work.
    """
    from ctl.health import Limits  # lazily, like all that only a watcher needs
    from ctl.journal import Journal
    from ctl.sdnotify import Manager
    from ctl.watch import Options, Watcher

    config = session.config
    stale = config.pick("watch_stale", heartbeat_stale)
    check_stale(stale)
    manager = Manager()  # first: no process that we start may speak in our name
    io, run = _open(session, root, once)
    limits = Limits(
        stale=stale,
        ready=run.need_meta().ready_timeout,
        cooldown=config.pick("restart_cooldown", restart_cooldown),
        fence=config.pick("fence_after", fence_after),
        grace=config.pick("grace", grace),
    )
    renew = bool(config.get("renew"))
    options = Options(limits, config.pick("interval", interval), renew=renew)
    journal = Journal(echo=not _stderr_is(run.store.path(WATCH_ERR)))
    watcher = Watcher(io, options, lambda m: _allowed(session, m), journal, manager)
    try:
        return watcher.once() if once else watcher.run()
    finally:
        watcher.close()


def _open(session: Session, root: str | None, once: bool) -> tuple[RootIO, roots.Run]:
    """The run, and the process through which it is watched."""
    from ctl.rootio import RootIO

    named, source = roots.find_root(root, session.config)
    io = RootIO(named)
    try:
        _check_answers(io, once)
        run = roots.open_run(named, source)
        _check_allowed(session, run.need_meta())
    except BaseException:
        io.close()
        raise
    return io, run


def _check_answers(io: RootIO, once: bool) -> None:
    """Wait until the root answers, before this process touches it and hangs as well.

    Raises UnknownState with `once`: from cron, a new process would hang every minute.
    """
    from ctl.journal import Journal
    from ctl.lookout import Lookout
    from ctl.rootio import Late

    def ask() -> None:
        try:
            io.call("memory", ANSWER_WITHIN)
        except Late as error:
            if once:
                raise UnknownState(str(error), path=io.root) from error
            raise
        except FleetError:
            pass  # there is an answer; opening the run says it better

    Lookout(io, Journal(), 1.0).insist(ask, lambda: False)


def _stderr_is(path: str) -> bool:
    """Whether stderr is the file that a detached watcher is given for what it cannot log itself.

    That file lies on the root as the log does, so what goes to the log must not go there too.
    """
    try:
        return os.path.samestat(os.fstat(2), os.stat(path))
    except OSError:
        return False


def _allowed(session: Session, meta: LaunchMeta) -> frozenset[str]:
    """The hosts of the run that may be contacted."""
    names = frozenset(worker.host for worker in meta.workers)
    if meta.launcher == "local" and not len(session.allowed):
        return names  # contacts nobody: without a list, the names are only labels
    joined = frozenset(meta.attached)  # never contacted, so nobody has to allow them
    return joined | frozenset(name for name in names if name in session.allowed)


def _check_allowed(session: Session, meta: LaunchMeta) -> None:
    """Say which hosts will be left alone; Refused when that is all of them."""
    names = {worker.host for worker in meta.workers}
    left = sorted(names - _allowed(session, meta))
    if names and len(left) == len(names):
        session.allowed.check(left[0])
        raise Refused(f"host {left[0]!r} is not allowed", host=left[0])
    if left:
        session.note(f"not allowed any more, so left alone: {', '.join(left)}")
