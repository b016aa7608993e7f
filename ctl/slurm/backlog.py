"""How many batches wait for workers of Slurm: what only other workers offer does not count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ctl import needing, statusview
from ctl.roots import Run, unknown
from ctl.slurm.terms import PREFIX, Book, Terms
from fsworker.protocol import layout
from fsworker.protocol.records.needs import Needs, Offer


def count(run: Run, book: Book) -> int:
    """The batches that wait or run, without those that no worker of Slurm could serve."""
    seen = statusview.backlog(run)
    everything = sum(seen.pending.values()) + sum(seen.claimed.values())
    return max(0, everything - _strange(run, book))


def could_serve(
    needs: Needs, labels: Iterable[str], terms: Terms, known: Sequence[Offer], *, job: bool
) -> bool:
    """Whether a worker of Slurm could serve this, by those that are known; without any, by what
    all workers are labelled and by the GPUs that each asks for."""
    if known:
        return any(not offer.lacks(needs, job=job) for offer in known)
    return set(needs.labels) <= set(labels) and (not needs.gpus or "gpu" in (terms.gres or ""))


def _strange(run: Run, book: Book) -> int:
    """How many waiting batches need what workers of Slurm do not offer."""
    verdicts: dict[tuple[str, bool], bool] = {}
    labels = ("slurm", *(run.meta.labels if run.meta else ()))
    known: list[Offer] | None = None
    strange = 0
    try:
        for shard in (int(n) for n in run.store.scan(layout.INBOX) if n.isascii() and n.isdigit()):
            for name in run.store.scan(layout.inbox_dir(shard)):
                token = layout.parse_inbox_name(shard, name)
                if token is None or not token.needs:
                    continue
                if known is None:
                    ours = (p for p in needing.providers(run) if p.host.startswith(PREFIX))
                    known = [p.offer for p in ours if p.offer is not None]
                key = token.needs, token.is_job
                if key not in verdicts:
                    needs = needing.of_batch(run, layout.inbox_path(token))
                    verdicts[key] = could_serve(needs, labels, book.terms, known, job=token.is_job)
                strange += not verdicts[key]
    except OSError as error:
        raise unknown(error, run.root) from None
    return strange
