"""`ctl rounds`: the groups of a run, who is in their rounds, and the terms on which these close."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from ctl import groupstatus, render, roots, units
from ctl.groupstatus import Aggregator, GroupStatus
from ctl.params import COUNT, Read, json_option, root_option
from ctl.session import Session
from fsworker.errors import FleetError, UsageError
from fsworker.protocol import federation
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.round import LATE, Group
from fsworker.protocol.records.rules import LORA


def _or(word: str, name: str, read: Callable[[Any], Any]) -> Read:
    """An option whose value may also be a word that means None; given as a tuple of one."""

    def either(text: Any) -> tuple[Any]:
        return (None if text == word else read(text),)

    return Read(name, either)


@click.command()
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@root_option
@click.option("--last", type=COUNT, default=5, help="Closed rounds that are shown [default: 5].")
@click.option("--size", type=COUNT, help="Make the group if there is none, for so many jobs.")
@click.option("--rule", metavar="NAME", help="Merge by this rule from the open round on.")
@click.option("--option", "options", multiple=True, metavar="K=V", help="An option of the rule.")
@click.option(
    "--quorum", type=_or("all", "number", units.count), help="Close with this many, or all."
)
@click.option(
    "--deadline",
    type=_or("none", "duration", units.duration),
    help="Wait this long for the others, or none.",
)
@click.option("--episodes", type=COUNT, help="The last round.")
@click.option(
    "--key", "keys", multiple=True, metavar="PATTERN=ACTION", help="What becomes of keys."
)
@click.option("--lora", type=click.Choice(LORA), help="What is averaged of low-rank adapters.")
@click.option("--keep-rounds", type=COUNT, help="Keep the uploads and models of this many rounds.")
@click.option("--late", type=click.Choice(LATE), help="What becomes of late uploads.")
@json_option
@click.pass_obj
def command(session: Session, /, **given: Any) -> int:
    """Show rounds: who is in, who is missing and why; or change the terms of a group.

    --rule, --option, --quorum, --deadline, --episodes, --key, --lora, --keep-rounds and --late
    change a group while it runs; the open round closes by the new terms. With --size the group is
    made first, so that its jobs find these terms. Exit code 1: a group is stuck, has failed, or
    cannot be read.
    """
    return _rounds(session, **given)


def _rounds(
    session: Session,
    names: tuple[str, ...],
    root: str | None,
    last: int,
    size: int | None,
    as_json: bool,
    **terms: Any,
) -> int:
    run = roots.open_run(*roots.find_root(root, session.config))
    if (changes := _changes(terms)) and len(names) != 1:
        raise UsageError("name the one group whose terms are to change")
    if size is not None:
        _make(run.store, names, size, changes)
    if changes:
        federation.edit_group(run.store, names[0], **changes)
        session.say(render.clean(f"{names[0]}: changed {', '.join(sorted(changes))}"))
    who = groupstatus.aggregator(run.store)
    found, broken = [], {}
    for name in names or federation.all_groups(run.store):
        try:
            found.append(groupstatus.look(run.store, name, who, last))
        except FleetError as error:
            if names:
                raise
            broken[name] = str(error)
    code = int(bool(broken) or any(g.state in ("stuck", "failed") for g in found))
    if as_json:
        rows = [group.fields() for group in found]
        fields = {"root": run.root, "aggregator": who.fields(), "groups": rows, "broken": broken}
        render.document({**fields, "exit_code": code})
    else:
        _show(session, who, found, broken)
    return code


def _make(store: Store, names: tuple[str, ...], size: int, changes: dict[str, Any]) -> None:
    """Make the group on its terms at once: where these cannot be, none is left with others."""
    if len(names) != 1:
        raise UsageError("name the one group that is to be made")
    there = names[0] in federation.all_groups(store)
    federation.create_group(store, replace(Group(names[0], size), **({} if there else changes)))


def _changes(terms: dict[str, Any]) -> dict[str, Any]:
    """What is to be changed. `--quorum all` and `--deadline none` come as (None,)."""
    apart = ("options", "keys", "quorum", "deadline")
    found = {k: v for k, v in terms.items() if k not in apart}
    changes = {k: v for k, v in found.items() if v is not None}
    for name in ("quorum", "deadline"):
        if terms[name] is not None:
            changes[name] = terms[name][0]
    if terms["keys"]:
        changes["keys"] = dict(map(_key, terms["keys"]))
    if terms["options"]:
        changes["options"] = dict(map(_option, terms["options"]))
    elif "rule" in changes:
        changes["options"] = {}  # those of the old rule mean nothing to another
    return changes


def _key(text: str) -> tuple[str, str]:
    pattern, _, action = text.rpartition("=")
    if not pattern or not action:
        raise UsageError(f"--key {text!r:.80}: give PATTERN=ACTION")
    return pattern, action


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        number = json.loads(value)
    except ValueError:
        number = None
    if not equals or not name or not isinstance(number, (int, float)) or number != number:
        raise UsageError(f"--option {text!r:.80}: give NAME=NUMBER")
    return name, number


def _terms(group: Any) -> str:
    deadline = "none" if group.deadline is None else units.human(group.deadline)
    return (
        f"quorum {group.needed} of {group.size}, deadline {deadline}, late uploads: {group.late}, "
        f"kept rounds: {group.keep_rounds}"
    )


def _show(
    session: Session, who: Aggregator, found: list[GroupStatus], broken: dict[str, str]
) -> None:
    def say(words: str) -> None:
        session.say(render.clean(words))

    say(who.words)
    for name in who.waits_for:
        say(f"it waits for a group {name!r}, which is not there")
    for status in found:
        group = status.view.group
        say("")
        say(f"{group.group}: rule {group.rule}, {_terms(group)}")
        of = f" of {group.episodes}" if group.episodes else ""
        why = status.why if status.state not in ("finished", "merging") else ""
        say(f"round {status.view.round}{of}: {status.state}{': ' if why else ''}{why}")
        if status.told and status.told != why:
            say(f"the aggregator says: {status.told}")
        if status.state not in ("finished", "merging", "idle"):
            rows = [(p.job, p.state, p.reason) for p in status.participants()]
            render.table(("job", "state", "reason"), rows)
        if status.closed:
            say("")
            render.table(
                ("round", "in", "not in", "waited", "merged"), list(map(_row, status.closed))
            )
    for name, words in broken.items():
        say("")
        say(f"{name}: {words}")
    if not found and not broken:
        say("there are no groups")


def _row(closed: groupstatus.Closed) -> tuple[object, ...]:
    plan = closed.plan
    out = [f"{job} ({words.partition(':')[0]})" for job, words in plan.refused.items()]
    out += [f"{job} (missing)" for job in plan.missing]
    times = [("-" if t is None else units.human(t)) for t in (closed.waited, closed.merged)]
    return plan.round, len(plan.contributors), ", ".join(out) or "-", *times
