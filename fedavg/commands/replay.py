"""`fedavg replay`: a round's uploads under another rule."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from fedavg.targets import Target, named
from fsworker.errors import NotRunning, UsageError

if TYPE_CHECKING:
    from fsworker.protocol.groupview import GroupEye
    from fsworker.protocol.records.round import Plan


@click.command()
@click.argument("group")
@click.argument("number", type=click.IntRange(1), metavar="ROUND")
@click.option("-o", "--out", required=True, metavar="OUT", help="Write the model here.")
@click.option("--rule", metavar="NAME", help="Another rule [default: the round's own].")
@click.option(
    "--set", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the rule."
)
@click.option("--state-out", metavar="FILE", help="Write the rule's optimiser state here.")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    group: str, number: int, out: str, rule: str | None, params: tuple[str, ...],
    state_out: str | None, root: str | None, threads: int, as_json: bool,
) -> int:  # fmt: skip
    """Merge the kept uploads of a closed round again, and publish nothing.

    The same participants count, with the same weights. A rule that keeps a state goes on from that
    of the round before if that round had the same rule, else it starts anew.
    """
    from fedavg import publishing  # lazily: this imports torch
    from fedavg.formats.errors import shown
    from fedavg.roots import open_root
    from fsworker.protocol import federation
    from fsworker.protocol.groupview import GroupEye

    store = open_root(root)
    federation.check_name(group)
    if state_out is not None and os.path.realpath(state_out) == os.path.realpath(out):
        raise UsageError(f"{out}: -o and --state-out name one file, and need two", path=out)
    model, state = Target(out), Target(out if state_out is None else state_out)
    eye = GroupEye(store, group)
    plan = eye.plan(number)
    if plan is None:
        raise NotRunning(f"round {number} of {group!r} is not closed, or there is no such group")
    plan = _under(eye, plan, rule, params)
    if state_out is not None:
        _refuse_stateless(plan)
    model.sweep()
    with named([model, state]):
        publishing.compute(store, eye, plan, model.temporary, state.temporary, threads=threads)
    if state_out is None:
        state.drop()
    elif os.path.exists(state.temporary):
        state.publish()
    model.publish()
    jobs = [c.job for c in plan.contributors]
    if as_json:
        told = {"out": out, "rule": plan.rule, "options": plan.options, "jobs": jobs}
        print(json.dumps({**told, "exit_code": 0}))
    else:
        words = f"{out}: round {number} of {group} by {plan.rule}, of {', '.join(jobs)}"
        print(shown(words))
    return 0


def _refuse_stateless(plan: Plan) -> None:
    from fedavg import strategies

    if not strategies.rule(plan.rule, plan.options).kind.state:
        raise UsageError(f"--state-out: {plan.rule} keeps no optimiser state: leave it out")


def _under(eye: GroupEye, plan: Plan, name: str | None, params: tuple[str, ...]) -> Plan:
    """The plan with another rule."""
    from fedavg import strategies
    from fedavg.rule import params_from

    if name is None and not params:
        return plan
    given = params_from(params)
    if name in (None, plan.rule):
        given = {**plan.options, **given}
    rule = strategies.rule(name or plan.rule, given)
    before = eye.model(plan.round)
    same = before is not None and before.merge.rule == rule.name
    state = before.merge.state_digest if before is not None and same else None
    return replace(plan, rule=rule.name, options=dict(rule.params), state=state)
