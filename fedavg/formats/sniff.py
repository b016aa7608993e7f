"""Which format a checkpoint has, by its content: names of files are what people make of them."""

from __future__ import annotations

from fedavg.formats.base import Checkpoint
from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint
from fedavg.formats.source import Source
from fedavg.formats.torchfile import open_torch

ZIP = b"PK\x03\x04"
OLD_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch.save wrote before version 1.6: the pickle of its magic number."""


def open_checkpoint(path: str) -> Checkpoint:
    """Open the checkpoint at `path`, a file or a folder of shards, for reading.

    Raises FormatError where there is none, DamagedCheckpoint for what is cut, padded or garbled,
    UnsupportedCheckpoint for what is not merged, UnsafeCheckpoint for a pickle that names code,
    StorageError for what the filesystem refuses. Reads headers alone.
    """
    source = Source(path)
    try:
        return _open_file(source)
    except BaseException:
        source.close()
        raise


def _open_file(source: Source) -> Checkpoint:
    if not source.size:
        raise DamagedCheckpoint(source.path, "it is empty")
    head = source.read(0, min(source.size, 16))
    if head.startswith(ZIP):
        return open_torch(source)
    if head.startswith(OLD_TORCH[: len(head)]):
        raise UnsupportedCheckpoint(
            source.path, "it has torch's form from before 1.6; load it and save it again"
        )
    raise UnsupportedCheckpoint(source.path, "it is no checkpoint of a known format")
