"""Whose root a worker serves, and on which mounts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fsworker.errors import NotRunning, Refused, UsageError
from fsworker.loop import admission
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import Manifest
from tests.support.roots import make_root

pytestmark = pytest.mark.unit

DIR, FILE = stat.S_IFDIR, stat.S_IFREG


def status(mode: int, uid: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, 100, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("root", "manifest", "uid", "words"),
    [
        ((DIR | 0o700, 7), (FILE | 0o600, 7), 7, None),
        ((DIR | 0o2770, 7), (FILE | 0o660, 7), 8, None),
        ((DIR | 0o2770, 8), (FILE | 0o660, 7), 7, None),
        ((DIR | 0o755, 7), (FILE | 0o644, 7), 8, "belongs to user 7 and this worker runs as 8"),
        ((DIR | 0o2770, 8), (FILE | 0o660, 9), 8, "belongs to user 9"),
        ((DIR | 0o755, 7), (FILE | 0o644, 7), 0, "belongs to user 7 and this worker runs as 0"),
        ((DIR | 0o777, 7), (FILE | 0o600, 7), 7, "everybody can write"),
        ((DIR | 0o1777, 7), (FILE | 0o600, 7), 7, "everybody can write"),
        ((DIR | 0o700, 7), (FILE | 0o606, 7), 7, "everybody can change it"),
    ],
)
def test_trust(
    root: tuple[int, int], manifest: tuple[int, int], uid: int, words: str | None
) -> None:
    why = admission.distrust(status(*root), status(*manifest), uid)
    assert why is None if words is None else words in str(why)


MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:30 / /nfs rw,relatime shared:2 - nfs4 server:/a rw,vers=4.2,hard,proto=tcp
31 30 0:31 / /nfs/fast\\040disk rw,relatime shared:3 - nfs4 server:/b rw,vers=4.2,nocto,hard
32 22 0:32 / /nfs2 rw - nfs4 server:/c rw,nocto
broken line
"""


@pytest.mark.parametrize(
    ("path", "point", "nocto"),
    [
        ("/work", "/", False),
        ("/nfs/run", "/nfs", False),
        ("/nfs/fast disk/run", "/nfs/fast disk", True),
        ("/nfs/fast disk", "/nfs/fast disk", True),
        ("/nfs2/run", "/nfs2", True),
        ("/nfs22/run", "/", False),
    ],
)
def test_the_mount_of_a_path(path: str, point: str, nocto: bool) -> None:
    found = admission.mount_of(path, MOUNTS)
    assert found is not None
    assert found[0] == point
    assert ("nocto" in found[1]) is nocto


def test_a_root_that_is_fit(tmp_path: Path) -> None:
    store = Store(make_root(tmp_path / "root"))
    assert admission.admit(store, 0).run_id == "run1"


def test_what_is_not_fit_is_refused_with_its_exit_code(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    with pytest.raises(UsageError, match="shard 1 does not exist"):
        admission.admit(Store(root), 1)
    (root / layout.MANIFEST).chmod(0o602)
    with pytest.raises(Refused, match="everybody can change it"):
        admission.admit(Store(root), 0)
    with pytest.raises(NotRunning):
        admission.admit(Store(tmp_path), 0)


def test_the_default_function_comes_first_and_once() -> None:
    manifest = Manifest("r", "m:b", 1, (), ("m:a", "m:b"))
    assert admission.function_names(manifest) == ("m:b", "m:a")
