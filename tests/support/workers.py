"""A run root, a real worker process on it, and a client made of the protocol's own verbs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsworker import outcomes
from fsworker.protocol import layout, ledger, packing, segment, stream
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import Token
from fsworker.protocol.records.run import Heartbeat, Manifest, WorkerSpec
from fsworker.protocol.segment import Segment
from tests.support.waiting import Spawned, wait_until

MODULE = "tests.support.functions_for_tests"
REPO = str(Path(__file__).resolve().parents[2])
CLIENT = "c0ffee000001"


class Root:
    """A run root under test, with the client's side of it."""

    def __init__(self, path: Path, *, functions: Sequence[str], shards: int = 1, **more: Any):
        path.mkdir(mode=0o700)
        names = tuple(f"{MODULE}:{name}" for name in functions)
        for folder in (*layout.FOLDERS, *map(layout.inbox_dir, range(shards))):
            (path / folder).mkdir(exist_ok=True)
        workers = tuple(WorkerSpec(f"n{i}", i % shards, 2) for i in range(max(2, shards)))
        manifest = Manifest("run1", names[0], shards, workers, names, owner=os.getuid(), **more)
        (path / layout.MANIFEST).write_bytes(manifest.to_json())
        self.path = path
        self.store = Store(path)
        self._seq = 0
        self.kept: dict[str, Segment] = {}

    def submit(
        self,
        tasks: Sequence[Sequence[Any]],
        *,
        fn: str | None = None,
        shard: int = 0,
        deaths: int = 0,
        attempt: int = 0,
        timeout: float | None = None,
        raw: bytes | None = None,
    ) -> str:
        """Submit one batch of calls with these arguments; gives its id."""
        batch = layout.batch_id("s", CLIENT, self._seq)
        self._seq += 1
        meta = {"fn": f"{MODULE}:{fn}" if fn else None, "timeout": timeout, "stream": "s"}
        records = [packing.pack([f"t{i}", list(args)]) for i, args in enumerate(tasks)]
        data = segment.encode(Segment(segment.BATCH, meta, records)) if raw is None else raw
        token = Token(batch, shard, attempt, deaths)
        self.store.mkdir(layout.outbox_dir("s"))
        temp = self.store.run(ledger.prepare_submission(token, CLIENT, data))
        assert self.store.run(ledger.enqueue(token, temp)) is ledger.Move.DONE
        return batch

    def results(self, batch: str, deadline: float = 120.0) -> list[Any]:
        """The results of a batch, a row for each task, once it is committed."""
        found = wait_until(lambda: self.collect(batch), deadline, f"a result of {batch}")
        return list(outcomes.singles(found.values()))

    def collect(self, batch: str) -> Segment | None:
        """The committed result of a batch, if it is there by now; it is forgotten on disk."""
        listing = self.store.run(stream.look("s"))
        for outcome in listing.committed:
            found = self.store.run(stream.collect(outcome))
            assert found.results is not None, found.damage
            assert outcome.batch not in self.kept, f"{outcome.batch} was delivered twice"
            self.kept[outcome.batch] = found.results
            leftovers = stream.leftovers(listing, outcome)
            self.store.run(stream.forget(outcome, leftovers))
        return self.kept.get(batch)

    def beat(self, host: str = "n0") -> Heartbeat | None:
        """The host's heartbeat, if there is one."""
        try:
            data = self.store.read(layout.status_path(host))
        except FileNotFoundError:
            return None
        found: Heartbeat = Heartbeat.from_json(data, "status")
        return found

    def inbox(self, shard: int = 0) -> list[Token]:
        """What waits."""
        names = self.store.scan(layout.inbox_dir(shard))
        return [t for t in (layout.parse_inbox_name(shard, n) for n in names) if t]

    def claims(self) -> dict[str, list[str]]:
        """What every owner holds."""
        owners = self.store.scan(layout.CLAIMS)
        return {o: self.store.scan(f"{layout.CLAIMS}/{o}") for o in owners}


def worker_argv(
    root: Root, host: str = "n0", shard: int = 0, slots: int = 2, *more: str
) -> list[str]:
    """The command line of a worker."""
    return [
        *(sys.executable, "-m", "fsworker", "run", "--root", str(root.path), "--shard", str(shard)),
        *("--host", host, "--concurrency", str(slots), *more),
    ]


def start_worker(
    spawned: Spawned,
    root: Root,
    *,
    host: str = "n0",
    ready: bool = True,
    env: dict[str, str] | None = None,
    shard: int = 0,
    slots: int = 2,
    more: Sequence[str] = (),
    **options: Any,
) -> Any:
    """A real worker process, ready unless told otherwise; its log is `<root>/<host>.out`."""
    with open(f"{root.path}.{host}.out", "ab") as log:
        worker = spawned.start(
            worker_argv(root, host, shard, slots, *more),
            env={"PYTHONPATH": REPO, **(env or {})},
            stdout=log,
            stderr=log,
            cwd="/",
            **options,
        )
    if ready:
        wait_until(lambda: is_ready(root, host, worker.pid), what="ready")
    return worker


def is_ready(root: Root, host: str, pid: int) -> bool:
    beat = root.beat(host)
    return bool(beat and beat.ready and beat.pid == pid)


def log_of(root: Root, host: str = "n0") -> str:
    return Path(f"{root.path}.{host}.out").read_text(errors="replace")


def tree_of(pid: int) -> list[int]:
    """All living descendants of a process."""
    from fsworker import procfs

    return [s.pid for s in procfs.descendants([pid]) if s.state not in "ZXx"]


def told(root: Root, name: str) -> Any:
    return json.loads((root.path / name).read_bytes())
