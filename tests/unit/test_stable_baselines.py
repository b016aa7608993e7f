"""Files of stable-baselines3 itself: merged, loaded by it, trained on, in files and in a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedavg import strategies
from fedavg.checkpoint import open_checkpoint
from fedavg.merging import Contribution, merge
from fsworker.protocol.fsops import Store
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from tests.support.rounds import keep, make_group, upload

pytestmark = pytest.mark.unit

REPLAY = {"learning_starts": 8, "buffer_size": 100, "batch_size": 8}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", {"n_steps": 16, "batch_size": 8, "n_epochs": 1}),
    "DQN": ("CartPole-v1", REPLAY),
    "SAC": ("Pendulum-v1", {**REPLAY, "policy_kwargs": {"net_arch": [16]}}),
}


def algorithm(name: str) -> Any:
    import stable_baselines3  # it takes seconds, which only these tests need

    return getattr(stable_baselines3, name)


def trained(name: str, seed: int) -> Any:
    environment, options = ALGORITHMS[name]
    model = algorithm(name)("MlpPolicy", environment, seed=seed, device="cpu", **options)
    return model.learn(16 * seed)


def restored(name: str, path: str | Path) -> Any:
    import gymnasium

    return algorithm(name).load(path, env=gymnasium.make(ALGORITHMS[name][0]), device="cpu")


def assert_mean(merged: Any, models: list[Any]) -> None:
    """Its tensors are the means of theirs, to half a step of float32."""
    states = [model.policy.state_dict() for model in models]
    for key, value in merged.policy.state_dict().items():
        expected = torch.stack([state[key].double() for state in states]).mean(0)
        torch.testing.assert_close(value, expected.float(), rtol=2**-24, atol=0.0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_loads_what_is_merged_and_learns_on(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    models = [trained(name, seed) for seed in (1, 2)]
    inputs = []
    for number, model in enumerate(models):
        model.save(tmp_path / f"{number}.zip")
        opened = open_checkpoint(tmp_path / f"{number}.zip")
        inputs.append(Contribution(str(number), opened))
    merge(strategies.rule("fedavg"), inputs, str(tmp_path / "merged.zip"))
    assert "left out" not in caplog.text

    merged = restored(name, tmp_path / "merged.zip")
    assert_mean(merged, models)
    assert merged.gamma == models[0].gamma
    merged.learn(16)


def test_a_group_trains_one_model(store: Store) -> None:
    make_group(store, "ab")
    for episode in (1, 2):
        models = []
        for seed, job in enumerate("ab", 1):
            if episode == 1:
                model = trained("DQN", seed)
            else:
                model = restored("DQN", published(store, episode - 1)).learn(16 * seed)
            upload(store, "g", job, episode, model.save, name="checkpoint.zip")
            models.append(model)
        keep(store)
        assert not GroupEye(store, "g").refusals(episode)
        assert_mean(restored("DQN", published(store, episode)), models)


def test_who_trusts_nobody_reads_the_tensors_alone(store: Store) -> None:
    """As docs/checkpoints.md says."""
    from stable_baselines3.common.save_util import load_from_zip_file

    make_group(store, "ab")
    models = [trained("DQN", seed) for seed in (1, 2)]
    for job, model in zip("ab", models, strict=True):
        upload(store, "g", job, 1, model.save, name="checkpoint.zip")
    keep(store)
    data, parameters, _ = load_from_zip_file(published(store, 1), load_data=False, device="cpu")
    assert data is None
    fresh = trained("DQN", 3)
    fresh.set_parameters(parameters, device="cpu")
    assert_mean(fresh, models)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(mode=0o700)
    return Store(tmp_path / "root")


def published(store: Store, episode: int) -> str:
    """The global model that was merged of an episode."""
    return store.path(f"{groups.global_dir('g', episode + 1)}/global_weights.zip")
