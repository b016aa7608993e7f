"""An agent inside a training process, and its peer: tasks in, results out, over the run root.

A training loop that stays alive asks its `Agent` for tasks; whoever steers it holds the `Peer` of
the same id. Either may be killed, frozen or started anew at any time. See docs/agent.md.
"""

from __future__ import annotations

from fsworker.agent.agent import Agent
from fsworker.agent.peer import Peer
from fsworker.agent.task import (
    AgentClosed,
    Answer,
    CallStateError,
    Status,
    Task,
    TaskResult,
)

__all__ = [
    "Agent",
    "AgentClosed",
    "Answer",
    "CallStateError",
    "Peer",
    "Status",
    "Task",
    "TaskResult",
]
