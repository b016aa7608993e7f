"""Reading a stream: committed results, each verified, each delivered once, then forgotten.

Only a `.done` says which `.result` counts. The reader keeps what it read before it forgets it:
`.done` goes before the result, since from then on that is garbage that nobody looks at, whatever
happens; what never counted goes before both, so that nothing of it is left without a `.done`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsworker.protocol import layout, segment
from fsworker.protocol.layout import Outcome
from fsworker.protocol.ops import Read, Remove, Scan, Verb
from fsworker.protocol.segment import DamagedFile, Segment


@dataclass(slots=True)
class Listing:
    """One look at a stream: what is committed, oldest batch first, and every part and result."""

    committed: list[Outcome]
    parts: list[tuple[Outcome, int]]
    results: list[Outcome]


@dataclass(frozen=True, slots=True)
class Collected:
    """A committed outcome and its results; `damage` instead, when they cannot be read."""

    outcome: Outcome
    results: Segment | None
    damage: DamagedFile | None = None


def look(stream: str) -> Verb[Listing]:
    """List a stream (encoded name). A folder that does not exist yet is an empty one."""
    try:
        names = yield Scan(layout.outbox_dir(stream))
    except FileNotFoundError:
        names = []
    found = Listing([], [], [])
    for name in names:
        match layout.parse_outbox_name(name):
            case (out, "done", _):
                found.committed.append(out)
            case (out, "result", _):
                found.results.append(out)
            case (out, _, i):
                found.parts.append((out, i))
    found.committed.sort(key=lambda o: layout.seq_of(o.batch))
    return found


def collect(outcome: Outcome) -> Verb[Collected]:
    """Read a committed outcome's results.

    Damage is believed only after a second, fresh open. Raises FileNotFoundError when two opens
    find no file: it was forgotten by another reader, or its `.done` was a look of long ago.
    """
    damage = None
    for last in (False, True):
        try:
            data = yield Read(outcome.result)
            return Collected(outcome, segment.decode(data, segment.RESULT, outcome.result))
        except DamagedFile as error:
            damage = error
        except FileNotFoundError:
            if last:
                raise
    return Collected(outcome, None, damage)


def forget(outcome: Outcome, leftovers: Iterable[str] = ()) -> Verb[None]:
    """Remove what was kept. `leftovers` are paths of the same batch that never counted.

    Nothing of a batch that is committed can count any more but its own `.done`, so its reader may
    remove the results and parts of its other attempts; nobody else may.
    """
    for path in leftovers:
        yield Remove(path)
    yield Remove(outcome.done)
    yield Remove(outcome.result)


def leftovers(listing: Listing, outcome: Outcome) -> list[str]:
    """Paths in a listing that are worth nothing once `outcome` is read."""
    others = [o.result for o in listing.results if o.batch == outcome.batch and o != outcome]
    return others + [o.part(i) for o, i in listing.parts if o.batch == outcome.batch]
