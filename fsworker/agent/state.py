"""The agent's side as a table: from what it holds, and what happens, to what it holds then.

Pure: no thread, no file, no clock. `current` is the task that the application may fetch, works on
or submits the result of; `pending` is the one that waits until the current one is out of its hands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsworker.agent.task import AgentClosed, CallStateError, Status, Task


@dataclass(frozen=True, slots=True)
class Work:
    """The current task and how far it is.

    `sent`: its result lies before the other side. `received`: the other side has moved on since
    then, so it must have it.
    """

    task: Task
    status: Status = Status.NEW
    aborted: bool = False
    sent: bool = False
    received: bool = False


@dataclass(frozen=True, slots=True)
class AgentState:
    """All that an agent knows of its tasks.

    `submits` counts calls of submit_result; `lacking`: a result without a task is being sent;
    `answer`: what the other side said to the result being sent; `over`: why there is no more.
    """

    current: Work | None = None
    pending: Task | None = None
    submits: int = 0
    lacking: bool = False
    answer: bool | None = None
    over: str = ""


def receive(state: AgentState, task: Task) -> AgentState:
    """A valid task came. It is acknowledged in every case."""
    work = state.current
    if work is None:
        return replace(state, current=Work(task))
    if work.task.task_id == task.task_id and not work.aborted:
        return state
    if state.pending is not None:
        same = state.pending.task_id == task.task_id
        return state if same else replace(state, pending=task)
    if work.status is Status.NEW:
        return replace(state, current=Work(task))
    if work.sent and not work.aborted:
        return replace(state, current=replace(work, received=True), pending=task)
    return replace(state, current=replace(work, aborted=True), pending=task)


def abort(state: AgentState, task_id: str) -> AgentState:
    """The other side does not want the result of a task any more."""
    work = state.current
    if work is not None and work.task.task_id == task_id and not work.aborted:
        if work.status is Status.NEW:
            return replace(state, current=None)
        return replace(state, current=replace(work, aborted=True))
    if state.pending is not None and state.pending.task_id == task_id:
        return replace(state, pending=None)
    return state


def close(state: AgentState, why: str) -> AgentState:
    """No more tasks: stopped, goodbye, the other side is dead. The first reason stays."""
    return state if state.over else replace(state, over=why)


def fetch(state: AgentState) -> tuple[AgentState, Task | None]:
    """The application asks for a task; None: there is none yet.

    Raises AgentClosed, or CallStateError when it already has the current one.
    """
    if state.over:
        raise AgentClosed(state.over)
    work = state.current
    if work is None or work.aborted:
        return state, None
    if work.status is not Status.NEW:
        raise CallStateError(
            f"get_task was called while {work.task} is {work.status}: submit its result first"
        )
    return replace(state, current=replace(work, status=Status.FETCHED)), work.task


def admit(state: AgentState) -> tuple[AgentState, bool]:
    """The application submits a result; whether it is to be sent.

    Raises CallStateError, with nothing changed, for a second submit and for one before get_task.
    Only the first submit of a life may lack a task: that of a training that went on from its own
    checkpoint.
    """
    work = state.current
    if state.lacking or (work is not None and work.status is Status.PROCESSED):
        raise CallStateError("submit_result was called while a result is being submitted")
    if work is not None and work.status is Status.NEW and not state.over:
        raise CallStateError(f"submit_result was called before get_task for {work.task}")
    counted = replace(state, submits=state.submits + 1)
    if state.over or (work is not None and work.aborted):
        return conclude(counted), False
    if work is not None:
        return replace(counted, current=replace(work, status=Status.PROCESSED)), True
    if state.submits:
        return counted, False
    return replace(counted, lacking=True), True


def sent(state: AgentState) -> AgentState:
    """The result that is being submitted lies before the other side."""
    work = state.current
    if state.lacking or work is None or work.status is not Status.PROCESSED:
        return state
    return replace(state, current=replace(work, sent=True))


def answered(state: AgentState, taken: bool) -> AgentState:
    """The other side acknowledged the result that is being submitted, or rejected it for good."""
    return replace(state, answer=taken)


def verdict(state: AgentState) -> bool | None:
    """What submit_result returns by now; None: go on sending."""
    if state.answer is not None:
        return state.answer
    if state.over:
        return False
    if state.lacking or state.current is None:
        return None
    if state.current.received:
        return True
    return False if state.current.aborted else None


def conclude(state: AgentState) -> AgentState:
    """The submit is over, whatever came of it: the pending task becomes current."""
    if state.lacking:
        return replace(state, lacking=False, answer=None)
    work = None if state.pending is None else Work(state.pending)
    return replace(state, current=work, pending=None, answer=None)
