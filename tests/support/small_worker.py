"""A worker in a thread, for tests of clients: the real protocol, with functions given as a dict.

What goes wrong on real hosts is done on request: `spoil` may change the bytes of a result before it
is committed, `early` makes each task's result a part before the batch is finished, and a batch may
be executed by hand, one protocol step at a time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fsworker import outcomes
from fsworker.protocol import layout, ledger, packing, segment
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Move
from fsworker.protocol.records.run import Heartbeat, Manifest, WorkerSpec
from fsworker.protocol.segment import Segment


def make_run(
    path: Path,
    functions: Sequence[str] = ("tests.fn:first", "tests.fn:second"),
    shards: int = 2,
    allow: Sequence[str] = (),
) -> Path:
    """A run root with one worker named in its manifest for each shard."""
    path.mkdir(parents=True, mode=0o700)
    for folder in layout.FOLDERS:
        (path / folder).mkdir()
    for shard in range(shards):
        (path / layout.inbox_dir(shard)).mkdir()
    workers = tuple(WorkerSpec(f"h{shard}", shard, 2) for shard in range(shards))
    manifest = Manifest("run1", functions[0], shards, workers, tuple(functions), allow=tuple(allow))
    (path / layout.MANIFEST).write_bytes(manifest.to_json())
    return path


class SmallWorker:
    """Serves all shards of a run from a thread while the context is open."""

    def __init__(self, root: Path, functions: dict[str, Callable[..., Any]]) -> None:
        self.store = Store(root)
        self.functions = functions
        self.owner = Owner("h0", layout.new_incarnation())
        self.calls: Counter[str] = Counter()
        self.sizes: list[int] = []
        self.metas: list[dict[str, Any]] = []
        self.early = False
        self.spoil: Callable[[Token, bytes], bytes] | None = None
        self.seq = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.store.run(ledger.enlist(self.owner))

    def __enter__(self) -> SmallWorker:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(10)

    def pending(self) -> list[Token]:
        """What lies in the inboxes."""
        found = []
        for shard in self.store.scan(layout.INBOX):
            names = self.store.scan(layout.inbox_dir(int(shard)))
            found += [layout.parse_inbox_name(int(shard), name) for name in names]
        return sorted((t for t in found if t), key=lambda t: layout.seq_of(t.batch))

    def beat(self, **fields: Any) -> None:
        """Publish a heartbeat."""
        self.seq += 1
        beat = Heartbeat("h0", 1, self.owner.incarnation, self.seq, time.time(), **fields)
        self.store.publish(layout.status_path("h0"), beat.to_json(), durable=False)

    def claim(self, token: Token) -> tuple[Token, Segment]:
        """Take a batch and read it."""
        mine = self.store.run(ledger.claim(self.owner, token))
        assert mine is not None
        data = self.store.read(layout.claim_path(self.owner, mine))
        batch = segment.decode(data, segment.BATCH, "batch")
        self.sizes.append(len(batch.records))
        self.metas.append(batch.meta)
        return mine, batch

    def execute(self, mine: Token, batch: Segment) -> list[bytes]:
        """The result records of a batch."""
        records = []
        for index, record in enumerate(batch.widened().records):
            fields = packing.unpack(record)
            task_id, args, kwargs = (*fields, None, None)[:3]
            try:
                status, value = (
                    "ok",
                    self.functions[batch.meta["fn"]](*(args or ()), **kwargs or {}),
                )
            except Exception as error:
                status, value = "error", outcomes.raised(error)
            self.calls[batch.meta["fn"]] += 1
            records.append(outcomes.record(index, task_id, status, value, 0.0))
            if self.early:
                self.publish_part(mine, index, records[-1:])
        return records

    def publish_part(self, mine: Token, number: int, records: list[bytes]) -> None:
        """Publish early results."""
        data = segment.encode(Segment(segment.PART, {"part": number}, records))
        self.store.publish(layout.outcome(self.owner, mine).part(number), data)

    def write(self, mine: Token, records: list[bytes], **meta: Any) -> None:
        """Write the result of a batch, which means nothing yet."""
        data = segment.encode(Segment(segment.RESULT, {"elapsed": 0.001, **meta}, records))
        if self.spoil is not None:
            data = self.spoil(mine, data)
        self.store.run(ledger.prepare_result(self.owner, mine, data))

    def commit(self, mine: Token) -> Move:
        """Make it count."""
        return self.store.run(ledger.commit(self.owner, mine))

    def serve_once(self) -> int:
        """Execute what is pending; how many batches that were."""
        tokens = self.pending()
        for token in tokens:
            mine, batch = self.claim(token)
            self.write(mine, self.execute(mine, batch))
            assert self.commit(mine) is Move.DONE
        return len(tokens)

    def _serve(self) -> None:
        while not self._stop.is_set():
            self.beat()
            if not self.serve_once():
                self._stop.wait(0.002)
