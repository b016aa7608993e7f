"""Reading a TOML file that a person wrote: whatever is wrong becomes a sentence that names it."""

from __future__ import annotations

from typing import Any

from fsworker.errors import StorageError, UsageError


def read_toml(path: str) -> dict[str, Any]:
    """The table in a file. StorageError when it cannot be read, UsageError when it is no TOML."""
    import tomllib  # lazily: most commands run without a file

    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", path=path) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", path=path) from None
