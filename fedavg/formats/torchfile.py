"""`.pt` and `.pth`: the zip archives that torch.save writes.

Of such a file the directory and `data.pkl` are read; tensors are places in it until somebody asks
for bytes. Files in torch's form from before version 1.6, which is no zip, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedavg.formats import keys, nodes, unpickle, zipread
from fedavg.formats.base import Checkpoint, Entry
from fedavg.formats.dtypes import ITEMSIZE
from fedavg.formats.errors import UnsupportedCheckpoint
from fedavg.formats.owners import owners
from fedavg.formats.source import Source
from fedavg.formats.strided import gather, is_row_major
from fedavg.formats.zipread import Member, Region

PICKLE = "/data.pkl"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's first element lies in which file, and how the others follow (elements)."""

    source: Source
    offset: int
    strides: tuple[int, ...]
    row_major: bool


@dataclass(frozen=True, slots=True)
class Archive:
    """What is in one archive of torch's. `tensors` and `entries` have the same keys."""

    tree: object
    tensors: dict[str, nodes.Tensor]
    entries: dict[str, Entry]
    rest: dict[str, object]


def open_torch(source: Source) -> Checkpoint:
    """A file of torch.save."""
    region = Region(source, 0, source.size, source.path)
    archive = read_archive(region, zipread.members(region))
    return Checkpoint(
        source.path, "pt", archive.entries, archive.rest, read_place, source.close, archive
    )


def read_archive(region: Region, members: dict[str, Member]) -> Archive:
    """What the archive with these members holds."""
    root = _root(region, members)
    order = members.get(root + "/byteorder")
    if order and region.source.read(order.offset, min(order.size, 16)) != b"little":
        raise UnsupportedCheckpoint(
            region.name, "it was saved on a big-endian machine; load and save it on this one"
        )
    pickle = members[root + PICKLE]
    if pickle.size > unpickle.MAX_PICKLE:
        raise UnsupportedCheckpoint(
            region.name, f"its data.pkl has {pickle.size} bytes, more than {unpickle.MAX_PICKLE}"
        )
    tree = unpickle.load(region.source.read(pickle.offset, pickle.size), region.name)
    tensors: dict[str, nodes.Tensor] = {}
    names: dict[str, str] = {}
    rest: dict[str, object] = {}
    for key, path, leaf in keys.leaves(tree, nodes.children, region.name):
        if isinstance(leaf, nodes.Tensor):
            tensors[key], names[key] = leaf, keys.spelling(path)
        else:
            rest[key] = _checked(leaf, key, region)
    owned = owners(tensors)
    entries = {
        key: _entry(key, names[key], owned[key], tensor, region, members, root)
        for key, tensor in tensors.items()
    }
    return Archive(tree, tensors, entries, rest)


def read_place(entry: Entry, start: int, stop: int, buffer: memoryview) -> None:
    """Bytes of an entry whose place is a `Place`."""
    place: Place = entry.place
    if place.row_major:
        place.source.read_into(place.offset + start, buffer)
        return
    size = entry.itemsize

    def read(offset: int, view: memoryview) -> None:
        place.source.read_into(place.offset + offset, view)

    gather(read, entry.shape, place.strides, size, start // size, stop // size, buffer)


def _root(region: Region, members: dict[str, Member]) -> str:
    """The folder that all of torch's members lie in, named after the file that was saved."""
    roots = [n.removesuffix(PICKLE) for n in members if n.endswith(PICKLE) and n.count("/") == 1]
    if len(roots) != 1:
        raise UnsupportedCheckpoint(
            region.name, f"it is a zip archive with {len(roots)} data.pkl, not one of torch.save"
        )
    if f"{roots[0]}/constants.pkl" in members:
        raise UnsupportedCheckpoint(region.name, "it is a TorchScript program: save its state_dict")
    return roots[0]


def _checked(leaf: object, key: str, region: Region) -> object:
    """A leaf that is no tensor, if it can be kept and compared."""
    if isinstance(leaf, nodes.Global) and leaf.name.removeprefix("torch.") not in ITEMSIZE:
        raise UnsupportedCheckpoint(region.name, f"{key!r} is {leaf.name} itself")
    if isinstance(leaf, nodes.Storage):
        raise UnsupportedCheckpoint(region.name, f"{key!r} is a storage: save the tensor")
    if not isinstance(leaf, (*nodes.PLAIN, nodes.Global, nodes.Call)):
        raise UnsupportedCheckpoint(region.name, f"{key!r} is a {type(leaf).__name__}")
    return leaf


def _entry(
    key: str,
    name: str,
    owner: str,
    tensor: nodes.Tensor,
    region: Region,
    members: dict[str, Member],
    root: str,
) -> Entry:
    storage = tensor.storage
    member = members.get(f"{root}/data/{storage.key}")
    if member is None:
        raise region.damaged(f"the bytes of {key!r:.200} are missing")
    if member.size != storage.nbytes:
        raise region.damaged(
            f"the storage of {key!r:.200} has {member.size} bytes, not {storage.nbytes}"
        )
    itemsize = ITEMSIZE[tensor.dtype]
    count = 1
    for n in tensor.shape:
        count *= n
    place = Place(
        region.source,
        member.offset + tensor.offset * itemsize,
        tensor.strides,
        is_row_major(tensor.shape, tensor.strides),
    )
    return Entry(key, name, tensor.dtype, tensor.shape, count * itemsize, itemsize, owner, place)
