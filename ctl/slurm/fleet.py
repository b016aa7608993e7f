"""The jobs of a run: submitting, looking, cancelling. Whoever changes them holds the verb lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ctl.hostterms import env_for
from ctl.slurm import queue, script
from ctl.slurm.queue import Row
from ctl.slurm.terms import BOOK, Book, Job
from fsworker.errors import FleetError
from fsworker.protocol import layout, ledger
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.layout.members import TOKENS, member_path, token_path
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.member import JoinToken, digest, new_token
from fsworker.protocol.records.run import LaunchMeta


@dataclass(frozen=True)
class View:
    """A run's jobs beside what Slurm says of each."""

    book: Book
    rows: dict[str, Row]

    @property
    def present(self) -> list[Job]:
        """Those that wait or run."""
        return [job for job in self.book.jobs if not self.rows[job.id].over]

    @property
    def waiting(self) -> list[Job]:
        """Those that have not begun."""
        return [job for job in self.book.jobs if self.rows[job.id].state == "PENDING"]

    def fields(self) -> list[dict[str, str]]:
        """One JSON object a job."""
        return [
            {"job": j.id, "member": j.member, "state": r.state, "node": r.node, "reason": r.reason}
            for j in self.book.jobs
            for r in [self.rows[j.id]]
        ]


def read(store: Store) -> Book | None:
    """The run's book; None for a run that is not Slurm's."""
    if BOOK.rpartition("/")[2] not in store.scan(layout.CTL):
        return None
    book: Book = Book.from_json(store.read(BOOK), store.path(BOOK))
    return book


def view(book: Book) -> View:
    """Ask Slurm. UnknownState when it does not answer."""
    return View(book, queue.look([job.id for job in book.jobs]))


def submit(store: Store, meta: LaunchMeta, book: Book, count: int) -> Book:
    """Submit `count` workers more; the book with them. If one fails, those before it stay."""
    haste = queue.kill_wait() if count else 0.0
    for _ in range(count):
        public, secret = new_token()
        environ = list(env_for(meta.env, HostTerms()).items())
        shard = len(book.jobs) % meta.shard_count
        text = script.build(meta, book, f"{public}.{secret}", environ, shard, haste)
        try:
            _admit(store, public, secret)
            job = queue.submit(text, script.arguments(book.terms, meta.run_id, meta.root))
        except FleetError:
            store.remove_quietly(token_path(public))
            raise
        book = replace(book, jobs=(*book.jobs, Job(job, public)))
        write(store, book)
    return book


def _admit(store: Store, public: str, secret: str) -> None:
    """A token of its own for each job, so that it can be taken back with it."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    record = JoinToken(public, digest(secret), labels=("slurm",), created_at=at)
    try:
        store.mkdir(TOKENS)
        store.publish(token_path(public), record.to_json())
    except OSError as error:
        raise storage_error(error, "write", store.path(TOKENS)) from None


def write(store: Store, book: Book) -> None:
    """Write the book."""
    try:
        store.publish(BOOK, book.to_json())
    except OSError as error:
        raise storage_error(error, "write", store.path(BOOK)) from None


def cancel(store: Store, jobs: list[Job], *, pending: bool = False) -> None:
    """Cancel jobs, and let no worker of theirs in any more."""
    queue.cancel([job.id for job in jobs], pending=pending)
    shut_out(store, jobs)


def shut_out(store: Store, jobs: Iterable[Job]) -> None:
    """Take back the tokens of these jobs."""
    for job in jobs:
        store.remove_quietly(token_path(job.token))


def bury(store: Store, seen: View) -> None:
    """End the membership of workers whose jobs are over, and return what they held.

    Slurm says that nothing of them lives; it does not say that a task was to blame.
    """
    over = {job.member for job in seen.book.jobs if seen.rows[job.id].over}
    try:
        for owner in filter(None, map(layout.parse_owner, store.scan(layout.CLAIMS))):
            if owner.host in over:
                store.run(ledger.reclaim(owner, died=False))
    except OSError as error:
        raise storage_error(error, "use", store.path(layout.CLAIMS)) from None
    for member in over:
        store.remove_quietly(member_path(member))
        store.remove_quietly(layout.status_path(member))


def tidy(store: Store, seen: View) -> Book:
    """Forget jobs that have ended, their members and their tokens; the book without them."""
    over = [job for job in seen.book.jobs if seen.rows[job.id].over]
    if over:
        bury(store, seen)
    shut_out(store, over)
    book = replace(seen.book, jobs=tuple(j for j in seen.book.jobs if j not in over))
    if over:
        write(store, book)
    return book
