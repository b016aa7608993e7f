"""A root on which any number of hosts beat when they are told to, and what a process costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import Heartbeat, LaunchMeta, Manifest, WorkerSpec

INVENTORY = {"cpus": 48, "memory_mb": 262_144, "gpus": ["a100"] * 4}


class Synthetic:
    """A run of hosts that are nothing but files."""

    def __init__(self, root: Path, hosts: list[str], **meta: Any) -> None:
        self.store, self.hosts, self.seq = Store(root), hosts, 0
        for folder in layout.FOLDERS:
            (root / folder).mkdir(parents=True)
        workers = tuple(WorkerSpec(host, i) for i, host in enumerate(hosts))
        manifest = Manifest("r", "m:f", len(hosts), workers)
        launches = dict.fromkeys(hosts, 1)
        launch = LaunchMeta(str(root), "r", workers, len(hosts), "m:f", launches=launches, **meta)
        (root / layout.MANIFEST).write_bytes(manifest.to_json())
        (root / layout.LAUNCH_META).write_bytes(launch.to_json())
        for i, host in enumerate(hosts):
            for suffix in ("pid", "wrap.pid", "identity.json"):
                (root / layout.host_file(host, suffix)).write_text("1\n")
            (root / layout.Owner(host, f"{i:012x}").folder).mkdir()

    def beat(self, *but: str) -> None:
        """One more beat of every host but these."""
        self.seq += 1
        for i, host in enumerate(self.hosts):
            if host in but and self.seq > 1:
                continue
            record = Heartbeat(
                *(host, 5, f"{i:012x}", self.seq, time.time()),
                launch=1,
                ready=True,
                wrapped=True,
                boot_id="x" * 36,
                inventory=INVENTORY,
                labels=("fast", "big"),
            )
            self.store.publish(layout.status_path(host), record.to_json(), durable=False)


def cpu_ms(pid: int | None) -> float:
    """Milliseconds of CPU that the first thread of a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
