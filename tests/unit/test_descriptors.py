"""Descriptors that are lent: none of a failed loan stays in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedavg.formats.descriptors import Pool

pytestmark = pytest.mark.unit


class File:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open_again(self) -> int:
        return os.open(self.path, os.O_RDONLY)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_where_one_cannot_be_opened_the_others_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    pool, file = Pool(1), File(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        pool.borrow_all((file, File(tmp_path / "none")))
    lent = pool.borrow(file)
    assert lent.users == 1
    pool.give_back(lent)
    assert is_open(lent.fd)  # it is kept, and nobody uses it
    pool.forget(file)
    assert not is_open(lent.fd)
