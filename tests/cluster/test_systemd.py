"""Watcher and worker as units of a real service manager: ready, watched over, started, stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctl import sdunits
from fsworker.protocol import layout
from tests.rigs import systemd
from tests.rigs.systemd import UserManager
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

REPO = Path(__file__).parents[2]
ODD = "my runs/50% of $HOME ${X} 'q' \"d\" \\ \\x20"
WATCHDOG = 4


@pytest.fixture
def manager() -> Iterator[UserManager]:
    why = systemd.missing()
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(why)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "XDG_"))}
    # Read by `ctl systemd install`, which hands them to the units.
    with UserManager({**clean, "PYTHONPATH": str(REPO)}) as made:
        yield made


def test_a_watcher_is_ready_when_it_says_so_and_started_anew_when_it_falls_silent(manager):
    root = manager.folder / ODD
    root.parent.mkdir()

    def ctl(*argv: str) -> str:
        return manager.run(sys.executable, "-m", "ctl", *argv, "--root", str(root)).stdout

    def worker() -> int:
        return int((root / "ctl" / "n1.pid").read_text())

    ctl("start", "--launcher", "local", "--hosts", "n1", "--fn", "json:dumps")
    ctl("systemd", "install", "watch")
    unit = sdunits.instance("watch", str(root))
    settings = manager.home / ".config" / "systemd" / "user" / f"{sdunits.template('watch')}.d"
    settings.mkdir()
    (settings / "test.conf").write_text(
        f"[Service]\nWatchdogSec={WATCHDOG}\nRestartSec=3\n"
        f'Environment=PYTHONPATH="{REPO}" FLEET_INTERVAL=1\n'
    )
    manager.run("systemctl", "--user", "daemon-reload")
    manager.run("systemctl", "--user", "start", unit)
    # `start` returns once the unit is ready, which is once the watcher holds the run's lock.
    first, alive = manager.show(unit), worker()
    assert (first["ActiveState"], first["SubState"]) == ("active", "running"), manager.said()
    assert (root / "ctl" / "watch.pid").read_text().strip() == first["MainPID"]
    time.sleep(2 * WATCHDOG)  # in which the watchdog would bite one that says nothing
    assert manager.show(unit) == first, manager.said()

    manager.run("kill", f"-{int(signal.SIGSTOP)}", first["MainPID"])
    wait_until(lambda: manager.show(unit)["Result"] == "watchdog", 60, "the watchdog bites")
    second = wait_until(
        lambda: (now := manager.show(unit))["SubState"] == "running" and now, 60, "it runs again"
    )
    assert (second["MainPID"] != first["MainPID"], second["NRestarts"]) == (True, "1")
    status = json.loads(ctl("status", "--json"))
    assert [h["state"] for h in status["hosts"]] == ["ready"] and worker() == alive

    manager.run("systemctl", "--user", "stop", unit)
    last = manager.show(unit)
    assert (last["ActiveState"], last["Result"]) == ("inactive", "success"), manager.said()
    assert not (root / "ctl" / "watch.pid").exists()
    manager.run("kill", "-0", str(worker()))  # stopping the watcher stops nobody else
    ctl("stop")


def test_a_worker_joins_as_a_unit_is_started_anew_and_stays_away_once_stopped(manager):
    root = manager.folder / ODD
    root.parent.mkdir()

    def ctl(*argv: str, check: bool = True) -> str:
        whole = [sys.executable, "-m", "ctl", *argv, "--root", str(root)]
        return manager.run(*whole, check=check).stdout

    def state() -> str:
        hosts = json.loads(ctl("status", "--json", check=False))["hosts"]
        return next((h["state"] for h in hosts if h["host"] == os.uname().nodename), "none")

    admitted = ["--attach", os.uname().nodename]
    ctl("start", "--launcher", "local", "--hosts", "n1", "--fn", "json:dumps", *admitted)
    ctl("systemd", "install", "worker")
    unit = sdunits.instance("worker", str(root))
    settings = manager.home / ".config" / "systemd" / "user" / f"{sdunits.template('worker')}.d"
    settings.mkdir()
    (settings / "test.conf").write_text(
        f'[Service]\nRestartSec=1\nEnvironment=PYTHONPATH="{REPO}"\n'
    )
    manager.run("systemctl", "--user", "daemon-reload")
    manager.run("systemctl", "--user", "start", unit)
    wait_until(lambda: state() == "ready", 60, "the worker joins")

    def life() -> str:
        beat = root / layout.status_path(os.uname().nodename)
        return str(json.loads(beat.read_text())["incarnation"])

    first, before = manager.show(unit)["MainPID"], life()
    manager.run("kill", "-KILL", first)
    wait_until(
        lambda: (now := manager.show(unit))["SubState"] == "running" and now["MainPID"] != first,
        60,
        "it is started anew",
    )
    # The last life's beat is fresh for a while, and the new one's silence is not its end.
    wait_until(lambda: life() != before and state() == "ready", 60, "the worker joins again")

    ctl("stop")
    wait_until(lambda: manager.show(unit)["SubState"] == "dead", 60, "the unit is over")
    last = manager.show(unit)
    assert (last["ActiveState"], last["Result"]) == ("inactive", "success"), manager.said()
