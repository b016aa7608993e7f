"""What the rig of virtual machines promises whoever uses it at the wrong moment."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.vm import Machine
from tests.support.waiting import start_ticks

pytestmark = pytest.mark.unit


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One that runs: this process stands for it."""
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    Path("m").mkdir()
    pid = os.getpid()
    yield Machine("m", ".", "", "", 0, pid=pid, ticks=start_ticks(pid))


def monitor(tried: threading.Event, heard: list[str]) -> None:
    """What qemu does once somebody has asked in vain."""
    tried.wait(60)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("m/monitor")
        listener.listen()
        listener.settimeout(60)
        with listener.accept()[0] as sock, sock.makefile("rw") as stream:
            stream.write('{"QMP": {}}\n')
            for _ in range(2):
                stream.flush()
                heard.append(json.loads(stream.readline())["execute"])
                stream.write('{"return": {}}\n')


def test_a_machine_takes_orders_in_the_moment_after_it_was_switched_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, heard = threading.Event(), list[str]()
    monkeypatch.setattr("tests.rigs.vm.time.sleep", lambda _: tried.set())
    thread = threading.Thread(target=monitor, args=(tried, heard))
    thread.start()
    try:
        machine.thaw()
    finally:
        tried.set()
        thread.join(60)
    assert heard == ["qmp_capabilities", "cont"]


def test_one_that_ended_is_not_waited_for(machine: Machine) -> None:
    machine.ticks = -1
    with pytest.raises(FileNotFoundError):
        machine.thaw()
