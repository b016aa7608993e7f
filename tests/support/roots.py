"""A run root with its manifest, without `ctl`: for tests of what happens on one host."""

from __future__ import annotations

from pathlib import Path

from fsworker.protocol import layout
from fsworker.protocol.records.run import Manifest, WorkerSpec


def make_root(path: Path, run_id: str = "run1", host: str = "n1") -> Path:
    """Make the folders and the manifest; returns the root."""
    path.mkdir(parents=True, mode=0o700)
    for folder in layout.FOLDERS:
        (path / folder).mkdir()
    manifest = Manifest(run_id, "tests.fn", 1, (WorkerSpec(host, 0, 1),))
    (path / layout.MANIFEST).write_bytes(manifest.to_json())
    return path
