"""What work that `ctl` submits needs: refused where no worker offers it, else sent to whom does."""

from __future__ import annotations

from collections.abc import Iterable

from ctl.roots import Run, unknown
from fsworker.errors import FormatError, NotOffered, UsageError
from fsworker.protocol import offers, segment
from fsworker.protocol.offers import Provider
from fsworker.protocol.records.needs import Needs, of_meta, parse_needs

ADVICE = "--wait-for-workers waits for one"


def asked(words: Iterable[str]) -> Needs:
    """What the words of `--need` say together; UsageError where each is well and all are not."""
    try:
        return parse_needs(words)
    except ValueError as error:
        raise UsageError(f"--need: {error}") from None


def providers(run: Run) -> list[Provider]:
    """Who of the run offers what."""
    try:
        return offers.read(run.store, run.manifest)
    except OSError as error:
        raise unknown(error, run.root) from None


def of_batch(run: Run, path: str) -> Needs:
    """What a waiting batch needs; nothing when it has moved on, or is damaged."""
    try:
        found = segment.decode(run.store.read(path), segment.BATCH, path)
    except (OSError, FormatError):
        return Needs()
    return of_meta(found.meta) or Needs()


def check(run: Run, needs: Needs, *, job: bool) -> None:
    """NotOffered when no worker of the run offers this."""
    if not needs:
        return
    found = providers(run)
    if not any(p.serves(needs, job=job) for p in found):
        words = offers.refusal(run.root, found, needs, job=job)
        raise NotOffered(f"{words}; {ADVICE}", path=run.root)


def shards(run: Run, needs: Needs) -> list[int]:
    """Where batches of tasks go in turn: to those that offer it, else round all that there are."""
    found = [p.shard for p in offers.able(providers(run), needs)] if needs else []
    found = found or [w.shard for w in run.manifest.workers]
    return found or list(range(run.manifest.shard_count))
