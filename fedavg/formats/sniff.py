"""Which format a checkpoint has, by its content: names of files are what people make of them."""

from __future__ import annotations

import os

from fedavg.formats import safetensor, stablebaselines, torchfile, zipread
from fedavg.formats.base import Checkpoint
from fedavg.formats.errors import DamagedCheckpoint, UnsupportedCheckpoint
from fedavg.formats.jsonfile import open_json
from fedavg.formats.places import unfolded
from fedavg.formats.shards import open_folder
from fedavg.formats.source import Source

ZIP = b"PK\x03\x04"
OLD_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch.save wrote before version 1.6: the pickle of its magic number."""
PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open the checkpoint at `path`, a file or a folder of shards, for reading.

    Raises FormatError where there is none, DamagedCheckpoint for what is cut, padded or garbled,
    UnsupportedCheckpoint for what is not merged, UnsafeCheckpoint for a pickle that names code,
    StorageError for what the filesystem refuses. Reads headers alone.
    """
    name = os.fspath(path)
    found = open_folder(name, _open_file) if os.path.isdir(name) else _open_file(name)
    if odd := unfolded(found.entries):
        found.close()
        raise UnsupportedCheckpoint(
            name,
            f"its tensors unfold to far more than it holds, {odd[0]!r:.200} to {odd[1]} bytes: "
            "save what they were expanded from",
        )
    return found


def _open_file(path: str) -> Checkpoint:
    source = Source(path)
    try:
        return _by_content(source)
    except BaseException:
        source.close()
        raise


def _by_content(source: Source) -> Checkpoint:
    if not source.size:
        raise DamagedCheckpoint(source.path, "it is empty")
    head = source.read(0, min(source.size, 16))
    if head.startswith(ZIP):
        return _open_zip(source)
    if safetensor.looks_like(head, source.size):
        return safetensor.open_safetensors(source)
    if head.lstrip()[:1] == b"{":
        return open_json(source)
    if head.startswith(OLD_TORCH[: len(head)]):
        why = "it has torch's form from before 1.6; load it and save it again"
    elif head.startswith(PICKLES):
        why = "it is a bare pickle, which is never loaded; save tensors with torch.save"
    elif not head.strip(b"\0"):
        raise DamagedCheckpoint(source.path, "it begins with zeros: it was not written to its end")
    else:
        why = "it is neither .pt, .safetensors, .json nor a zip of stable-baselines3"
    raise UnsupportedCheckpoint(source.path, why)


def _open_zip(source: Source) -> Checkpoint:
    extent = zipread.Extent(source, 0, source.size, source.path)
    members = zipread.members(extent)
    if stablebaselines.holds(members) and not torchfile.holds(members):
        return stablebaselines.open_zip(source, members)
    return torchfile.open_torch(source, members)
