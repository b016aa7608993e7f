"""What must hold in every state of the model.

1. A batch's token is in exactly one place (its temporary, an inbox, an owner's claims, a `.done`)
   from the moment its client has written it until a reader has kept it and unlinked its `.done`;
   never in two, and never again after that. A token is never half written.
2. A `.done` always has beside it the complete `.result` that the same attempt of the same owner
   wrote.
3. What the reader keeps is the result of the attempt that was committed, complete, once for each
   batch.
4. Nothing is stuck: from here the processes, without further faults, deliver every batch that was
   submitted, and leave behind neither tokens nor the folders of past owners.
"""

from __future__ import annotations

from fsworker.protocol import layout
from fsworker.protocol.layout import Owner
from tests.model.disk import Disk
from tests.model.programs import OUTBOX, Client, first_token, payload, results


class Violation(Exception):
    """An invariant does not hold in a state that can be reached; `then` by a fair continuation."""

    then: list[str] = []  # noqa: RUF012 - never changed in place


def places(disk: Disk, batch: str) -> list[str]:
    """Every place in which a batch's token lies."""
    return [p for p, _ in disk.files if batch in p and not p.endswith(".result")]


def hidden(path: str) -> bool:
    """Whether it is a temporary that was not submitted."""
    return layout.is_foreign(path.rpartition("/")[2])


def check(disk: Disk, client: Client) -> None:
    """Raise Violation unless the first three invariants hold."""
    if client.fault:
        raise Violation(client.fault)
    kept = {o.batch: o.done for o in client.kept}
    for n, stage in enumerate(client.submissions):
        batch = first_token(n).batch
        found = places(disk, batch)
        if len(found) > 1:
            raise Violation(f"two tokens of {batch}: {found}")
        if batch in kept and found and found != [kept[batch]]:
            raise Violation(f"{batch} was delivered, yet its token is at {found[0]}")
        if stage in ("written", "sent") and batch not in kept and not found:
            raise Violation(f"the token of {batch} is lost")
        if found and not hidden(found[0]) and disk.content(found[0]) != payload(batch):
            raise Violation(f"{found[0]} is not what was submitted")
        if found and disk.content(found[0]) != payload(batch) and stage in ("written", "sent"):
            raise Violation(f"{found[0]} is half written")
    _check_results(disk)


def _check_results(disk: Disk) -> None:
    for name in disk.names(OUTBOX):
        parsed = layout.parse_outbox_name(name)
        if parsed and parsed[1] == "done":
            found = disk.content(parsed[0].result)
            if found is None:
                raise Violation(f"{name} has no result")
            if found != results(parsed[0]):
                raise Violation(f"{name} has a result that is not complete")


def check_end(disk: Disk, client: Client, live: set[Owner]) -> None:
    """Raise Violation unless everything was delivered and tidied up, now that all came to rest."""
    kept = {o.batch for o in client.kept}
    for n, stage in enumerate(client.submissions):
        batch = first_token(n).batch
        if stage == "sent" and batch not in kept:
            raise Violation(f"stuck: {batch} is never delivered")
        if any(not hidden(p) for p in places(disk, batch)):
            raise Violation(f"stuck: the token of {batch} stays behind")
    if past := set(disk.owners()) - live:
        raise Violation(f"stuck: the folders of past owners stay behind: {past}")
