"""The agent: what a training loop calls for tasks and gives results to."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from fsworker.agent import messages, place, state
from fsworker.agent.link import Limits
from fsworker.agent.parcels import Parcel
from fsworker.agent.party import Terms
from fsworker.agent.side import Side
from fsworker.agent.state import AgentState
from fsworker.agent.task import Task, TaskResult
from fsworker.protocol.layout import agents
from fsworker.protocol.layout.agents import Letter, Life
from fsworker.protocol.segment import Segment

log = logging.getLogger(__name__)


class Agent(Side):
    """Gets tasks from a `Peer` and submits their results, over the run root alone.

        with Agent.from_env() as agent:
            while True:
                task = agent.get_task()
                agent.submit_result(TaskResult(meta={}, data=train(task.data)))

    Times in seconds. Without a sign of the peer for `connection_timeout` it is disconnected, which
    is logged once; for `heartbeat_timeout`, dead, and the agent is done (None: never). A result is
    sent again `resend_interval` after it vanished unanswered, and written anew when a peer that is
    alive has not taken it for `submit_result_timeout`. UsageError for what cannot be.
    """

    def __init__(
        self,
        agent_id: str,
        submit_result_timeout: float = 30,
        connection_timeout: float = 60,
        heartbeat_timeout: float | None = None,
        resend_interval: float = 2,
        *,
        root: str | PathLike[str] | None = None,
    ) -> None:
        place.seconds("submit_result_timeout", submit_result_timeout)
        limits = Limits(connection_timeout, heartbeat_timeout)
        terms = Terms(limits, resend_interval, submit_result_timeout)
        super().__init__(agents.AGENT, agent_id, place.root_of(root, os.environ), terms)
        self._state = AgentState()
        self._asked = False
        self._parcel: Parcel | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **options: Any) -> Agent:
        """The agent of a process that the fleet started; `options` as of the class."""
        env = os.environ if environ is None else environ
        options.setdefault("root", place.root_of(None, env))
        return cls(place.id_of(env), **options)

    @property
    def over(self) -> str:
        """Why there are no more tasks; empty while there may be some."""
        return self._state.over

    def stop(self) -> None:
        """End for good. A thread in get_task gets AgentClosed, one in submit_result False."""
        self._end(0.0)

    def get_task(self, timeout: float | None = None) -> Task | None:
        """The next task, waiting for it; None after `timeout` seconds.

        Waits too while the current task is aborted and its result not submitted. Raises TypeError
        or ValueError for a timeout that is no number above 0, AgentClosed when there will be none,
        CallStateError before `start` and when the current task was fetched already.
        """
        place.checked_timeout(timeout)
        self._check_begun("get_task")
        with self._changed:
            if not self._asked and self._state.current is None:
                self._asked = True
                self._line.wake()
        return self._wait(self._fetch, timeout)

    def submit_result(self, result: TaskResult) -> bool:
        """Send the result of the current task until the peer has it; whether it took it.

        False when the task was aborted, the peer rejected the result for good, the agent is closed,
        or there is no current task (which the first call of a life may lack). Whatever it returns,
        the task is out of the application's hands. Raises CallStateError before `start`, before
        `get_task`, and while a result is being submitted; TypeError and UsageError for what is no
        TaskResult or cannot be sent. After an exception nothing has changed.
        """
        if not isinstance(result, TaskResult):
            raise TypeError(f"result must be a TaskResult, not {type(result).__name__}")
        self._check_begun("submit_result")
        task = self._state.current.task if self._state.current else None
        data = messages.result_bytes(task, result)
        with self._changed:
            then, sending = state.admit(self._state)
            self._become(then)
            if not sending:
                return False
            self._parcel = parcel = Parcel(agents.RESULT, task.task_id if task else "", data)
        try:
            self._line.send(parcel)
            return bool(self._wait(lambda: state.verdict(self._state), None))
        finally:
            with self._changed:
                self._parcel = None
                self._become(state.conclude(self._state))
            self._line.outgoing.forget(parcel)

    def _leave(self) -> None:
        self.stop()

    # -- the line

    def wants(self, kind: str) -> bool:
        """Whether messages of this kind may be read now."""
        return True

    def heard(self, letter: Letter, message: Segment) -> Callable[[], None] | None:
        """A task or an abort came."""
        if letter.kind == agents.TASK:
            task = messages.as_task(message)
            return lambda: self._receive(task)
        if letter.kind != agents.ABORT:
            raise messages.Invalid(f"an agent takes no {letter.kind}")
        self._abort(messages.as_abort(message))
        return None

    def posted(self, parcel: Parcel) -> None:
        """A result lies before the peer."""
        with self._changed:
            if parcel is self._parcel:
                self._become(state.sent(self._state))

    def answered(self, parcel: Parcel, life: Life, taken: bool, why: str) -> None:
        """The peer took the result, or refused it for good."""
        if not taken:
            log.error("%s: the result of task %r is rejected: %s", self._name, parcel.about, why)
        with self._changed:
            if parcel is self._parcel:
                self._become(state.answered(self._state, taken))

    def mood(self) -> str:
        """How this life is."""
        return agents.ASKS if self._asked else agents.NEW

    def _fetch(self) -> Task | None:
        then, task = state.fetch(self._state)
        self._become(then)
        return task

    def _become(self, then: AgentState) -> None:
        """Take on a state, and show it on the task that the application holds."""
        before, self._state = self._state, then
        for work in (before.current, then.current):
            if work is not None:
                work.task.status, work.task.aborted = work.status, work.aborted
        self._changed.notify_all()

    def _receive(self, task: Task) -> None:
        with self._changed:
            work = self._state.current
            if work is not None and work.task.task_id != task.task_id:
                log.warning("%s: %s came while there is %s", self._name, task, work.task)
            else:
                log.info("%s: %s came", self._name, task)
            self._become(state.receive(self._state, task))

    def _abort(self, task_id: str) -> None:
        log.warning("%s: task %r is to be aborted", self._name, task_id)
        with self._changed:
            self._become(state.abort(self._state, task_id))

    def _close(self, why: str) -> None:
        if not self._state.over:
            log.info("%s: closed: %s", self._name, why)
        self._become(state.close(self._state, why))

    def _said_goodbye(self) -> None:
        self._close("the other side said goodbye")
        self._line.end(0.0)
