"""`ctl fsck`: does what lies on the root agree with the protocol, and with who sent it?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import click

from ctl import auditing, locks, mending, render, roots
from ctl.auditing import Audit
from ctl.mending import Act
from ctl.params import json_option, root_option
from ctl.roots import Run
from ctl.session import Session
from fsworker.protocol.fsops import storage_error

SHOWN = 20
"""Lines of a kind that people are shown; --json has them all."""


@click.command()
@root_option
@click.option("--repair", is_flag=True, help="Do what the protocol allows about what is found.")
@click.option("--quick", is_flag=True, help="Look at names only: read no data file.")
@json_option
@click.pass_obj
def command(session: Session, root: str | None, repair: bool, quick: bool, as_json: bool) -> int:
    """Audit a run root, live or not.

    Every batch must be in one place, every data file exactly itself, and the batches of each sender
    whose numbers are known must add up. What is wrong is looked at twice. Garbage is listed apart,
    and is no fault. Exit code 1: something is wrong.

    --repair returns the claims of owners that are gone, sets damaged pending batches aside with an
    answer to their clients, and removes garbage that nobody can be using. It says what it does.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    acts: list[Act] = []

    def tell(act: Act) -> None:
        acts.append(act)
        session.say(render.clean(act.line))

    try:
        found = _run(run, tell if repair else None, quick)
    except OSError as error:
        raise storage_error(error, "audit", run.root) from None
    if as_json:
        told = [{"done": a.done, "path": a.path, "words": a.words} for a in acts]
        fields = {"root": run.root, "clean": not found.damage, **auditing.to_plain(found)}
        render.document({**fields, "acts": told} if repair else fields)
    else:
        _show(session, run, found)
    return 1 if found.damage else 0


def _run(run: Run, tell: Callable[[Act], None] | None, quick: bool) -> Audit:
    progress = functools.partial(render.progress, "files")
    if tell is None:
        return auditing.audit_run(run, quick=quick, progress=progress)
    with locks.verb_lock(run.store, "fsck --repair"):
        found = mending.mend(run, tell, quick=quick, progress=progress)
        locks.record(run.store, "fsck", event="repair", damage=len(found.damage))
        return found


def _show(session: Session, run: Run, found: Audit) -> None:
    plain = auditing.to_plain(found)
    if found.rows:
        headers = ("stream", "sender", "pending", "claimed", "committed", "read", "submitted")
        rows = [
            (
                r.stream,
                r.source or "-",
                r.pending,
                r.claimed,
                r.committed,
                "-" if r.read is None else r.read,
                "-" if r.submitted is None else r.submitted,
            )
            for r in found.rows
        ]
        render.table(headers, _cut(rows, len(headers)))
    for what, items in (("damage", found.damage), ("garbage", found.garbage)):
        if items:
            session.say(f"{what}: {len(items)}")
            table = [(i.kind, i.path, i.words) for i in items]
            render.table(("kind", "path", "what"), _cut(table, 3))
    if found.seen.ignored:
        session.say(f"ignored: {len(found.seen.ignored)} names that mean nothing to the protocol")
        for name in found.seen.ignored[:SHOWN]:
            session.say(f"  {render.clean(name)}")
    for folder in ("dead", "quarantine"):
        if plain[folder]:
            session.say(f"{folder}: {plain[folder]} (see ctl {folder} list)")
    state = "live" if found.living else "not live"
    verdict = f"{len(found.damage)} things are wrong" if found.damage else "clean"
    session.say(f"{verdict}: {run.root} ({state}, {found.files} data files read)")


def _cut(rows: Sequence[tuple[object, ...]], width: int) -> list[tuple[object, ...]]:
    if len(rows) <= SHOWN:
        return list(rows)
    more = (f"… {len(rows) - SHOWN} more",)
    return [*rows[:SHOWN], more + ("",) * (width - 1)]
