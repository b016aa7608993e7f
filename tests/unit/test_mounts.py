"""The mount table: which mounts no run can live on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctl import mounts
from fsworker.errors import StorageError

pytestmark = pytest.mark.unit

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /shared rw,relatime shared:2 - nfs4 srv:/shared rw,vers=4.2,hard
31 22 0:31 / /shared/bad rw,relatime - nfs srv:/bad rw,vers=3,nocto,nolock
32 22 0:32 / /a\\040b ro,relatime shared:3 - nfs4 srv:/ab rw,vers=4.2
33 22 0:33 / /over rw - nfs4 srv:/o rw,nocto
34 22 0:34 / /over rw - nfs4 srv:/o rw
35 22 0:35 / /soft rw - nfs4 srv:/s rw,vers=4.2,soft,proto=tcp
36 22 0:36 / /softer rw - nfs4 srv:/s rw,softerr,vers=4.2
37 22 0:37 / /ram rw - tmpfs tmpfs rw,soft
a line of another form
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return str(path)


@pytest.mark.parametrize("path", ["/home/x", "/shared", "/shared/runs/r", "/shared/badly", "/over"])
def test_good_places(table: str, path: str) -> None:
    mounts.check(path, table)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/shared/bad/x", "/shared/bad, which is mounted with nocto"),
        ("/shared/bad", "mounted with nocto"),
        ("/a b/x", "/a b, which is mounted read-only"),
    ],
)
def test_bad_places(table: str, path: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        mounts.check(path, table)


@pytest.mark.parametrize("path", ["/soft/runs/r", "/softer"])
def test_a_soft_mount_is_taken_with_a_warning(table: str, path: str) -> None:
    mounts.check(path, table)
    told = mounts.doubt(path, table)
    assert told and f"{path} lies on" in told and "mounted soft" in told


@pytest.mark.parametrize("path", ["/shared", "/ram", "/home", "/shared/bad"])
def test_other_mounts_raise_no_doubt(table: str, path: str) -> None:
    assert mounts.doubt(path, table) is None


def test_no_table_is_no_finding(tmp_path: Path) -> None:
    mounts.check("/", str(tmp_path / "none"))


def test_the_real_table_is_understood() -> None:
    found = mounts.mount_of("/", mounts.parse(Path(mounts.TABLE).read_text()))
    assert found and found.point == "/"
