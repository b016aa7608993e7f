"""Writing a checkpoint piece by piece, in any order, from several threads."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from fedavg.formats.base import Checkpoint


class Writer:
    """A checkpoint that is being written: the template's format, nesting, names and dtypes.

    keys: the tensors that have to be written; the template's entries that own their bytes. Each
        byte of them must be written, in any order. Writing an entry that another owns does nothing.
    """

    keys: tuple[str, ...]

    @classmethod
    def create(
        cls, path: str, template: Checkpoint, *, replace: Mapping[str, object] | None = None
    ) -> Writer:
        """Begin a checkpoint at `path`, which must not exist; its folder must.

        `replace` gives other values for keys of `template.rest`. The template is not needed any
        more when this returns. The file is open to the group where its folder is group-writable,
        else private, whatever the umask. Raises StorageError; KeyError for a key in `replace` that
        the template lacks, TypeError for a value that its format cannot hold.
        """
        raise NotImplementedError

    def write(self, key: str, start: int, buffer: memoryview) -> None:
        """Write bytes of a tensor's row-major elements from byte `start` on. From any thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish: headers and checksums, fsync, close. ValueError if bytes were not written."""
        raise NotImplementedError

    def abort(self) -> None:
        """Give up: close, and remove what was made."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, or abort when an error came."""
        if error is None:
            self.close()
        else:
            self.abort()
