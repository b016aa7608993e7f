"""A training process that stays alive over all episodes of an attempt: its agent's peer is here.

Each episode is a task with the weights that it starts from, and its result says where the
checkpoint is. To the rest of the runner an episode looks like a process that ended, so everything
else (what counts, what is published, what happens when it is killed) is the same.
"""

from __future__ import annotations

import os
import time
from typing import NoReturn

from fsworker.agent import AgentClosed, Answer, Peer
from fsworker.errors import FleetError
from fsworker.jobs import process
from fsworker.jobs.attempt import AttemptFolder, words
from fsworker.jobs.process import Ended, Started, Why
from fsworker.jobs.templates import Turn

LOOK = 0.05
GOODBYE = 5.0
"""Seconds for a process to end after a goodbye, and for the word that it was told to."""


class EpisodeFailed(FleetError):
    """The training loop answered that an episode went wrong."""


class Loop:
    """The one process of an attempt, started anew when it was killed."""

    def __init__(self, at: AttemptFolder) -> None:
        self._at = at
        self._started: Started | None = None
        self._peer: Peer | None = None
        self._starts = 0
        self._at_episode = 0

    def train(self, turn: Turn, argv: list[str], env: dict[str, str]) -> Ended:
        """Have one episode trained. Raises OSError when the process cannot be started."""
        if self._started is None:
            self._start(argv, env)
        assert self._peer is not None and self._started is not None
        self._at_episode = turn.episode
        meta = {"episode": turn.episode}
        data = {"weights": turn.weights, "checkpoint": turn.checkpoint}
        self._at.metrics.begin()
        self._peer.send_task("train", f"ep{turn.episode}", meta, data)
        why, answer = self._wait(time.monotonic() + self._at.job.timeout_seconds)
        self._at.metrics.hear()
        self._at.metrics.flush()
        if answer is None:
            return self._end(why)
        if answer.rejected or answer.return_code != "OK":
            self._end("exit")
            told = answer.data.get("error") if isinstance(answer.data, dict) else None
            raise EpisodeFailed(f"the training loop answered {answer.return_code}: {told or '?'}")
        _bring(str(answer.data.get("checkpoint", "")), turn.checkpoint)
        return Ended("exit", 0)

    def close(self) -> None:
        """No more episodes: let the process end by itself, then end what is left."""
        if self._started is None or self._peer is None:
            return
        told = self._at.control.told
        if told in ("cancel", "gone"):
            self._end(told)  # between two episodes, as while it waits for a group
            return
        self._peer.bye(GOODBYE)
        end = time.monotonic() + GOODBYE
        while self._started.child.poll() is None and time.monotonic() < end:
            self._at.control.listen(LOOK)
        self._end("exit")

    def _start(self, argv: list[str], env: dict[str, str]) -> None:
        self._starts += 1
        # An id of its own for each start: what an earlier one computed must not be taken.
        name = f"{self._at.job.job_id}.{self._at.attempt.name}.{self._starts}"
        peer = Peer(name, root=self._at.store.root)
        self._at.say(f"a process for all episodes on {self._at.note.host}: {words(argv)}")
        command = self._at.command(argv, {**env, **peer.environment}, 0.0)
        self._started = process.start(command)
        peer.start()
        self._peer = peer

    def _wait(self, deadline: float) -> tuple[Why, Answer | None]:
        assert self._peer is not None and self._started is not None
        patience: float | None = None
        while True:
            try:
                answer = self._peer.get_result(timeout=LOOK)
            except AgentClosed:
                # It ends now, or was told to and we hear of it next; or another agent follows.
                patience = patience or time.monotonic() + max(GOODBYE, self._at.job.grace)
                answer = None
                self._at.control.listen(LOOK)
            if answer is not None:
                return "exit", answer
            self._at.control.listen(0.0)
            if self._at.control.told is not None:
                return self._at.control.told, None
            if self._started.child.poll() is not None:
                return self._ended_alone(), None
            if self._peer.connected:
                patience = None
            if patience is not None and time.monotonic() >= patience:
                self._left(self._peer.over or "said goodbye and went on")
            if time.monotonic() >= deadline:
                return "timeout", None

    def _ended_alone(self) -> Why:
        """The process ended before it answered; by itself, unless we hear that it was told to."""
        assert self._started is not None
        end = time.monotonic() + GOODBYE
        while self._started.child.returncode == 0 and time.monotonic() < end:
            self._at.control.listen(LOOK)
            if self._at.control.told is not None:
                return self._at.control.told
        if self._started.child.returncode == 0:
            self._left("ended with exit code 0")
        return "exit"

    def _left(self, how: str) -> NoReturn:
        """Nobody killed it, so that to start it again would only repeat this."""
        self._end("exit")
        raise EpisodeFailed(
            f"the training loop {how} before it answered episode {self._at_episode}"
        )

    def _end(self, why: Why) -> Ended:
        """End the process, and say how it did."""
        started, peer = self._started, self._peer
        assert started is not None and peer is not None
        self._started = self._peer = None
        ended = process.end_started(started, why, self._at.place, self._at.control)
        self._at.left.update(ended.left)
        peer.bye(agent_ended=True)
        return ended


def _bring(path: str, wanted: str) -> None:
    """Have the checkpoint that a loop saved where the runner looks for it."""
    if not path or os.path.dirname(path) == os.path.dirname(wanted):
        return
    target = os.path.join(os.path.dirname(wanted), "checkpoint" + os.path.splitext(path)[1])
    try:
        with open(path, "rb") as source, open(target, "wb") as file:
            while data := source.read(1 << 20):
                file.write(data)
    except OSError as error:
        raise EpisodeFailed(f"the checkpoint {path} cannot be read: {error.strerror}") from None
