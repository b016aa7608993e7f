"""The module tables of docs/architecture.md against the folders: a false map is worse than none.

Each module stands in exactly one row of its package's table, and each row names modules that exist.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("fsworker", "ctl", "fedavg")

VERBS = "commands/<verb>"
"""Stands for all commands: each is a file of its own, and a new one leaves the page as it is."""


def modules(package: str) -> set[str]:
    """The modules of a package as the tables name them; a package's own two files are left out."""
    folder = REPO / package
    paths = (p.relative_to(folder).with_suffix("") for p in folder.rglob("*.py"))
    names = {p.as_posix() for p in paths if p.name not in ("__init__", "__main__")}
    verbs = {name for name in names if name.startswith("commands/")}
    return names - verbs | ({VERBS} if verbs else set())


def table(package: str) -> list[str]:
    """Every name in the second column of a package's table, in order, repetitions included."""
    section = re.search(rf"^## {package}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert section, f"there is no section {package}"
    rows = [line.strip("|").split("|") for line in section[1].splitlines() if line[:1] == "|"]
    assert len(rows) > 2 and all(len(row) == 2 for row in rows)
    return [name for _, names in rows for name in re.findall(r"`([^`]+)`", names)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_stands_in_one_row(package: str) -> None:
    named, found = table(package), modules(package)
    assert found, "the package has modules"
    assert sorted(found - set(named)) == [], "not in the table"
    assert sorted(set(named) - found) == [], "in the table, and no module"
    assert sorted(n for n in set(named) if named.count(n) > 1) == [], "in several rows"
