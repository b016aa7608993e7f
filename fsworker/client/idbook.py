"""Which ids of a stream were sent and which answers were taken, so that no id is executed twice.

A journal beside the results: an id is noted before its batch is submitted, and again when its
answer was handed over, before the result is removed. So whoever resumes the stream knows of each id
whether it is free, under way, or done with. Each client writes a journal of its own; the next one
reads them all, goes on from what they say, and removes them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable

from fsworker.errors import UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store

log = logging.getLogger(__name__)

TaskId = str | int

KEPT = 100_000
"""Ids whose answers were taken, of which the latest are remembered."""

_NAME = re.compile(r"\.ids~[0-9a-f]{12}\.jsonl")


def checked_id(task_id: TaskId) -> TaskId:
    """The id. UsageError for what can be none."""
    if isinstance(task_id, (str, int)) and not isinstance(task_id, bool):
        return task_id
    raise UsageError(f"an id must be a text or a whole number, not {task_id!r:.80}")


class IdBook:
    """The ids of one stream (encoded name); without `journal` they are forgotten with the process.

    `had`: ids whose answers were taken. `batches`: the ids of each batch that was sent and of which
    not every answer was taken, in the order of its tasks; `home`: in which batch an id is.
    """

    def __init__(self, store: Store, stream: str, incarnation: str, *, journal: bool) -> None:
        self.had: dict[TaskId, None] = {}
        self.batches: dict[str, list[TaskId]] = {}
        self.home: dict[TaskId, str] = {}
        self._store = store
        self._stream, self._folder = stream, layout.outbox_dir(stream)
        self._path = f"{self._folder}/.ids~{incarnation}.jsonl"
        self._journal = journal
        self._written = 0
        self._torn = False

    def load(self) -> None:
        """Go on from what earlier clients of the stream noted. Raises OSError."""
        if not self._journal:
            return
        try:
            names = self._store.scan(self._folder)
        except FileNotFoundError:
            return
        old = [f"{self._folder}/{name}" for name in names if _NAME.fullmatch(name)]
        for path in old:
            for line in self._store.read(path).splitlines():
                self._apply(line)
        if self.batches:
            present = _present(self._store, self.batches)
            for batch in self.batches.keys() - present:
                self._drop(batch)  # its client died before it submitted it
        for life in {batch.rsplit("-", 2)[1] for batch in self.batches}:
            # What its client counted says nothing true once others read its results.
            self._store.remove_quietly(layout.counters_path(self._stream, life))
        if old:
            self._store.publish(self._path, self._snapshot())
            for path in old:
                self._store.remove(path)

    def sent(self, batch: str, ids: list[TaskId]) -> None:
        """A batch is about to be submitted. Raises OSError: then it must not be."""
        self._write(["sent", batch, ids])
        self._add(batch, ids)

    def unsent(self, batch: str) -> None:
        """It was not submitted after all."""
        if batch in self.batches:
            self._drop(batch)
            self._note(["unsent", batch])

    def took(self, ids: Iterable[TaskId]) -> None:
        """The answers of these were handed over."""
        new = [task for task in ids if task not in self.had]
        if new:
            self._had(new)
            self._note(["had", new])

    def finish(self, batch: str) -> None:
        """All answers of a batch were handed over."""
        self.took(self.batches.get(batch, ()))
        self._drop(batch)

    def _apply(self, line: bytes) -> None:
        try:
            match json.loads(line):
                case ["sent", str(batch), list(ids)]:
                    self._add(batch, ids)
                case ["unsent", str(batch)]:
                    self._drop(batch)
                case ["had", list(ids)]:
                    self._had(ids)
                    for batch in {self.home[task] for task in ids if task in self.home}:
                        if all(task in self.had for task in self.batches[batch]):
                            self._drop(batch)
        except ValueError:
            if line:
                log.info("a line of a journal of ids was cut: %.100r", line)

    def _add(self, batch: str, ids: list[TaskId]) -> None:
        self.batches[batch] = ids
        self.home.update(dict.fromkeys(ids, batch))

    def _drop(self, batch: str) -> None:
        for task in self.batches.pop(batch, ()):
            if self.home.get(task) == batch:
                del self.home[task]

    def _had(self, ids: Iterable[TaskId]) -> None:
        self.had.update(dict.fromkeys(ids))
        while len(self.had) > KEPT:
            del self.had[next(iter(self.had))]

    def _snapshot(self) -> bytes:
        lines: list[list[object]] = [["had", list(self.had)]]
        lines += [["sent", batch, ids] for batch, ids in self.batches.items()]
        return b"".join(map(_line, lines))

    def _note(self, entry: list[object]) -> None:
        try:
            self._write(entry)
        except OSError as error:
            log.warning("cannot note what was taken in %s: %s", self._path, error)

    def _write(self, entry: list[object]) -> None:
        if not self._journal:
            return
        line, self._torn = b"\n" * self._torn + _line(entry), True
        self._store.append_line(self._path, line)  # if it fails, a part of it may be there
        self._torn = False
        self._written += len(entry[-1]) if isinstance(entry[-1], list) else 1
        if self._written > 4 * KEPT:
            self._store.publish(self._path, self._snapshot())
            self._written = 0


def _line(entry: list[object]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _present(store: Store, batches: Iterable[str]) -> set[str]:
    """Those of the batches that wait, are held or are answered.

    Everywhere twice, in the order in which a token moves, since it may move meanwhile. A file that
    was prepared and not submitted is removed: after that it cannot be submitted any more.
    """
    wanted, found = set(batches), set[str]()
    for _ in range(2):
        for shard in filter(str.isdecimal, store.scan(layout.INBOX)):
            for name in store.scan(layout.inbox_dir(int(shard))):
                batch = name.rpartition("~")[2].partition(".")[0]
                if batch in wanted and layout.is_foreign(name):
                    store.remove(f"{layout.inbox_dir(int(shard))}/{name}")
                elif token := layout.parse_inbox_name(int(shard), name):
                    found.add(token.batch)
        for owner in filter(None, map(layout.parse_owner, store.scan(layout.CLAIMS))):
            try:
                claims = map(layout.parse_claim_name, store.scan(owner.folder))
                found.update(token.batch for token in claims if token)
            except FileNotFoundError:
                continue
        for stream in {layout.stream_of(batch) for batch in wanted}:
            for parsed in map(layout.parse_outbox_name, store.scan(layout.outbox_dir(stream))):
                if parsed and parsed[1] == "done":
                    found.add(parsed[0].batch)
    return wanted & found


def note_taken(store: Store, stream: str, batch: str) -> None:
    """Note that all answers of a batch were handed over, by a process that sends nothing itself."""
    book = IdBook(store, layout.encode(stream), layout.new_incarnation(), journal=True)
    book.load()
    book.finish(batch)
