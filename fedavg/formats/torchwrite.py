"""An archive of torch's for tensors that are still to come.

Each tensor that owns its bytes gets a storage of its own, without gaps and row-major, so that a
slice of a large buffer does not drag the buffer along. The others stay views of their owners.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from math import prod

from fedavg.formats import pickling
from fedavg.formats.contents import Content, Fixed, Region
from fedavg.formats.dtypes import ITEMSIZE
from fedavg.formats.nodes import Storage, Tensor
from fedavg.formats.strided import row_major
from fedavg.formats.zipwrite import ZipContent

ROOT = "archive"
"""The folder in an archive of ours: what torch.save takes when it has no file's name."""


def tensors(
    old: Mapping[str, Tensor], owners: Mapping[str, str]
) -> tuple[dict[str, Tensor], dict[str, Region]]:
    """The tensors as views of their new storages, and the regions of those that own bytes."""
    written: dict[str, Tensor] = {}
    regions: dict[str, Region] = {}
    for key, tensor in old.items():
        if owners[key] == key:
            size = prod(tensor.shape) * ITEMSIZE[tensor.dtype]
            storage = Storage(str(len(regions)), tensor.dtype, size)
            regions[key] = Region(key, size, sums=True)
            strides = row_major(tensor.shape)
            written[key] = dataclasses.replace(tensor, storage=storage, offset=0, strides=strides)
    for key, tensor in old.items():
        if owners[key] != key:
            written[key] = _view(tensor, old[owners[key]], written[owners[key]])
    return written, regions


def archive(tree: object, leaf: pickling.Leaf, regions: Iterable[Region]) -> ZipContent:
    """The archive of a tree, its storages numbered as their regions come."""
    pickle = pickling.dump(tree, leaf)
    members: list[tuple[str, Content]] = [
        (f"{ROOT}/data.pkl", Fixed(pickle)),
        (f"{ROOT}/byteorder", Fixed(b"little")),
    ]
    members.extend((f"{ROOT}/data/{i}", region) for i, region in enumerate(regions))
    return ZipContent([*members, (f"{ROOT}/version", Fixed(b"3\n"))])


def _view(tensor: Tensor, owner: Tensor, written: Tensor) -> Tensor:
    """`tensor` as the view of `written` that it was of `owner`."""
    place = (tensor.offset, tensor.shape, tensor.strides)
    if place == (owner.offset, owner.shape, owner.strides):
        return dataclasses.replace(
            tensor, storage=written.storage, offset=0, strides=written.strides
        )
    offset = tensor.offset - owner.offset  # an owner of other places is row-major, and stays so
    return dataclasses.replace(tensor, storage=written.storage, offset=offset)
