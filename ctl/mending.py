"""What `fsck --repair` does, each act one that the protocol allows to whoever does it.

It moves tokens by the verbs that owners and reclaimers have, and removes what is proven to be of no
use, or what nobody can be alive with because the run is stopped. A repairer may be wrong about who
is alive, as any reclaimer may: an owner that lives after all fails at its commit and starts anew.
So claims go back without a charge. What it leaves alone it says too, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ctl import auditing, beats, cleaning
from ctl.auditing import Audit
from ctl.roots import Run
from fsworker.errors import FormatError, Refused
from fsworker.protocol import audit_repair, layout, ledger
from fsworker.protocol.audit import Finding
from fsworker.protocol.audit_garbage import Garbage
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.records.run import Heartbeat

BEAT_WAIT = 6.0
"""Seconds in which a living worker beats for certain: three times what it takes."""

OLD = 3600.0
"""Seconds after which a temporary of a stopped run has no writer any more: clients, which nothing
on the root can prove dead, give up after a fraction of that."""

RECLAIMS = 20


@dataclass(frozen=True)
class Act:
    """Something that was done (`done`) or left alone, and why."""

    done: bool
    path: str
    words: str

    @property
    def line(self) -> str:
        """The act for people."""
        return f"{'repaired' if self.done else 'left'} {self.path}: {self.words}"


Tell = Callable[[Act], None]


def is_stopped(run: Run) -> bool:
    """Whether no worker beats, and no process of the run lives on this machine."""
    try:
        cleaning.refuse_if_alive(run.store)
    except Refused:
        return False
    return True


def return_claims(run: Run, found: Audit, stopped: bool, tell: Tell) -> None:
    """Return what owners hold that are provably gone; their folders go too."""
    proven = set(found.abandoned) if stopped else _replaced(run.store, found.abandoned)
    for owner in found.abandoned:
        if owner not in proven:
            why = "its owner may be alive; the watcher, or a worker of its host, returns its claims"
            tell(Act(False, owner.folder, why))
            continue
        moved, finished = _reclaim(run.store, owner)
        words = f"{moved} batches are back in their inboxes"
        tell(Act(finished, owner.folder, words if finished else f"{words}, it stays: try again"))


def answer_damaged(run: Run, damage: Iterable[Finding], tell: Tell) -> None:
    """Set damaged pending batches aside and give their clients an answer."""
    todo = []
    for finding in damage:
        token = _pending(finding.path)
        if finding.kind == "damaged" and token is not None:
            todo.append((finding.path, token))
        else:
            tell(Act(False, finding.path, _left_words(finding)))
    if not todo:
        return
    me = audit_repair.repairer()
    run.store.run(ledger.enlist(me))
    try:
        for path, token in todo:
            tell(Act(*_told(path, run.store.run(audit_repair.answer_damaged(me, token)))))
    finally:
        _reclaim(run.store, me)


def remove_garbage(run: Run, found: Audit, stopped: bool, tell: Tell) -> None:
    """Remove what nobody can be alive with."""
    now = beats.server_now(run.store) if stopped and found.garbage else 0.0
    for garbage in found.garbage:
        if garbage.kind == "owner folder":
            continue
        why = _in_use(run.store, garbage, stopped, now)
        if why:
            tell(Act(False, garbage.path, why))
        elif run.store.remove(garbage.path):
            tell(Act(True, garbage.path, f"removed; {garbage.words}"))


def _in_use(store: Store, garbage: Garbage, stopped: bool, now: float) -> str:
    """Why this must stay; empty when it may go."""
    if garbage.proven:
        return ""
    if not stopped:
        return "the run is live: somebody may be at it"
    if garbage.kind == "temporary":
        try:
            written = store.read_with_mtime(garbage.path)[1]
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        if now - written < OLD:
            return f"it is younger than {OLD / 3600:g} h: a client may be writing it"
    return ""


def _replaced(store: Store, owners: Iterable[Owner]) -> set[Owner]:
    """Owners whose host is seen to beat, now, as another incarnation.

    An owner makes its folder before it beats, so one beat proves nothing: it may be the last of a
    predecessor. One that changes after the folder was seen is of a life that is later than it.
    """
    waiting = {o for o in owners if o.host != audit_repair.HOST}
    gone = set(owners) - waiting  # repairs hold the lock that we hold
    before = {o.host: _beat(store, o.host) for o in waiting}
    end = time.monotonic() + BEAT_WAIT
    while waiting and time.monotonic() < end:
        for owner in list(waiting):
            old, new = before[owner.host], _beat(store, owner.host)
            if old is None or new is None or new == old:
                continue
            waiting.discard(owner)
            if new[0] == old[0] != owner.incarnation:
                gone.add(owner)
        time.sleep(0.2)
    return gone


def _beat(store: Store, host: str) -> tuple[str, int] | None:
    rel = layout.status_path(host)
    try:
        beat: Heartbeat = Heartbeat.from_json(store.read(rel), rel)
    except (FileNotFoundError, FormatError):
        return None
    return None if beat.stopped else (beat.incarnation, beat.seq)


def _reclaim(store: Store, owner: Owner) -> tuple[int, bool]:
    """Return an owner's claims; how many, and whether its folder is gone. Nobody is blamed."""
    moved = 0
    for _ in range(RECLAIMS):
        done = store.run(ledger.reclaim(owner, died=False))
        moved += len(done.moved)
        if done.finished:
            return moved, True
    return moved, False


def _pending(path: str) -> Token | None:
    """The token that a path in an inbox is."""
    folder, _, name = path.rpartition("/")
    shard = folder.removeprefix(layout.INBOX + "/")
    return layout.parse_inbox_name(int(shard), name) if shard.isdigit() else None


def _told(path: str, answer: tuple[bool, str]) -> tuple[bool, str, str]:
    return answer[0], path, answer[1]


def _left_words(finding: Finding) -> str:
    """Why damage is not repaired, and what to do about it."""
    return {
        "two places": "which one is true only a person can tell",
        "damaged": "its worker or its reader sets it aside and answers for it",
        "other version": "use the release that wrote it",
        "unreadable": "see why the storage does not give it",
        "no result": "its reader answers for it",
        "unserved shard": "move the files by rename to a shard that is served",
        "bundle": "ctl bundle of that release writes it anew",
    }.get(finding.kind, "nothing on the root can bring it back")


def mend(run: Run, tell: Tell, *, quick: bool, progress: auditing.ProgressOf) -> Audit:
    """Repair step by step, each on a fresh audit; the audit of what is left."""
    stopped = is_stopped(run)
    found = auditing.audit_run(run, quick=quick, progress=progress)
    if found.abandoned:
        return_claims(run, found, stopped, tell)
        found = auditing.audit_run(run, quick=quick, progress=progress)
    if found.damage:
        answer_damaged(run, found.damage, tell)
    remove_garbage(run, found, stopped, tell)
    return auditing.audit_run(run, quick=quick, progress=progress)
