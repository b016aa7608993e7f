"""Many checkpoints in, one out: the engine that applies a rule chunk by chunk.

What it computes depends on its inputs alone: contributions are put in the order of their names
before anything is summed, and the work is cut into the same pieces however many threads there are.
So the bytes are the same for any arrival order and any number of threads (with one version of torch
on one kind of CPU). Memory grows with neither the size of a model nor their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedavg.checkpoint import Checkpoint
from fedavg.policy import Policy
from fedavg.rule import Rule

THREADS = 2


@dataclass(frozen=True)
class Contribution:
    """One participant's part in a merge.

    `name` is the participant's id: it orders the contributions, and errors name it. `weight` is its
    sample count; None when nobody counted; with 0 it takes no part. `base` is the model that it
    started from, if that is not the round's: its change since then is what counts, so that it
    enters as x + (model − base). `staleness` is how many rounds older that base is (FedBuff).
    """

    name: str
    checkpoint: Checkpoint
    weight: float | None = None
    base: Checkpoint | None = None
    staleness: int = 0


@dataclass(frozen=True)
class Merged:
    """What a merge has written.

    `digest` is the SHA-256 of the output, `state_digest` that of the optimiser state (None for a
    rule without). `weights` holds the share of each contribution in a weighted mean, by name, 1 in
    sum; one that is not in it took no part (weight 0, or not chosen by Krum). `scores` is empty but
    for Krum: each contribution's, smaller is nearer to the others.
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
) -> Merged:
    """Apply `rule` to `inputs` and write the merged checkpoint to the file or folder `out`.

    `base` is the global model x that the round started from: rules with `kind.needs_base` want it,
    and so does a contribution with a base of its own. `state_in` is the optimiser state that the
    previous round wrote to its `state_out`; None starts anew. A rule with state needs `state_out`.
    `out` and `state_out` must not exist; they are complete and on disk when this returns, and gone
    when it raises. The output has the format, keys and dtypes of the inputs.

    Raises `Unmergeable` (exit code 5), which names participant and key, for keys, shapes or dtypes
    that differ, for values that are not finite, for LoRA factors without a choice; UsageError for
    weights and rules that cannot be; StorageError for what the filesystem refuses.
    """
    raise NotImplementedError
