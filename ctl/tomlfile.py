"""Reading a TOML file that a person wrote: whatever is wrong becomes a sentence that names it."""

from __future__ import annotations

import re
from typing import Any

from fsworker.errors import StorageError, UsageError

_TABLE = re.compile(rb"(?m)^\s*\[(hosts)\.")


def read_toml(path: str) -> dict[str, Any]:
    """The table in a file. StorageError when it cannot be read, UsageError when it is no TOML."""
    import tomllib  # lazily: most commands run without a file

    try:
        with open(path, "rb") as file:
            data = file.read()
        return tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", path=path) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}{_hint(data)}", path=path) from None


def _hint(data: bytes) -> str:
    """What to do about a mistake that is easily made: one name for a value and for tables."""
    for name in set(_TABLE.findall(data)):
        if re.search(rb"(?m)^\s*" + re.escape(name) + rb"\s*=", data):
            key = name.decode()
            return (
                f'; it has both {key} = … and [{key}."…"], which TOML does not allow: name the '
                f"{key} in tables, a {key}_file or FLEET_{key.upper()}"
            )
    return ""
