"""`.pt` and `.pth`: the zip archives that torch.save writes.

Of such a file the directory and `data.pkl` are read; tensors are places in it until somebody asks
for bytes. Files in torch's form from before version 1.6, which is no zip, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fedavg.formats import admitted, keys, nodes, torchwrite, unpickle
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
        source.path, "pt", archive.entries, archive.rest, read_place, source.close, archive.plan
    )


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
    for key, path, leaf in keys.leaves(tree, nodes.children, extent.name, top):
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


def _checked(leaf: object, key: str, extent: Extent) -> object:
    """A leaf that is no tensor, if it can be kept and compared."""
    if isinstance(leaf, nodes.Global) and leaf.name.removeprefix("torch.") not in ITEMSIZE:
        raise UnsupportedCheckpoint(extent.name, f"{key!r:.200} is {leaf.name} itself")
    if isinstance(leaf, nodes.Storage):
        raise UnsupportedCheckpoint(extent.name, f"{key!r:.200} is a storage: save the tensor")
    if isinstance(leaf, nodes.Call):
        flat = [v for arg in leaf.args for v in (arg if isinstance(arg, (list, tuple)) else [arg])]
    else:
        flat = [] if isinstance(leaf, nodes.Global) else [leaf]
    odd = next((v for v in flat if not isinstance(v, nodes.PLAIN)), None)
    if odd is not None:
        raise UnsupportedCheckpoint(extent.name, f"{key!r:.200} holds a {admitted.name_of(odd)}")
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
    place = Place(
        extent.source,
        member.offset + tensor.offset * itemsize,
        tensor.strides,
        is_row_major(tensor.shape, tensor.strides),
    )
    return Entry(
        key, name, tensor.dtype, tensor.shape, prod(tensor.shape) * itemsize, itemsize, owner, place
    )
