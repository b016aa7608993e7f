"""The same training in one process that stays alive: each episode comes as a task of an agent.

    python agent_loop.py --agent dqn --steps 288

It takes the options of `train.py`, and learns from the environment (FLEET_RUN_ROOT, FLEET_AGENT or
FLEET_JOB) whose tasks it does. A task's meta says `episode`, its data `weights` (a path; none for
the first) and, if it matters, `checkpoint`, where to save. Each is trained as `train.py --load W
--transfer` would: the weights are those of a process an episode, to the bit.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import checkpoints
from checkpoints import Unusable
from fsworker.agent import Agent, AgentClosed, Task, TaskResult
from train import Plan, options, plan_of, train


def work(plan: Plan, task: Task) -> TaskResult:
    """Train the episode that a task asks for."""
    episode = int(task.meta["episode"])
    name = f"{plan.save.stem}_ep{episode:04d}{plan.save.suffix}"
    save = Path(task.data.get("checkpoint") or plan.save.with_name(name))
    weights = task.data.get("weights")
    mine = replace(
        plan,
        episodes=1,
        first=episode,
        load=weights,
        transfer=weights is not None,
        save=checkpoints.path_for(plan.agent, save).absolute(),
        stop=lambda: task.aborted,
    )
    rewards = train(mine)
    told = {"episode": episode, "reward": rewards[-1], "samples": plan.steps}
    return TaskResult(told, {"checkpoint": str(mine.save)})


def answer(plan: Plan, task: Task) -> TaskResult:
    """What becomes of a task, whatever happens: the other side must not wait in vain."""
    try:
        return work(plan, task)
    except (Unusable, OSError, ValueError, KeyError) as error:
        return TaskResult(dict(task.meta), {"error": str(error)}, return_code="ERROR")
    except Exception as error:
        if task.aborted:
            return TaskResult(return_code="ABORTED")
        kind = type(error).__name__
        return TaskResult(dict(task.meta), {"error": f"{kind}: {error}"}, return_code="ERROR")


def main() -> int:
    plan = plan_of(options(os.environ).parse_args(), os.environ)
    with Agent.from_env() as agent:
        try:
            while True:
                task = agent.get_task()
                assert task is not None
                agent.submit_result(answer(plan, task))
        except AgentClosed as error:
            print(f"no more tasks: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
