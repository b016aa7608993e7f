"""Sweep after sweep with a third of the hosts broken: nothing is left behind, nobody is kept."""

from __future__ import annotations

import re

import pytest

from tests.rigs import hosts
from tests.rigs.hosts import HostRig
from tests.support.sweeps import sweeper

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

SAID = {
    "reached": "cannot be seen from there",
    "refused": "connect: .*refused",
    "hole": "connect: .*no answer",
    "deaf": "banner: .*before its SSH banner",
    "mute": "banner: .*while keys were exchanged",
    "rude": "banner: .*ended before its SSH banner",
    "unwanted": "auth: .*not accepted",
    "changed": "hostkey: .*is not the one in",
    "dying": "command: .*the connection ended",
}


def test_sixty_sweeps_leave_nothing_behind_and_use_connections_again(tmp_path):
    hosts.require()
    (tmp_path / "rig").mkdir()
    with HostRig(tmp_path / "rig") as rig, sweeper(tmp_path, rig) as made:
        made.sweep(60, pause=0.15)
        probes, words, seen = made.probes(), made.words(), made.figures
        print(probes, words)
        for host, count in probes.items():
            assert count >= 3, f"{host} was asked {count} times"
            assert re.search(SAID[host.rstrip("0123456789")], words[host]), (host, words[host])
        assert {made.logins(host) for host in made.reached} == {1}, "one connection each, kept"
        assert made.logins("dying") >= 3
        # Connections come and go within a sweep: what leaks moves the middle, sweep by sweep.
        assert seen.growth(seen.threads) <= 4 and seen.growth(seen.files) <= 4
        assert sorted(seen.took)[30] < 0.5, "no sweep waits for a host"
