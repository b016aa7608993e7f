"""A run as `ctl` sees it, from files alone: records, and heartbeats of any age."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctl import roots
from fsworker.protocol import layout
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest, WorkerSpec

BEAT = Heartbeat("n1", 4711, "0123456789ab", 5, 0.0, launch=1, ready=True, wrapped=True)


def make_run(tmp_path: Path, *hosts: str, **meta: Any) -> roots.Run:
    workers = tuple(WorkerSpec(h, i) for i, h in enumerate(hosts or ("n1",)))
    for folder in layout.FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    manifest = Manifest("r1", "a.b", len(workers), workers)
    launches = {w.host: 1 for w in workers}
    fields = LaunchMeta(
        str(tmp_path), "r1", workers, len(workers), "a.b", launches=launches, **meta
    )
    (tmp_path / layout.MANIFEST).write_bytes(manifest.to_json())
    (tmp_path / layout.LAUNCH_META).write_bytes(fields.to_json())
    return roots.open_run(str(tmp_path))


def beat(tmp_path: Path, age: float = 0.0, name: str = "n1", **fields: Any) -> None:
    path = tmp_path / layout.STATUS / f"{name}.json"
    record = replace(BEAT, **{"host": name, "heartbeat_at": time.time() - age, **fields})
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(record.to_json())
    os.utime(temporary, (time.time() - age,) * 2)
    temporary.replace(path)
