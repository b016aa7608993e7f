"""Looking at one upload when it arrives, so that the round's end has only good ones to merge.

One streaming pass over what would be averaged: a value that is not finite is found here, named, and
refused, before anybody waits for it. The merge looks again, since files can change.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedavg.agreement import Unmergeable, disagreement
from fedavg.engine.crew import work_off
from fedavg.engine.faults import first_fault
from fedavg.engine.pieces import Piece, pieces
from fedavg.engine.piecework import is_finite
from fedavg.engine.reading import Reader
from fedavg.formats.base import Checkpoint
from fedavg.policy import FLOAT_DTYPES, Policy, actions


@dataclass(frozen=True)
class Inspected:
    """What was looked at: tensors with bytes of their own, and how many bytes of them were read."""

    tensors: int
    read: int


def inspect(
    checkpoint: Checkpoint,
    *,
    like: Checkpoint | None = None,
    policy: Policy | None = None,
    participant: str | None = None,
    threads: int = 1,
) -> Inspected:
    """Unmergeable, naming `participant`, file and key, for a checkpoint that cannot be merged.

    That is one whose keys, shapes or types differ from those of `like` (the round's base, or an
    upload that was admitted), or with a value that is NaN or infinite where the policy averages.
    """
    if like is not None and (wrong := disagreement(like.entries, checkpoint.entries, like.path)):
        raise Unmergeable(wrong[1], participant=participant, key=wrong[0])
    entries = checkpoint.entries
    averaged = {
        key: action
        for key, action in actions(policy or Policy(), entries).items()
        if action in ("rule", "mean", "max") and entries[key].dtype in FLOAT_DTYPES
    }

    def looker() -> _Looker:
        return _Looker(checkpoint, participant)

    work_off(pieces(entries, averaged, 8), looker, threads)
    return Inspected(
        sum(1 for key, entry in entries.items() if entry.owner == key),
        sum(entries[key].nbytes for key in averaged),
    )


class _Looker:
    """Looks at pieces; one a thread."""

    def __init__(self, checkpoint: Checkpoint, participant: str | None) -> None:
        self._checkpoint, self._participant = checkpoint, participant
        self._reader = Reader()

    def __call__(self, piece: Piece) -> None:
        at = (piece.key, piece.start, piece.stop)
        values = self._reader.rows("any", [self._checkpoint], *at)[0]
        if not is_finite(values):
            fault = first_fault(values, self._participant, self._checkpoint, piece.key, piece.start)
            assert fault is not None
            raise fault
