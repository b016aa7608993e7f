"""The peer's side as a table: which tasks it wants results of, and what a result is to it.

Pure, as `state` is for the agent. One task at a time is kept before the agent: a new one takes the
place of the one before, whose result is still welcome until the new one's has come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

REMEMBERED = 64
"""Ids of answered tasks that are known again when their results come twice."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A task whose result is wanted; `taken_by`: the life of the agent that acknowledged it."""

    task_id: str
    task_name: str
    taken_by: str = ""


@dataclass(frozen=True, slots=True)
class PeerState:
    """All that a peer knows of its tasks; `open` is in the order of sending, `used`: its user has
    said what it wants."""

    open: tuple[Sent, ...] = ()
    answered: tuple[str, ...] = ()
    used: bool = False
    over: str = ""


def send(state: PeerState, task_id: str, task_name: str) -> PeerState:
    """A task is to be sent, as the newest; one of the same id is sent anew."""
    rest = tuple(s for s in state.open if s.task_id != task_id)
    done = tuple(i for i in state.answered if i != task_id)
    return replace(state, open=(*rest, Sent(task_id, task_name)), answered=done, used=True)


def drop(state: PeerState, task_id: str) -> PeerState:
    """The result of a task is not wanted any more: aborted here, or refused by the agent."""
    return replace(state, open=tuple(s for s in state.open if s.task_id != task_id), used=True)


def taken(state: PeerState, task_id: str, life: str) -> PeerState:
    """A life of the agent acknowledged a task."""
    return replace(
        state,
        open=tuple(replace(s, taken_by=life) if s.task_id == task_id else s for s in state.open),
    )


def close(state: PeerState, why: str) -> PeerState:
    """No more results. The first reason stays."""
    return state if state.over else replace(state, over=why)


def ready(state: PeerState) -> bool:
    """Whether results may be looked at. A peer that was started anew leaves them where they lie
    until its user has said what it wants: else a result that is wanted would be refused."""
    return state.used


def result(state: PeerState, task_id: str, life: str) -> tuple[PeerState, bool, Sent | None]:
    """A result came from a life of the agent: (then, whether it is taken, the task it answers).

    Without a task id it is that of an agent that was started anew and went on by itself: it answers
    the newest task if an earlier life had taken that, and is else of no use to anybody.
    """
    if not task_id:
        newest = state.open[-1] if state.open else None
        if newest is None or newest.taken_by in ("", life):
            return state, True, None
        task_id = newest.task_id
    for at, sent in enumerate(state.open):
        if sent.task_id == task_id:
            done = (*state.answered, task_id)[-REMEMBERED:]
            return replace(state, open=state.open[at + 1 :], answered=done), True, sent
    return state, task_id in state.answered, None


def forgotten(state: PeerState, life: str, asks: bool) -> Sent | None:
    """The newest task, if it has to be sent again: an earlier life of the agent had taken it, and
    this one asks for a task instead of going on by itself."""
    newest = state.open[-1] if state.open else None
    if newest is None or not asks or newest.taken_by in ("", life):
        return None
    return newest
