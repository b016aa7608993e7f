"""The other side of an agent: sends tasks to a training loop, and gets results as they come."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from os import PathLike
from typing import Any

from fsworker.agent import asking, messages, place
from fsworker.agent.asking import PeerState
from fsworker.agent.link import Limits, Link, News
from fsworker.agent.parcels import Parcel
from fsworker.agent.party import Terms
from fsworker.agent.side import Side
from fsworker.agent.task import REJECTED, AgentClosed, Answer
from fsworker.protocol.layout import agents
from fsworker.protocol.layout.agents import Letter, Life
from fsworker.protocol.segment import Segment

log = logging.getLogger(__name__)


class Peer(Side):
    """Sends tasks to the agent `agent_id` of a run, wherever and whenever that is started.

        with Peer("job_1", root=root) as peer:
            peer.send_task("train", "ep1", {"episode": 1}, {"weights": path})
            answer = peer.get_result()

    It keeps one task before the agent: sent again when it vanished unanswered for
    `resend_interval`, and when the agent was started anew and asks for a task. Times in seconds, as
    of the Agent; `heartbeat_timeout` counts from the start. UsageError for what cannot be.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        root: str | PathLike[str] | None = None,
        connection_timeout: float = 60,
        heartbeat_timeout: float | None = None,
        resend_interval: float = 2,
        send_task_timeout: float = 30,
    ) -> None:
        place.seconds("send_task_timeout", send_task_timeout)
        limits = Limits(connection_timeout, heartbeat_timeout)
        terms = Terms(limits, resend_interval, send_task_timeout)
        super().__init__(agents.PEER, agent_id, place.root_of(root, os.environ), terms)
        self._state = PeerState()
        self._answers: deque[Answer] = deque()
        self._task: tuple[str, bytes] = ("", b"")
        self._goodbye = False

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment for `Agent.from_env` to find this peer."""
        return {place.ROOT: self.root, place.AGENT: self.agent_id}

    @property
    def outstanding(self) -> tuple[str, ...]:
        """The ids of tasks whose results are wanted and have not come, oldest first."""
        return tuple(s.task_id for s in self._state.open)

    @property
    def over(self) -> str:
        """Why no more results come; empty while some may."""
        return self._state.over

    def send_task(self, task_name: str, task_id: str, meta: dict[Any, Any], data: Any) -> None:
        """Put a task before the agent, in the place of the one before.

        Returns at once; the agent may come later. One that works on an earlier task is told that it
        is aborted. Whether meta and data are valid is the agent's to say: see `Answer.rejected`.
        Raises UsageError for what cannot be sent, AgentClosed, and CallStateError before `start`.
        """
        self._check_begun("send_task")
        body = messages.task_bytes(task_name, task_id, meta, data)
        with self._changed:
            self._check_open()
            self._state = asking.send(self._state, task_id, task_name)
            self._task = (task_id, body)
            self._line.outgoing.cancel(agents.TASK)
            self._line.outgoing.cancel(agents.ABORT, task_id)
            self._line.send(Parcel(agents.TASK, task_id, body))

    def abort(self, task_id: str) -> None:
        """The result of a task is not wanted any more; none will be handed out.

        Raises AgentClosed, and CallStateError before `start`.
        """
        self._check_begun("abort")
        body = messages.abort_bytes(task_id)
        with self._changed:
            self._check_open()
            self._state = asking.drop(self._state, task_id)
            self._line.outgoing.cancel(agents.TASK, task_id)
            self._line.send(Parcel(agents.ABORT, task_id, body))

    def get_result(self, timeout: float | None = None) -> Answer | None:
        """The next answer, waiting for it; None after `timeout` seconds.

        Raises AgentClosed when none will come, and once when the agent said goodbye while a task is
        outstanding: called again, it waits for one that is started anew. TypeError, ValueError and
        CallStateError as `Agent.get_task`.
        """
        place.checked_timeout(timeout)
        self._check_begun("get_result")
        return self._wait(self._next, timeout)

    def results(self) -> Iterator[Answer]:
        """Answers as they come, until no task is outstanding. Raises AgentClosed."""
        while self._answers or self._state.open:
            answer = self.get_result()
            if answer is not None:
                yield answer

    def bye(self, wait: float = 5.0, *, agent_ended: bool = False) -> None:
        """Tell the agent that there are no more tasks, and end for good.

        Waits up to `wait` seconds for an agent that is alive to notice; one that is frozen finds
        the goodbye when it goes on. `agent_ended`: its process is known to be no more, so that
        nothing has to be left for it; this may be said after a goodbye, too.
        """
        if agent_ended and self._stopped:
            self._line.tidy()
        else:
            self._end(wait, alone=agent_ended)

    def stop(self) -> None:
        """End without a goodbye: a later Peer of the same agent goes on."""
        self._end(0.0, silent=True)

    def _leave(self) -> None:
        self.bye()

    # -- the line

    def looked(self, link: Link, news: News) -> None:
        """There was a look at the agent; one that asks may need its task again."""
        super().looked(link, news)
        if link.beat is None or not link.connected:
            return
        with self._changed:
            asks = link.beat.mood == agents.ASKS
            lost = asking.forgotten(self._state, link.beat.life.name, asks)
            task_id, body = self._task
            waits = lost is not None and lost.task_id == task_id
            if waits and not self._line.outgoing.waiting(agents.TASK, task_id):
                log.info("%s: task %r is sent to the new agent", self._name, task_id)
                self._line.send(Parcel(agents.TASK, task_id, body))

    def wants(self, kind: str) -> bool:
        """Whether messages of this kind may be read now."""
        return asking.ready(self._state)

    def heard(self, letter: Letter, message: Segment) -> None:
        """A result came. It is handed over before it is acknowledged, or a crash could lose it."""
        if letter.kind != agents.RESULT:
            raise messages.Invalid(f"a peer takes no {letter.kind}")
        answer = messages.as_answer(message)
        with self._changed:
            then, taken, sent = asking.result(self._state, answer.task_id, letter.life.name)
            self._state = then
            if sent is not None:
                answer.task_id, answer.task_name = sent.task_id, sent.task_name
                self._line.outgoing.cancel(agents.TASK, sent.task_id)
                self._deliver(answer)
        if not taken:
            raise messages.Invalid(f"nobody waits for a result of task {answer.task_id!r}")

    def posted(self, parcel: Parcel) -> None:
        """A message lies before the agent."""

    def answered(self, parcel: Parcel, life: Life, taken: bool, why: str) -> None:
        """The agent took a task, or refused it for good."""
        if parcel.kind != agents.TASK:
            return
        with self._changed:
            if taken:
                self._state = asking.taken(self._state, parcel.about, life.name)
                return
            names = {s.task_id: s.task_name for s in self._state.open}
            self._state = asking.drop(self._state, parcel.about)
            if parcel.about in names:
                name = names[parcel.about]
                why = why or "no reason was given"
                self._deliver(Answer(name, parcel.about, return_code=REJECTED, why=why))

    def mood(self) -> str:
        """How this life is."""
        return agents.ASKS

    def _deliver(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._changed.notify_all()

    def _next(self) -> Answer | None:
        if self._answers:
            return self._answers.popleft()
        self._check_open()
        if self._goodbye and self._state.open:
            self._goodbye = False
            raise AgentClosed(f"agent {self.agent_id} said goodbye")
        return None

    def _check_open(self) -> None:
        if self._state.over:
            raise AgentClosed(f"{self._name} is closed: {self._state.over}")

    def _close(self, why: str) -> None:
        self._state = asking.close(self._state, why)
        self._changed.notify_all()

    def _said_goodbye(self) -> None:
        log.info("%s: the agent said goodbye", self._name)
        self._goodbye = True
        self._changed.notify_all()
