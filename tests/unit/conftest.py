"""What several modules of unit tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsworker.protocol.fsops import Store
from tests.support.roots import make_root


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A run root of its own, which commands find by themselves."""
    root = make_root(tmp_path / "root")
    monkeypatch.setenv("FLEET_ROOT", str(root))
    monkeypatch.setenv("FLEET_WORKSPACE", str(tmp_path / "ws"))
    return Store(root)
