"""`.pt` and `.pth`: the zip archives that torch.save writes.

Of such a file the directory and `data.pkl` are read; tensors are places in it until somebody asks
for bytes. Files in torch's form from before version 1.6, which is no zip, are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fedavg.formats import keys, nodes, pickling, unpickle, zipread
from fedavg.formats.base import Checkpoint, Entry, Plan
from fedavg.formats.contents import Content, Fixed, Region
from fedavg.formats.dtypes import ITEMSIZE
from fedavg.formats.errors import UnsupportedCheckpoint
from fedavg.formats.owners import owners
from fedavg.formats.source import Source
from fedavg.formats.strided import gather, is_row_major, row_major
from fedavg.formats.zipread import Extent, Member
from fedavg.formats.zipwrite import ZipContent

ROOT = "archive"
"""The folder in an archive of ours: what torch.save takes when it has no file's name."""
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

    def plan(self, replace: Mapping[str, object]) -> Plan:
        """A file of its own with the same tree."""
        content, regions = lay_out(self, replace)
        owned = frozenset(self.entries.keys() - regions.keys())
        return Plan({"": content}, regions, dict.fromkeys(regions, ""), owned)


def open_torch(source: Source) -> Checkpoint:
    """A file of torch.save."""
    extent = Extent(source, 0, source.size, source.path)
    archive = read_archive(extent, zipread.members(extent))
    return Checkpoint(
        source.path, "pt", archive.entries, archive.rest, read_place, source.close, archive.plan
    )


def read_archive(extent: Extent, members: dict[str, Member]) -> Archive:
    """What the archive with these members holds."""
    root = _root(extent, members)
    order = members.get(root + "/byteorder")
    if order and extent.source.read(order.offset, min(order.size, 16)) != b"little":
        raise UnsupportedCheckpoint(
            extent.name, "it was saved on a big-endian machine; load and save it on this one"
        )
    pickle = members[root + PICKLE]
    if pickle.size > unpickle.MAX_PICKLE:
        raise UnsupportedCheckpoint(
            extent.name, f"its data.pkl has {pickle.size} bytes, more than {unpickle.MAX_PICKLE}"
        )
    tree = unpickle.load(extent.source.read(pickle.offset, pickle.size), extent.name)
    tensors: dict[str, nodes.Tensor] = {}
    names: dict[str, str] = {}
    rest: dict[str, object] = {}
    for key, path, leaf in keys.leaves(tree, nodes.children, extent.name):
        if nodes.ATTRIBUTES in path:
            if not isinstance(leaf, nodes.PLAIN):
                raise UnsupportedCheckpoint(extent.name, f"{key!r:.200} is no plain value")
        elif isinstance(leaf, nodes.Tensor):
            tensors[key], names[key] = leaf, keys.spelling(path)
        else:
            rest[key] = _checked(leaf, key, extent)
    owned = owners(tensors)
    entries = {
        key: _entry(key, names[key], owned[key], tensor, extent, members, root)
        for key, tensor in tensors.items()
    }
    return Archive(tree, tensors, entries, rest)


def lay_out(
    archive: Archive, replace: Mapping[str, object]
) -> tuple[ZipContent, dict[str, Region]]:
    """An archive with the same tree, each tensor that owns its bytes in a storage of its own."""
    regions: dict[str, Region] = {}
    written: dict[str, nodes.Tensor] = {}
    for key, entry in archive.entries.items():
        if entry.owner == key:
            storage = nodes.Storage(str(len(regions)), entry.dtype, entry.nbytes)
            old = archive.tensors[key]
            written[key] = dataclasses.replace(
                old, storage=storage, offset=0, strides=row_major(entry.shape)
            )
            regions[key] = Region(key, entry.nbytes, sums=True)
    for key, entry in archive.entries.items():
        if entry.owner != key:
            old, owner = archive.tensors[key], archive.tensors[entry.owner]
            exact = (old.offset, old.shape, old.strides) == (
                owner.offset,
                owner.shape,
                owner.strides,
            )
            written[key] = dataclasses.replace(
                old,
                storage=written[entry.owner].storage,
                offset=old.offset - owner.offset,
                strides=written[entry.owner].strides if exact else old.strides,
            )

    def leaf(path: keys.Path, value: object) -> object:
        key = keys.key_of(path)
        return written[key] if isinstance(value, nodes.Tensor) else replace.get(key, value)

    head: list[tuple[str, Content]] = [
        (f"{ROOT}/data.pkl", Fixed(pickling.dump(archive.tree, leaf))),
        (f"{ROOT}/byteorder", Fixed(b"little")),
    ]
    data = ((f"{ROOT}/data/{i}", region) for i, region in enumerate(regions.values()))
    return ZipContent([*head, *data, (f"{ROOT}/version", Fixed(b"3\n"))]), regions


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


def _root(extent: Extent, members: dict[str, Member]) -> str:
    """The folder that all of torch's members lie in, named after the file that was saved."""
    roots = [n.removesuffix(PICKLE) for n in members if n.endswith(PICKLE) and n.count("/") == 1]
    if len(roots) != 1:
        raise UnsupportedCheckpoint(
            extent.name, f"it is a zip archive with {len(roots)} data.pkl, not one of torch.save"
        )
    if f"{roots[0]}/constants.pkl" in members:
        raise UnsupportedCheckpoint(extent.name, "it is a TorchScript program: save its state_dict")
    return roots[0]


def _checked(leaf: object, key: str, extent: Extent) -> object:
    """A leaf that is no tensor, if it can be kept and compared."""
    if isinstance(leaf, nodes.Global) and leaf.name.removeprefix("torch.") not in ITEMSIZE:
        raise UnsupportedCheckpoint(extent.name, f"{key!r} is {leaf.name} itself")
    if isinstance(leaf, nodes.Storage):
        raise UnsupportedCheckpoint(extent.name, f"{key!r} is a storage: save the tensor")
    if not isinstance(leaf, (*nodes.PLAIN, nodes.Global, nodes.Call)):
        raise UnsupportedCheckpoint(extent.name, f"{key!r} is a {type(leaf).__name__}")
    return leaf


def _entry(
    key: str,
    name: str,
    owner: str,
    tensor: nodes.Tensor,
    extent: Extent,
    members: dict[str, Member],
    root: str,
) -> Entry:
    storage = tensor.storage
    member = members.get(f"{root}/data/{storage.key}")
    if member is None:
        raise extent.damaged(f"the bytes of {key!r:.200} are missing")
    if member.size != storage.nbytes:
        raise extent.damaged(
            f"the storage of {key!r:.200} has {member.size} bytes, not {storage.nbytes}"
        )
    itemsize = ITEMSIZE[tensor.dtype]
    count = 1
    for n in tensor.shape:
        count *= n
    place = Place(
        extent.source,
        member.offset + tensor.offset * itemsize,
        tensor.strides,
        is_row_major(tensor.shape, tensor.strides),
    )
    return Entry(key, name, tensor.dtype, tensor.shape, count * itemsize, itemsize, owner, place)
