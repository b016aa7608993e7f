"""`.pt` and `.pth`: the zip archives that torch.save writes.

Of such a file the directory and `data.pkl` are read; tensors are places in it until somebody asks
for bytes. Files in torch's form from before version 1.6, which is no zip, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from fedavg.formats import keys, nodes, torchwrite, unpickle, values
from fedavg.formats.base import Checkpoint, Entry, Plan
from fedavg.formats.contents import Region
from fedavg.formats.dtypes import ITEMSIZE
from fedavg.formats.errors import UnsupportedCheckpoint
from fedavg.formats.owners import owners
from fedavg.formats.places import Place, read_place
from fedavg.formats.source import Source
from fedavg.formats.strided import is_row_major
from fedavg.formats.zipread import Extent, Member
from fedavg.formats.zipwrite import ZipContent

PICKLE = "/data.pkl"


@dataclass(frozen=True, slots=True)
class Archive:
    """What an archive of torch's holds. `tensors` and `entries` have the same keys, below `top`."""

    top: str | None
    tree: object
    tensors: dict[str, nodes.Tensor]
    entries: dict[str, Entry]
    rest: dict[str, object]

    def lay_out(self, replace: Mapping[str, object]) -> tuple[ZipContent, dict[str, Region]]:
        """An archive of the same tree, and where its tensors go."""
        owned = {key: entry.owner for key, entry in self.entries.items()}
        written, regions = torchwrite.tensors(self.tensors, owned)

        def leaf(path: keys.Path, value: object) -> object:
            key = keys.key_of(path, self.top)
            return written[key] if key in written else replace.get(key, value)

        return torchwrite.archive(self.tree, leaf, regions.values()), regions

    def plan(self, replace: Mapping[str, object]) -> Plan:
        """A file of its own with the same tree."""
        content, regions = self.lay_out(replace)
        owned = frozenset(self.entries.keys() - regions.keys())
        return Plan({"": content}, regions, dict.fromkeys(regions, ""), owned)


def holds(members: Mapping[str, Member]) -> bool:
    """Whether a zip archive with these members is one of torch.save."""
    return bool(_roots(members))


def open_torch(source: Source, members: dict[str, Member]) -> Checkpoint:
    """A file of torch.save, whose `members` were found."""
    archive = read_archive(Extent(source, 0, source.size, source.path), members)
    if nodes.children(archive.tree) is None:
        raise UnsupportedCheckpoint(source.path, "it holds a single value: save a dict of tensors")
    return Checkpoint(
        source.path, "pt", archive.entries, archive.rest, read_place, source.close, archive.plan,
        check_unchanged=source.check_unchanged,
    )  # fmt: skip


def read_archive(extent: Extent, members: dict[str, Member], top: str | None = None) -> Archive:
    """What the archive with these members holds, its keys below `top`."""
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
    for key, name, leaf in _leaves(tree, extent, top):
        if isinstance(leaf, nodes.Tensor):
            tensors[key], names[key] = leaf, name
        else:
            rest[key] = leaf
    owned = owners(tensors)
    entries = {
        key: _entry(key, names[key], owned[key], tensor, extent, members, root)
        for key, tensor in tensors.items()
    }
    return Archive(top, tree, tensors, entries, rest)


def _roots(members: Mapping[str, Member]) -> list[str]:
    return [n.removesuffix(PICKLE) for n in members if n.endswith(PICKLE) and n.count("/") == 1]


def _root(extent: Extent, members: dict[str, Member]) -> str:
    """The folder that all of torch's members lie in, named after the file that was saved."""
    roots = _roots(members)
    if len(roots) != 1:
        raise UnsupportedCheckpoint(
            extent.name, f"it is a zip archive with {len(roots)} data.pkl, not one of torch.save"
        )
    if f"{roots[0]}/constants.pkl" in members:
        raise UnsupportedCheckpoint(extent.name, "it is a TorchScript program: save its state_dict")
    return roots[0]


def _leaves(tree: object, extent: Extent, top: str | None) -> Iterator[tuple[str, str, object]]:
    """(key, name, leaf) of what a merge may see: tensors, and values that can be kept."""
    total = 0

    def children(node: object) -> Iterator[tuple[object, object]] | None:
        fault = values.metadata_fault(node) if isinstance(node, nodes.Table) else None
        if fault:
            raise UnsupportedCheckpoint(extent.name, f"a dict in it {fault}")
        return nodes.children(node)

    for key, path, leaf in keys.leaves(tree, children, extent.name, top):
        fault = None if isinstance(leaf, nodes.Tensor) else values.fault(leaf)
        if fault:
            raise UnsupportedCheckpoint(extent.name, f"{key!r:.200} {fault}")
        total += values.size(leaf)
        if total > 2 * unpickle.MAX_PICKLE:
            raise UnsupportedCheckpoint(
                extent.name, f"its values unfold to more than {total} bytes"
            )
        if nodes.ATTRIBUTES not in path:
            yield key, keys.spelling(path), leaf


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
    place = Place(
        extent.source,
        member.offset + tensor.offset * itemsize,
        tensor.strides,
        is_row_major(tensor.shape, tensor.strides),
    )
    return Entry(
        key, name, tensor.dtype, tensor.shape, prod(tensor.shape) * itemsize, itemsize, owner, place
    )
