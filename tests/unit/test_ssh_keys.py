"""Keys of files: read once, and again when the file or the certificate beside it has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import paramiko
import pytest

from ctl.launchers.sshconfig import Settings
from ctl.launchers.sshkeys import Keyring

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen (openssh-client)"),
]


def make(path: Path) -> None:
    path.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def test_a_key_is_read_once_until_it_or_its_certificate_changes(tmp_path: Path) -> None:
    file, ring = tmp_path / "key", Keyring()
    make(file)
    settings = Settings("n1", "n1", 22, "u", identity_files=(str(file),))

    def candidate() -> Any:
        notes: list[str] = []
        ((_, key),) = ring.candidates(settings, [], notes)
        assert notes == []
        return key

    first = candidate()
    assert candidate() is first
    os.utime(file, (1e9, 1e9))
    again = candidate()
    assert again is not first and again == first
    make(file)
    second = candidate()
    assert second != first
    ca = tmp_path / "ca"
    make(ca)
    sign = ["ssh-keygen", "-q", "-s", str(ca), "-I", "me", "-n", "u", f"{file}.pub"]
    subprocess.run(sign, check=True)
    certified = candidate()
    assert certified is not second and certified.public_blob

    file.unlink()
    notes: list[str] = []
    assert list(ring.candidates(settings, [], notes)) == [] and "unusable" in notes[0]


def test_a_key_that_is_named_comes_before_what_else_an_agent_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    given, usual = tmp_path / "given", tmp_path / ".ssh" / "id_ed25519"
    for path in (given, usual, tmp_path / "other"):
        make(path)
    other = paramiko.PKey.from_path(tmp_path / "other")

    def order(*files: Path, **fields: bool) -> list[str]:
        paths = tuple(map(str, files))
        settings = Settings("n1", "n1", 22, "u", identity_files=paths, **fields)
        return [name for name, _ in Keyring().candidates(settings, [other], [])]

    agents = "the agent's key ssh-ed25519"
    assert order(given) == [str(given), agents]
    assert order(given, identities_only=True) == [str(given)]
    assert order(tmp_path / "other", given) == [agents, str(given)], "the agent's comes first"
    assert order(usual.with_name("id_rsa"), usual.with_name("id_ecdsa"), usual) == [
        agents,
        str(usual),
    ], "as ssh does where nothing is named"
