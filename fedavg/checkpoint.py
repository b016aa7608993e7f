"""Checkpoints by key, dtype and bytes, without loading them: what the rest of fedavg imports.

`open_checkpoint` tells the format by content. `Writer` makes a file of the same format and nesting
as a template, piece by piece and from several threads. No module here needs torch; nothing in a
checkpoint is ever executed. `docs/checkpoints.md` says what is read and what is refused.
"""

from __future__ import annotations

from fedavg.formats.base import Checkpoint, Entry
from fedavg.formats.errors import (
    ChangedCheckpoint,
    DamagedCheckpoint,
    UnsafeCheckpoint,
    UnsupportedCheckpoint,
)
from fedavg.formats.keys import lora_pairs
from fedavg.formats.output import Writer
from fedavg.formats.sniff import open_checkpoint

__all__ = [
    "ChangedCheckpoint",
    "Checkpoint",
    "DamagedCheckpoint",
    "Entry",
    "UnsafeCheckpoint",
    "UnsupportedCheckpoint",
    "Writer",
    "lora_pairs",
    "open_checkpoint",
]
