"""Many checkpoints in, one out: the engine that applies a rule chunk by chunk.

What it computes depends on its inputs alone: contributions are put in the order of their names
before anything is summed, and the work is cut into the same pieces however many threads there are.
So the bytes are the same for any arrival order and any number of threads (with one version of torch
on one kind of CPU). Memory grows with neither the size of a model nor their number, but for what is
known of each tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from fedavg.agreement import Unmergeable
from fedavg.checkpoint import Checkpoint, Writer
from fedavg.engine import nearness, preparing, products
from fedavg.engine.compiled import streamed_keys
from fedavg.engine.crew import work_off
from fedavg.engine.digests import digest_of
from fedavg.engine.faults import OutOfRange, culprit
from fedavg.engine.inputs import Inputs
from fedavg.engine.leaves import replaced_leaves
from fedavg.engine.pieces import Piece, pieces
from fedavg.engine.piecework import Merger, NotFinite
from fedavg.engine.preparing import Contribution
from fedavg.engine.statefile import StateWriter, negative
from fedavg.engine.template import copied_members, template
from fedavg.formats.stablebaselines import Members
from fedavg.policy import Action, Policy
from fedavg.rule import Rule
from fsworker.errors import UsageError

__all__ = ["THREADS", "Contribution", "Merged", "merge"]

log = logging.getLogger(__name__)

THREADS = 2


@dataclass(frozen=True)
class Merged:
    """What a merge has written.

    `digest` is the SHA-256 of the output (of a folder: that of `records.artifact.tree_digest`),
    `state_digest` that of the optimiser state (None for a rule without); both are empty where
    nobody asked for them. `weights` holds the share of each contribution, by name, 1 in sum; one
    that is not in it took no part (weight 0, or not chosen by Krum). `scores` is empty but for
    Krum: each contribution's, smaller is nearer to the others.
    """

    digest: str
    state_digest: str | None
    weights: dict[str, float]
    scores: dict[str, float]


def merge(
    rule: Rule,
    inputs: Sequence[Contribution],
    out: str,
    *,
    base: Checkpoint | None = None,
    state_in: Checkpoint | None = None,
    state_out: str | None = None,
    policy: Policy | None = None,
    threads: int = THREADS,
    digests: bool = True,
) -> Merged:
    """Apply `rule` to `inputs` and write the merged checkpoint to the file or folder `out`.

    `base` is the global model x that the round started from: rules with `kind.needs_base` want it,
    and so does a contribution with a base of its own. `state_in` is the optimiser state that the
    previous round wrote to its `state_out`; None starts anew. A rule with state needs `state_out`.
    `out` and `state_out` must not exist; they are complete and on disk when this returns, and gone
    when it raises. The output has the format, keys and dtypes of the inputs, of which the first by
    name gives what the policy does not merge. Without `digests` the output is not read again.

    Raises `Unmergeable` (exit code 5), which names participant and key, for keys, shapes or dtypes
    that differ, for values that are not finite, for LoRA factors without a choice; UsageError for
    weights and rules that cannot be; DamagedCheckpoint for a file that was cut meanwhile, of which
    ChangedCheckpoint for one that was written to; StorageError for what the filesystem refuses.
    """
    policy = policy or Policy()
    if rule.kind.state and state_out is None:
        raise UsageError(f"{rule.name} keeps an optimiser state: say where it is written")
    everybody = taking_part = preparing.inputs_of(rule, inputs, base, state_in)
    actions = preparing.actions_of(rule, taking_part, policy)
    members = copied_members(taking_part)  # before Krum chooses: that was of the tensors alone
    scores: dict[str, float] = {}
    try:
        if rule.kind.choose is not None:
            taking_part, scores = nearness.choose(rule, taking_part, actions, threads)
        check = partial(_check_unchanged, everybody)
        kept = _write(rule, taking_part, actions, out, state_out, policy, threads, members, check)
    except NotFinite as error:
        raise _fault(error.piece, taking_part, rule) from error
    total = sum(taking_part.weights)
    weights = {n: w / total for n, w in zip(taking_part.names, taking_part.weights, strict=True)}
    return Merged(
        digest_of(out) if digests else "",
        (digest_of(kept) if digests else "") if kept else None,
        weights,
        scores,
    )


def _fault(piece: Piece, inputs: Inputs, rule: Rule) -> Unmergeable:
    """Whose values are at fault; a state that is impossible is before who is merely far."""
    found = culprit(piece, inputs, rule)
    if inputs.state is None or piece.action != "rule" or not isinstance(found, OutOfRange):
        return found
    return negative(inputs.state, rule, piece.key, piece.start, piece.stop) or found


def _write(
    rule: Rule,
    inputs: Inputs,
    actions: dict[str, Action],
    out: str,
    state_out: str | None,
    policy: Policy,
    threads: int,
    members: Members | None,
    check: Callable[[], None],
) -> str | None:
    """Merge into the two files, which are there if `check` raises nothing in the end.

    Gives the path of the state if there is one.
    """
    entries = inputs.models[0].entries
    pairs = products.pairs(entries, inputs, policy)
    by_piece = {k: a for k, a in actions.items() if k not in pairs.factors}
    read = len(inputs.models) + len(inputs.bases) + len(rule.kind.state) + (inputs.base is not None)
    streamed = streamed_keys(rule.kind, inputs, by_piece)
    work = pieces(entries, by_piece, read, streamed)
    with ExitStack() as stack:
        state = None
        if rule.kind.state and state_out is not None:
            moved = [key for key, action in actions.items() if action == "rule"]
            state = StateWriter(state_out, rule, entries, moved)
            stack.push(state.end)
        replace = replaced_leaves(inputs, policy)
        like = template(inputs.models[0], members)
        writer = stack.enter_context(Writer.create(out, like, replace=replace))
        put_state = state.write if state else _no_state
        work_off(work, lambda: Merger(rule, inputs, streamed, writer.write, put_state), threads)
        pairs.merge(inputs, writer.write, threads)
        check()
        if state:
            state.close()
    return state.path if state else None


def _check_unchanged(inputs: Inputs) -> None:
    for checkpoint in (*inputs.models, *inputs.bases, inputs.base, inputs.state):
        if checkpoint is not None:
            checkpoint.check_unchanged()


def _no_state(value: str, key: str, start: int, buffer: memoryview) -> None:
    raise AssertionError("a rule without state has written one")
