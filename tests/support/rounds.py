"""Groups with real torch files, for tests of the aggregator: uploads of every kind, and digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedavg import publishing
from fedavg.aggregator import Aggregator
from fedavg.keeper import GroupKeeper, Step
from fsworker.protocol import artifacts, federation
from fsworker.protocol.artifacts import Done
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from fsworker.protocol.records.round import Group

INC = "0123456789ab"
Save = Callable[[str], None]


def weights(value: float, size: int = 4) -> dict[str, Any]:
    """A checkpoint as a hand-written DQN saves it."""
    net = {"0.weight": torch.full((size, 2), value), "0.bias": torch.arange(2.0) * value}
    return {
        "q_net_state_dict": net,
        "target_net_state_dict": {k: v + 1 for k, v in net.items()},
        "steps": 100,
    }


def saves(model: object) -> Save:
    """Write a model with torch."""
    return lambda path: torch.save(model, path)


class Shell:
    """Runs a command when it is unpickled by a loader that runs what it is told to."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def prepare(store: Store, target: str, job: str, episode: int, save: Save, **fields: Any) -> str:
    """An upload, ready to be published."""
    prepared = artifacts.prepare(store, target)
    save(store.path(f"{prepared}/{fields.pop('name', 'checkpoint.pt')}"))
    files = artifacts.digest_files(store, prepared)
    done = Done(job, 1, INC, episode, files, base_of(store, target.split("/")[2], episode))
    artifacts.write_done(store, prepared, replace(done, **fields))
    return prepared


def upload(
    store: Store, group: str, job: str, episode: int, save: Save | float, **fields: Any
) -> bool:
    """Upload as a participant does, with the base that is published; whether it was the first.

    `says` is the job that its record names, else the participant's own.
    """
    target = groups.upload_dir(group, episode, job)
    save = saves(weights(save)) if isinstance(save, (int, float)) else save
    prepared = prepare(store, target, fields.pop("says", job), episode, save, **fields)
    return artifacts.publish(store, prepared, target)


def base_of(store: Store, group: str, episode: int) -> str | None:
    """The digest of the model that an episode starts from."""
    model = federation.read_global(store, group, episode)
    return model.merge.digest if model is not None else None


def make_group(store: Store, jobs: str | list[str] = "", **fields: Any) -> Group:
    """A group whose members are `jobs`, as many as its size unless that is given."""
    size = fields.pop("size", len(jobs) or 2)
    group = federation.create_group(store, Group("g", size, **fields))
    for job in jobs:
        federation.join(store, "g", job)
    return group


def keep(store: Store) -> Step:
    """Step with a fresh keeper, as after a restart, until there is nothing to do."""
    keeper = GroupKeeper(store, "g")
    step = keeper.step()
    while step.merged:
        step = keeper.step()
    return step


def refusals(store: Store, episode: int) -> dict[str, str]:
    """The kinds of those that were refused after an episode, by job."""
    return {j: r.kind for j, r in GroupEye(store, "g").refusals(episode).items()}


def model(store: Store, episode: int, group: str = "g") -> dict[str, Any]:
    """The global model that an episode starts from, as torch loads it strictly."""
    path = store.path(f"{groups.global_dir(group, episode)}/global_weights.pt")
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def published(store: Store, group: str = "g") -> dict[str, str]:
    """SHA-256 of every visible file that an aggregator publishes, but for what holds times."""
    top, found = store.path(groups.group_dir(group)), {}
    for folder, folders, files in os.walk(top):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "from_worker"]
        for name in files:
            if not name.startswith(".") and name not in (groups.TIMES_FILE, "waiting.json"):
                with open(os.path.join(folder, name), "rb") as file:
                    digest = hashlib.sha256(file.read()).hexdigest()
                found[os.path.relpath(os.path.join(folder, name), top)] = digest
    return found


def swept(store: Store, **how: Any) -> Aggregator:
    """An aggregator after it did all that can be done now."""
    aggregator = Aggregator(store, threads=1, **how)
    while aggregator.sweep():
        pass
    return aggregator


def counted(store: Store, number: int) -> list[tuple[str, int]]:
    """Who is in the plan of a round, with the episodes of their uploads."""
    plan = GroupEye(store, "g").plan(number)
    assert plan is not None
    return [(c.job, c.episode) for c in plan.contributors]


def alter(store: Store, job: str, how: str, episode: int = 1) -> None:
    """Damage an upload that was made: its content is `changed`, or it is `cut` or `removed`."""
    path = Path(store.path(groups.upload_dir("g", episode, job))) / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[:200]
    else:
        data[len(data) // 2] ^= 1
    path.unlink() if how == "removed" else path.write_bytes(data)


def killed_between_plan_and_model(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of three that closed its first round; who closed it was killed right then."""
    make_group(store, "abc", quorum=2, deadline=3600.0)
    for job in "abc":
        upload(store, "g", job, 1, 1.0)

    def kill(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "publish_prepared", kill)
        with pytest.raises(KeyboardInterrupt):
            GroupKeeper(store, "g").step()
    assert counted(store, 1) == [("a", 1), ("b", 1), ("c", 1)]
