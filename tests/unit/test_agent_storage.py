"""An agent and its peer on storage that fails, lies about what it did, and shows old listings."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsworker.agent import Agent, AgentClosed, Peer, TaskResult
from fsworker.protocol.fsops import Store
from fsworker.protocol.layout import agents
from tests.support.roots import make_root

pytestmark = pytest.mark.unit

ROUNDS = 12


class LyingStore(Store):
    """Some calls fail; of those some were executed all the same, as a retransmitted request is."""

    def __init__(self, root: str, dice: random.Random) -> None:
        super().__init__(root)
        self._dice = dice
        self._old: dict[str, list[str]] = {}

    def _perhaps(self, call: Callable[[], Any], *, lie: bool) -> Any:
        if self._dice.random() > 0.08:
            return call()
        if lie and self._dice.random() < 0.5:
            call()
        code = self._dice.choice((errno.EIO, errno.ENOSPC, errno.ETIMEDOUT))
        raise OSError(code, os.strerror(code))

    def scan(self, folder: str) -> list[str]:
        names: list[str] = self._perhaps(lambda: super(LyingStore, self).scan(folder), lie=False)
        shown = self._old.get(folder, names) if self._dice.random() < 0.1 else names
        self._old[folder] = names
        return shown

    def read(self, rel: str, limit: int = 1 << 30) -> bytes:
        data: bytes = self._perhaps(lambda: super(LyingStore, self).read(rel, limit), lie=False)
        return data

    def rename(self, source: str, target: str) -> None:
        self._perhaps(lambda: super(LyingStore, self).rename(source, target), lie=True)

    def put(self, rel: str, data: bytes, *, durable: bool = True) -> None:
        put = super().put
        self._perhaps(lambda: put(rel, data, durable=durable), lie=True)

    def remove(self, rel: str) -> bool:
        done: bool = self._perhaps(lambda: super(LyingStore, self).remove(rel), lie=True)
        return done


def work(agent: Agent) -> None:
    try:
        while task := agent.get_task(60):
            value = {"x": task.data["x"] * 3 % 1009 + 1}
            agent.submit_result(TaskResult({"n": task.meta["n"]}, value))
    except AgentClosed:
        pass


@pytest.mark.parametrize("seed", range(2))
def test_each_round_is_answered_once_and_rightly(tmp_path: Path, seed: int) -> None:
    root, dice = make_root(tmp_path / "root"), random.Random(seed)
    agent = Agent("a", 0.5, resend_interval=0.05, root=root)
    peer = Peer("a", send_task_timeout=0.5, resend_interval=0.05, root=root)
    agent.start()
    peer.start()
    for side in (agent, peer):  # after their beginning, which fails as a whole
        side._line._mailbox._store = LyingStore(str(root), random.Random(dice.random()))
    thread = threading.Thread(target=work, args=(agent,))
    thread.start()
    x = 1
    for n in range(ROUNDS):
        peer.send_task("step", f"t{n}", {"n": n}, {"x": x})
        answer = peer.get_result(60)
        assert answer is not None and answer.task_id == f"t{n}" and answer.meta == {"n": n}
        assert answer.data == {"x": x * 3 % 1009 + 1}
        x = answer.data["x"]
    peer.bye()
    thread.join(30)
    assert not thread.is_alive() and agent.over == "the other side said goodbye"
    agent.stop()
    folder = root / agents.agent_dir("a")
    left = os.listdir(folder) if folder.exists() else []
    assert len(left) < 30, left
