"""The plain values in a `.pt` file, read without torch and without running anything it names.

A pickle is a program. Here it may build lists, dicts, numbers and texts; every class or function
that it names is replaced by one that does nothing, so a hostile file can at worst be large or
deep, in a process that runs for one job. Tensors become placeholders and are never read, so a file
of gigabytes costs what its index costs; and counting episodes needs no second of importing torch.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from typing import Any

MOST_INDEX = 256 << 20
"""Bytes of the index (`data.pkl`) that are read; it holds no weights."""
_DTYPES = {"f8": "d", "f4": "f", "i8": "q", "i4": "i", "i2": "h", "u1": "B", "i1": "b", "b1": "?"}


class Unreadable(ValueError):
    """What is there is no checkpoint that can be read; the sentence says why."""


class Opaque:
    """What stands for anything that is not plain."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args

    def __call__(self, *args: Any, **kwargs: Any) -> Opaque:
        """As a function would be called."""
        return Opaque(*args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """As a list would be filled."""

    def extend(self, values: Any) -> None:
        """As a list would be filled."""


class _DType(Opaque):
    pass


def _scalar(dtype: Any = None, data: Any = b"", *_: Any) -> Any:
    """A numpy scalar, as pickle makes one."""
    name = dtype.args[0] if isinstance(dtype, _DType) and dtype.args else ""
    code = _DTYPES.get(name) if isinstance(name, str) else None
    raw = data.encode("latin-1") if isinstance(data, str) else data
    if code is None or not isinstance(raw, bytes) or len(raw) != struct.calcsize("<" + code):
        return Opaque()
    return struct.unpack("<" + code, raw)[0]


class _Ordered(dict[Any, Any]):
    """A state dict, whose attributes (`_metadata`) nobody asks for."""

    def __setstate__(self, state: Any) -> None:
        pass


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Ordered,
    ("collections", "deque"): lambda *args: list(*args[:1]),
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): lambda text, *_: text.encode("latin-1"),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Nothing that is named is ever imported."""
        return _KNOWN.get((module, name), Opaque)

    def persistent_load(self, pid: Any) -> Any:
        """A tensor's storage."""
        return Opaque(pid)


def read(path: str) -> Any:
    """The value that `torch.save` wrote to `path`, tensors as placeholders. Raises Unreadable."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _load(_index(archive))
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise Unreadable(f"it is no archive that can be read: {error}") from None


def _index(archive: zipfile.ZipFile) -> bytes:
    infos = [i for i in archive.infolist() if i.filename.rpartition("/")[2] == "data.pkl"]
    if len(infos) != 1:
        raise Unreadable("it has no data.pkl: torch.save did not write it")
    if infos[0].file_size > MOST_INDEX:
        raise Unreadable(f"its index has {infos[0].file_size} bytes, {MOST_INDEX} is the limit")
    with archive.open(infos[0]) as file:
        data = file.read(MOST_INDEX + 1)
    if len(data) > MOST_INDEX:
        raise Unreadable(f"its index has more than {MOST_INDEX} bytes")
    return data


def _load(data: bytes) -> Any:
    try:
        return _Reader(io.BytesIO(data), encoding="latin-1").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise Unreadable(f"its index cannot be read: {type(error).__name__}: {error}") from None
