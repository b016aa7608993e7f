"""Whether the login manager will undo a start is read from its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsworker.host.logind import session_warnings

pytestmark = pytest.mark.unit

SESSION = "0::/user.slice/user-1000.slice/session-7.scope\n"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-3.scope\n"
SERVICE = "0::/system.slice/ssh.service\n"
KILLS = "[Login]\nKillUserProcesses=yes\n"


def make(base: Path, files: dict[str, str], cgroup: str = SESSION, linger: bool = False) -> str:
    for name, text in {**files, "proc/self/cgroup": cgroup}.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if linger:
        folder = base / "var/lib/systemd/linger"
        folder.mkdir(parents=True)
        (folder / "ann").touch()
    return str(base)


MAIN, DROP = "etc/systemd/logind.conf", "etc/systemd/logind.conf.d/50-site.conf"


@pytest.mark.parametrize(
    ("files", "warns"),
    [
        ({}, False),
        ({MAIN: KILLS}, True),
        ({MAIN: "[Login]\n  KillUserProcesses = On \n"}, True),
        ({MAIN: "[Login]\nKillUserProcesses=no\n"}, False),
        ({MAIN: "[Login]\n#KillUserProcesses=no\n"}, False),
        ({MAIN: "[Login]\n#KillUserProcesses=yes\n"}, True),  # how a default looks
        ({MAIN: "[Login]\n#KillUserProcesses=yes\nKillUserProcesses=no\n"}, False),
        ({DROP: KILLS}, True),
        ({MAIN: KILLS, DROP: "[Login]\nKillUserProcesses=no\n"}, False),
        ({"usr/lib/systemd/logind.conf": KILLS}, True),
        ({"usr/lib/systemd/logind.conf": KILLS, MAIN: ""}, False),
        ({"run/systemd/logind.conf.d/50-site.conf": KILLS, DROP: ""}, False),
        ({DROP: KILLS, "usr/lib/systemd/logind.conf.d/60-x.conf": "KillUserProcesses=0"}, False),
        ({DROP: KILLS, DROP + ".off": "KillUserProcesses=0"}, True),
        ({MAIN: KILLS + "KillExcludeUsers=root ann\n"}, False),
        ({MAIN: KILLS + "KillOnlyUsers=bob\n"}, False),
        ({MAIN: "[Login]\nKillOnlyUsers=bob ann\n"}, True),
    ],
)
def test_the_settings_as_logind_reads_them(
    tmp_path: Path, files: dict[str, str], warns: bool
) -> None:
    warnings = session_warnings(make(tmp_path, files), "ann")
    assert bool(warnings) is warns
    assert all("loginctl enable-linger ann" in text for text in warnings)


def test_outside_a_login_session_nothing_is_ended(tmp_path: Path) -> None:
    assert session_warnings(make(tmp_path, {MAIN: KILLS}, SERVICE), "ann") == []


def test_root_is_spared_by_default(tmp_path: Path) -> None:
    assert session_warnings(make(tmp_path, {MAIN: KILLS}), "root") == []


def test_lingering_does_not_save_what_stays_in_the_session(tmp_path: Path) -> None:
    (text,) = session_warnings(make(tmp_path, {MAIN: KILLS}, linger=True), "ann")
    assert "systemd-run --user --scope" in text


@pytest.mark.parametrize("linger", [True, False])
def test_below_the_user_manager_lingering_decides(tmp_path: Path, linger: bool) -> None:
    assert bool(session_warnings(make(tmp_path, {}, MANAGER, linger), "ann")) is not linger


def test_a_machine_without_logind_has_nothing_to_say(tmp_path: Path) -> None:
    assert session_warnings(str(tmp_path), "ann") == []
