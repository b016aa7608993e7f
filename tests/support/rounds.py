"""Groups with real torch files, for tests of the aggregator: uploads of every kind, and digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

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
