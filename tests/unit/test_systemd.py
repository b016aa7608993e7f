"""Units: any root survives the way through systemd, and a watcher tells its manager that it lives.

systemd's own tools judge where they are installed; CI has them.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ctl import sdunits
from ctl.cli import main
from ctl.sdnotify import Manager
from fsworker.errors import UsageError
from tests.support.runs import make_run

pytestmark = pytest.mark.unit

ROOTS = [
    "/",
    "/runs/a",
    "/runs/.hidden/a-b_c.d:e",
    "/data/my runs/50% of $HOME ${X} 'q' \"d\" \\x20 \\",
    "/räume/日本",
    "/a/-b/@c/~d",
]
ROOT_IDS = [str(n) for n in range(len(ROOTS))]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt install systemd)")
    return found


def verify(unit: Path) -> list[str]:
    """What systemd-analyze says about a unit of ours; the machine's own have their own faults."""
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if "shardfleet" in line]
    assert bool(said) == bool(done.returncode), done.stderr
    return said


@pytest.mark.parametrize("root", ROOTS, ids=ROOT_IDS)
def test_a_root_is_escaped_as_systemd_does_it_and_comes_back(root: str) -> None:
    command = tool("systemd-escape")
    escaped = subprocess.run(
        [command, "--path", root], capture_output=True, text=True, check=True
    ).stdout.removesuffix("\n")
    assert sdunits.escape(root) == escaped
    back = subprocess.run(
        [command, "--unescape", "--path", "--", escaped], capture_output=True, text=True, check=True
    ).stdout.removesuffix("\n")
    assert back == root


def test_a_root_that_is_too_long_for_a_unit_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"unit name of 2\d\d bytes"):
        sdunits.instance("watch", "/" + "x" * 240)
    assert sdunits.instance("watch", "/r/1") == "shardfleet-watch@r-1.service"


@pytest.mark.parametrize("service", sdunits.SERVICES)
@pytest.mark.parametrize("root", ["/runs/a", ROOTS[3], ROOTS[4]], ids=["plain", "odd", "utf8"])
def test_systemd_finds_nothing_wrong_with_a_unit(tmp_path: Path, service: str, root: str) -> None:
    unit = tmp_path / sdunits.instance(service, root)
    unit.write_text(sdunits.text(service))
    assert verify(unit) == []


def test_an_odd_interpreter_is_quoted_and_systemd_still_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "my 100% $odd" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    unit = tmp_path / sdunits.instance("watch", "/r")
    unit.write_text(sdunits.text("watch"))
    assert verify(unit) == []
    python.unlink()
    assert any(f"Command {python} is not executable" in line for line in verify(unit))


def install(*args: str, root: str, home: Path) -> int:
    return main(["systemd", "install", *args, "--root", root, "--dir", str(home / "units")])


def test_install_writes_the_units_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FLEET_HOSTS", 'n1 "$n2"')
    monkeypatch.delenv("FLEET_ROOT", raising=False)
    run = make_run(tmp_path / "my $run")
    assert install("watch", "aggregator", root=run.root, home=tmp_path) == 0
    told = capsys.readouterr().out
    assert f"enable --now '{sdunits.instance('watch', run.root)}'" in told
    assert "enable-linger" in told
    names = sorted(p.name for p in (tmp_path / "units").iterdir())
    assert names == ["shardfleet-aggregator@.service", "shardfleet-watch@.service"]
    kept = (tmp_path / "config" / "shardfleet" / "environment").read_text()
    assert kept == 'FLEET_HOSTS="n1 \\"\\$n2\\""\n'
    mode = (tmp_path / "config" / "shardfleet" / "environment").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600

    # Again is harmless; what somebody has changed is not replaced.
    assert install("watch", root=run.root, home=tmp_path) == 0
    unit = tmp_path / "units" / "shardfleet-watch@.service"
    unit.write_text("# mine\n")
    assert install("watch", root=run.root, home=tmp_path) == 5
    assert unit.read_text() == "# mine\n"
    assert install("watch", "--force", root=run.root, home=tmp_path) == 0
    assert unit.read_text() == sdunits.text("watch")

    # A masked unit links to a device; a pipe stands for it here.
    unit.unlink()
    os.mkfifo(tmp_path / "device")
    unit.symlink_to(tmp_path / "device")
    assert install("watch", "--force", root=run.root, home=tmp_path) == 2
    assert "is no regular file" in capsys.readouterr().err and unit.is_symlink()


def test_a_token_goes_to_the_unit_of_a_worker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FLEET_WORKER_TOKEN", "id.secret")
    run = make_run(tmp_path / "r")
    kept = tmp_path / "config" / "shardfleet" / "environment"
    assert install("watch", root=run.root, home=tmp_path) == 0
    assert not kept.exists() or "secret" not in kept.read_text()
    assert install("worker", "--force", root=run.root, home=tmp_path) == 0
    assert 'FLEET_WORKER_TOKEN="id.secret"' in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert (tmp_path / "units" / "shardfleet-worker@.service").exists()


def test_install_without_a_run_or_a_place_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(root=str(tmp_path / "none"), home=tmp_path) == 3
    run = make_run(tmp_path / "r")
    (tmp_path / "units").write_text("a file where a folder should be")
    assert install(root=run.root, home=tmp_path) == 7
    assert "units" in capsys.readouterr().err


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@shardfleet-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind("\0" + name[1:] if abstract else name)
        ours.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        manager = Manager()
        assert "NOTIFY_SOCKET" not in os.environ, "children must not speak in our name"
        for tell in (manager.ready, manager.alive, manager.stopping):
            tell()
        assert [ours.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    manager.alive()  # nobody listens any more
    manager.close()
    manager.alive()


def test_without_a_manager_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = Manager()
    manager.ready()
    manager.close()
