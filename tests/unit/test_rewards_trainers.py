"""Each adapter, called as its trainer calls.

These trainers bring torch, ray or vllm, too much to install for a test. Where one is installed its
own code is used (AReaL's wrapper); else small callers that were written after reading the releases
named at each, on which these adapters were also tried by hand. A caller does what is said there of
the reward alone: how it asks, calls, and uses what comes back.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fsworker import rewards
from fsworker.errors import UsageError
from tests.support import reward_functions
from tests.support.small_worker import SmallWorker, make_run

pytestmark = pytest.mark.unit

HERE = "tests.support.reward_functions"
NAMES = ("grade", "areal_style", "own_names", "everything", "record", "maybe", "rated")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{HERE}:{n}": getattr(reward_functions, n) for n in NAMES
}
GRADE = f"{HERE}:grade"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    root = make_run(tmp_path / "run", list(FUNCTIONS), shards=1)
    with SmallWorker(root, FUNCTIONS):
        yield root


# -- AReaL 1.0.4: areal/workflow/rlvr.py, areal/api/reward_api.py


async def _areal_workflow(async_reward_fn: Any, completion: str, **task_data: Any) -> Any:
    """A workflow awaits its wrapper: strings and token ids by position, the dataset's by name."""
    return await async_reward_fn("What is 2 + 2?", completion, [1, 2], [3], **task_data)


class _PoolWrapper:
    """AReaL's wrapper: the function is called in a process of a pool, its value pickled back."""

    def __init__(self, reward_fn: Callable[..., Any]) -> None:
        self.pool = ProcessPoolExecutor(1)
        self.reward_fn = reward_fn

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(self.reward_fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.pool, call)


def _areal_wrapper(reward_fn: Callable[..., Any]) -> Any:
    try:
        from areal.api.reward_api import AsyncRewardWrapper  # type: ignore[import-not-found]
    except ImportError:
        return _PoolWrapper(reward_fn)
    return AsyncRewardWrapper(reward_fn, max_workers=1)


def test_areal_awaits_it_in_place_of_its_wrapper(root: Path) -> None:
    with rewards.areal(f"{HERE}:areal_style", root) as reward:
        task = {"answer": 4, "messages": [{"role": "user", "content": "2 + 2"}], "level": None}
        assert asyncio.run(_areal_workflow(reward, "It is 4", **task)) == 1.0
        assert asyncio.run(_areal_workflow(reward, "It is 5", **task)) == 0.0
        with pytest.raises(UsageError, match="requires answer"):
            asyncio.run(_areal_workflow(reward, "It is 4"))
        assert reward.stats.ok == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_areal_calls_it_inside_its_wrapper(root: Path) -> None:
    wrapper = _areal_wrapper(rewards.areal(f"{HERE}:areal_style", root))
    try:
        assert asyncio.run(_areal_workflow(wrapper, "It is 4", answer=4)) == 1.0
        assert asyncio.run(_areal_workflow(wrapper, "It is 5", answer=4)) == 0.0
        with pytest.raises(UsageError, match="requires answer"):
            asyncio.run(_areal_workflow(wrapper, "It is 4"))
    finally:
        if isinstance(wrapper, _PoolWrapper):
            wrapper.pool.shutdown()


def test_areal_keyword_calls_of_agents_and_partials(root: Path) -> None:
    with rewards.areal(GRADE, root) as reward:
        assert asyncio.run(reward(completions="4", answer="4")) == 1.0
        bound = functools.partial(reward, answer="4")
        assert inspect.iscoroutinefunction(bound)
        assert asyncio.run(_areal_workflow(bound, "4")) == 1.0


def test_areal_functions_may_have_their_own_names(root: Path) -> None:
    with rewards.areal(f"{HERE}:own_names", root) as reward:
        found = asyncio.run(_areal_workflow(reward, "c", answer={"nested": None}))
    assert found == ["What is 2 + 2?", "c", [1, 2], [3], {"answer": {"nested": None}}]


def test_areal_waits_with_a_limit_and_gives_up_cleanly(root: Path) -> None:
    async def main() -> None:
        never = rewards.areal(GRADE, root.parent / "none")
        with pytest.raises(Exception, match="there is no run"):
            await asyncio.wait_for(never("p", "c", [], [], answer=1), 5)
        coroutine = never("p", "c", [], [], answer=1)
        coroutine.close()  # never begun, and nothing is reported about it

    asyncio.run(main())


# -- verl 0.9.1: verl/trainer/ppo/reward.py, verl/experimental/reward_loop/reward_manager/*.py,
#    verl/workers/reward_manager/{naive,batch,prime}.py


def _verl_load(path: Path, name: str, **reward_kwargs: Any) -> Any:
    """The function of a user's file, wrapped with the configuration's own arguments."""
    spec = importlib.util.spec_from_file_location("custom_module", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not inspect.iscoroutinefunction(function):
        return functools.partial(_merged, function, reward_kwargs)
    return functools.partial(_merged_async, function, reward_kwargs)


def _merged(function: Any, own: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs, **own)


async def _merged_async(function: Any, own: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    return await function(*args, **kwargs, **own)


async def _verl_manager(compute_score: Any, solution: str, truth: Any, **more: Any) -> Any:
    """A manager of the reward loop scores one sample, and takes a record's score."""
    extra = {"num_turns": None, "rollout_reward_scores": {}, "index": 7}
    sample = {"data_source": "math", "solution_str": solution, "ground_truth": truth}
    sample |= {"extra_info": extra, **more}
    if inspect.iscoroutinefunction(compute_score):
        result = await compute_score(**sample)
    else:
        call = functools.partial(compute_score, **sample)
        result = await asyncio.get_running_loop().run_in_executor(None, call)
    return result["score"] if isinstance(result, dict) else result, result


_VERL_FILE = """
from fsworker import rewards
FN, ROOT = {fn!r}, {root!r}
compute_score = rewards.verl(FN, ROOT)
waiting = rewards.verl(FN, ROOT, form="sync")
"""


@pytest.mark.parametrize("name", ["compute_score", "waiting"])
def test_verl_loads_it_from_a_file_and_scores(root: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "reward.py"
    file.write_text(_VERL_FILE.format(fn=f"{HERE}:record", root=str(root)))
    compute_score = _verl_load(file, name, threshold=0.5)
    assert inspect.iscoroutinefunction(compute_score) == (name == "compute_score")
    router = {"reward_router_address": "1.2.3.4", "reward_model_tokenizer": object()}
    for more in ({}, router):
        score, record = asyncio.run(_verl_manager(compute_score, "4", "4", **more))
        assert score == 1.0 and record["acc"] is True and record["note"] == "text"
        assert record["info"] == {"num_turns": None, "rollout_reward_scores": {}, "index": 7}
    assert asyncio.run(_verl_manager(compute_score, "5", "4"))[0] == 0.0
    compute_score.args[0].close()


def test_verl_gives_positions_and_lists(root: Path) -> None:
    with rewards.verl(f"{HERE}:record", root, form="sync") as reward:
        assert reward("math", "4", "4", None)["score"] == 1.0  # as the prime manager does
    with rewards.verl(f"{HERE}:record", root, form="batch") as batch:
        scores = batch(
            data_sources=["math"] * 3,
            solution_strs=["1", "2", "3"],
            ground_truths=["1", None, "3"],
            extra_infos=[{"i": 1}, None, {}],
        )
    assert [s["score"] for s in scores] == [1.0, 0.0, 1.0]
    assert [s["info"] for s in scores] == [{"i": 1}, None, {}]
    with pytest.raises(UsageError, match="form must be"):
        rewards.verl(GRADE, root, form="batched")  # type: ignore[call-overload]


# -- TRL 1.16.0: trl/trainer/grpo_trainer.py (_calculate_rewards), trl/trainer/utils.py


class _Trl:
    """What GRPOTrainer does with its reward functions."""

    def __init__(self, *reward_funcs: Any) -> None:
        self.names = [f.__name__ for f in reward_funcs]
        self.reward_funcs = reward_funcs
        self.extra: dict[str, list[Any]] = {}

    def rewards(self, prompts: list[Any], completions: list[Any], **columns: Any) -> Any:
        given = {
            **columns,
            "trainer_state": types.SimpleNamespace(global_step=3),
            "log_extra": lambda column, values: self.extra.setdefault(column, []).extend(values),
            "log_metric": lambda name, value: None,
            "environments": [object()] * len(prompts),
        }
        found = []
        for function in self.reward_funcs:
            assert not inspect.iscoroutinefunction(function)
            assert not inspect.iscoroutinefunction(function.__call__)
            ids = [[1, 2]] * len(prompts)
            out = function(prompts=prompts, completions=completions, completion_ids=ids, **given)
            assert len(out) == len(prompts)
            found.append([float("nan") if reward is None else float(reward) for reward in out])
        return found


def test_trl_gets_a_list_of_numbers_and_nones(root: Path) -> None:
    with rewards.trl(GRADE, root) as grade, rewards.trl(f"{HERE}:maybe", root) as maybe:
        trainer = _Trl(grade, maybe)
        assert trainer.names == ["grade", "maybe"]
        first, second = trainer.rewards(["p"] * 3, ["1", "skip", "333"], answer=[1, 2, 333])
        assert first == [1.0, 0.0, 1.0]
        assert second[0] == 1.0 and second[1] != second[1] and second[2] == 3.0
        assert maybe(prompts=["p"], completions=["skip"]) == [None]


def test_trl_gives_messages_and_all_columns_to_who_takes_them(root: Path) -> None:
    prompt = [{"role": "user", "content": "2 + 2"}]
    completion = [{"role": "assistant", "content": "4"}]
    with rewards.trl(f"{HERE}:everything", root) as reward:
        trainer = _Trl(reward)
        seen: list[Any] = []
        reward._log = lambda values, log: seen.extend(values)  # type: ignore[method-assign]
        with pytest.raises(UsageError, match="a map without a score"):
            trainer.rewards([prompt] * 2, [completion] * 2, answer=[4, None])
    sample = {"prompts": prompt, "completions": completion, "completion_ids": [1, 2]}
    assert seen == [{**sample, "answer": 4}, {**sample, "answer": None}]


def test_trl_uses_the_score_of_a_record_and_logs_the_rest(root: Path) -> None:
    with rewards.trl(f"{HERE}:record", root, takes=["solution_str", "ground_truth"]) as reward:
        trainer = _Trl(reward)
        columns = {"solution_str": ["1", "2"], "ground_truth": ["1", "1"]}
        assert trainer.rewards(["p"] * 2, ["c"] * 2, **columns) == [[1.0, 0.0]]
        assert trainer.extra == {"record/acc": [1.0, 0.0]}


# -- OpenRLHF 0.11.2: openrlhf/utils/agent.py, openrlhf/trainer/ppo_utils/samples_generator.py


async def _openrlhf_executor(file: Path, query: str, prompt: str, label: Any) -> dict[str, Any]:
    """One sample at a time, in a thread; a number is made of what comes back."""
    spec = importlib.util.spec_from_file_location("reward_func", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    info = await asyncio.to_thread(module.reward_func, [query], [prompt], [label])
    scores = info.get("scores")
    module.reward_func.close()
    return {
        "reward": info.get("rewards"),
        "scores": info.get("rewards") if scores is None else scores,
        "extra_logs": info.get("extra_logs") or {},
    }


class _Tensor(list[float]):
    """A tensor of one dimension, as far as it matters here."""


def test_openrlhf_loads_it_from_a_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test may have loaded it
    file = tmp_path / "reward_func.py"
    file.write_text(
        "from fsworker import rewards\n"
        f"reward_func = rewards.openrlhf({f'{HERE}:rated'!r}, {str(root)!r})\n"
    )
    output = asyncio.run(_openrlhf_executor(file, "2 + 2 = 4", "2 + 2 =", "4"))
    assert output == {"reward": [2.0], "scores": [1.0], "extra_logs": {"length": [9.0]}}
    # Its processes have loaded torch, and then it gets tensors.
    torch = types.ModuleType("torch")
    torch.float32 = "float32"  # type: ignore[attr-defined]
    torch.tensor = lambda values, dtype: _Tensor(values)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    output = asyncio.run(_openrlhf_executor(file, "2 + 2 = 5", "2 + 2 =", "4"))
    assert output["scores"] == [0.0]
    assert {type(c) for c in (output["reward"], output["extra_logs"]["length"])} == {_Tensor}


def test_openrlhf_batches_numbers_and_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    takes = ["completion", "answer"]
    with rewards.openrlhf(GRADE, root, takes=takes) as reward:
        found = reward(["q"] * 2, ["p"] * 2, ["l"] * 2, completion=["1", "2"], answer=[1, 1])
        assert found == {"rewards": [1.0, 0.0], "scores": [1.0, 0.0], "extra_logs": {}}
    with rewards.openrlhf(f"{HERE}:maybe", root, takes=["completion"]) as reward:
        nothing = {"rewards": None, "scores": None, "extra_logs": {}}
        assert reward(["q"], ["p"], [None], completion=["skip"]) == nothing
        some = reward(["q"] * 2, ["p"] * 2, None, completion=["skip", "22"])["rewards"]
        assert some[0] != some[0] and some[1] == 2.0
