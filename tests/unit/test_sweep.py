"""What a sweep costs: login nodes end processes by the CPU minutes that they used."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from ctl import memory
from ctl.health import Limits
from ctl.journal import Journal
from ctl.rootio import RootIO
from ctl.watch import Options, Watcher
from tests.support.synthetic import Synthetic, cpu_ms

pytestmark = pytest.mark.unit

BUDGET_MS = 20.0


def test_a_sweep_of_a_hundred_healthy_hosts_is_cheap_and_leaves_nothing(tmp_path):
    run = Synthetic(tmp_path / "run", [f"node{i:03d}" for i in range(100)])
    io = RootIO(str(tmp_path / "run"))
    watcher = Watcher(io, Options(Limits(), late=60.0), lambda m: frozenset(run.hosts), Journal())
    try:
        watcher._enter()
        costs, fds = [], []
        for _ in range(12):
            run.beat()
            before = cpu_ms(os.getpid()) + cpu_ms(io.pid)
            decision = watcher._turn()
            costs.append(cpu_ms(os.getpid()) + cpu_ms(io.pid) - before)
            fds.append(len(os.listdir("/proc/self/fd")))
            assert decision is not None and len(decision.verdicts) == 100
            assert all(v.healthy for v in decision.verdicts) and not decision.actions
        assert sorted(costs)[len(costs) // 4] <= BUDGET_MS, costs
        assert fds[1:] == fds[1:2] * 11
    finally:
        watcher.close()


@pytest.mark.timeout(600)
def test_hosts_that_accept_and_never_answer_cost_others_nothing_and_nothing_grows(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(memory, "PROBE_FIRST", 0.05)
    monkeypatch.setattr(memory, "PROBE_CAP", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as deaf:
        config = tmp_path / "ssh_config"
        port = deaf.getsockname()[1]
        config.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {port}\n  IdentityAgent none\n")
        bad = ["bad1", "bad2", "bad3"]
        options = {"ssh_config": str(config), "connect_timeout": 0.3, "retry_timeout": 0.1}
        run = Synthetic(
            tmp_path / "run",
            [*bad, "good1", "good2", "good3", "good4"],
            launcher="ssh",
            launcher_options=options,
        )
        io = RootIO(str(tmp_path / "run"))
        limits = Limits(stale=0.5, fence=1e9, cooldown=0.0)
        watcher = Watcher(
            io, Options(limits, interval=1.0, late=60.0), lambda m: frozenset(run.hosts)
        )
        took, threads, fds, states = [], [], [], set()
        try:
            watcher._enter()
            for i in range(100):
                run.beat(*bad)
                begun = time.monotonic()
                decision = watcher._turn()
                took.append(time.monotonic() - begun)
                assert decision
                states |= {(v.host, str(v.state)) for v in decision.verdicts}
                assert all(v.healthy for v in decision.verdicts if v.host not in bad)
                if i >= 30:
                    threads.append(threading.active_count())
                    fds.append(len(os.listdir("/proc/self/fd")))
                time.sleep(0.05)
        finally:
            watcher.close()
        assert {(host, "unreachable") for host in bad} <= states
        assert "state=unreachable: banner" in capsys.readouterr().err
        assert sorted(took)[50] < 0.25, "no sweep waits for a host"
        # Connections come and go within a sweep: what leaks moves the middle, not the top alone.
        for counted in (threads, fds):
            assert sorted(counted[35:])[17] <= max(counted[:35])
