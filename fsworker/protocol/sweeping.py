"""Removing results that can never count: what a reader left that died while it forgot.

A reader removes `.done` first, and then the result. If it dies in between, that result is garbage
which looks like one that is about to be committed. What tells them apart is the claim: a result
counts only if its owner moves its claim of just that attempt, and that claim, once it is gone from
the owner's folder, never comes back, since no name is created twice. So the claims are looked at
first, and then, for what was not there, whether it was committed. Whoever reads the stream may do
this; nobody else may.
"""

from __future__ import annotations

from fsworker.protocol import layout, stream
from fsworker.protocol.layout import Outcome
from fsworker.protocol.ops import Remove, Scan, Verb


def sweep(name: str) -> Verb[list[str]]:
    """Remove what can never count of a stream (encoded name); gives the paths."""
    seen = yield from stream.look(name)
    doubtful = set(seen.results) - set(seen.committed)
    if not doubtful:
        return []
    lives = {outcome.incarnation for outcome in doubtful}
    owners = map(layout.parse_owner, (yield Scan(layout.CLAIMS)))
    for owner in [o for o in owners if o is not None and o.incarnation in lives]:
        try:
            names = yield Scan(owner.folder)
        except FileNotFoundError:
            continue  # it has just ended, and nothing is claimed by it any more
        for token in filter(None, map(layout.parse_claim_name, names)):
            doubtful.discard(layout.outcome(owner, token))
    now = yield from stream.look(name)
    garbage: list[Outcome] = sorted(doubtful - set(now.committed), key=lambda o: o.result)
    for outcome in garbage:
        yield Remove(outcome.result)
    return [outcome.result for outcome in garbage]
