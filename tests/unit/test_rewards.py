"""What all reward adapters share: arguments, failures, and life in several processes."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from fsworker import outcomes, rewards
from fsworker.errors import NoWorkers, UsageError
from fsworker.remote import NotSent, TaskError, TaskTimeout, task_error
from fsworker.rewards import arguments
from fsworker.rewards.arguments import chosen, missing, signature_of
from fsworker.rewards.options import Options, checked
from fsworker.rewards.pursuit import Next, Pursuit, Stats, after
from fsworker.rewards.reward import Opened
from fsworker.rewards.rows import rows
from tests.support import reward_functions
from tests.support.small_worker import SmallWorker, make_run

pytestmark = pytest.mark.unit

HERE = "tests.support.reward_functions"
NAMES = ("grade", "areal_style", "own_names", "everything", "record", "maybe", "rated")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{HERE}:{n}": getattr(reward_functions, n) for n in NAMES
}
GRADE = f"{HERE}:grade"
ALL = [rewards.areal, rewards.verl, rewards.trl, rewards.openrlhf]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    return make_run(tmp_path / "run", list(FUNCTIONS), shards=1)


@pytest.fixture
def worker(root: Path) -> Iterator[SmallWorker]:
    with SmallWorker(root, FUNCTIONS) as worker:
        yield worker


# -- which arguments


def _offered(**more: Any) -> dict[str, Any]:
    return {"prompts": "p", "completions": "c", "completion_ids": [1], **more}


ALIASES = {"completion": "completions", "prompt": "prompts"}


@pytest.mark.parametrize(
    ("fn", "takes", "kept"),
    [
        (reward_functions.grade, None, {"completion": "c", "answer": 4}),
        (GRADE, None, {"completion": "c", "answer": 4}),
        (f"{HERE}.grade", None, {"completion": "c", "answer": 4}),
        (reward_functions.maybe, None, {"completion": "c"}),
        (reward_functions.everything, None, _offered(answer=4)),
        ("not.importable:here", None, _offered(answer=4)),
        ("not.importable:here", ("completion", "answer"), {"completion": "c", "answer": 4}),
        (reward_functions.everything, ("answer",), {"answer": 4}),
        (
            lambda prompt, **more: 0,
            None,
            {"prompt": "p", "completions": "c", "completion_ids": [1], "answer": 4},
        ),
        (
            lambda completions, *, completion="mine": 0,
            None,
            {"completions": "c", "completion": "c"},
        ),
        (lambda: 0, None, {}),
    ],
)
def test_a_function_is_given_what_it_takes(
    fn: arguments.Fn, takes: tuple[str, ...] | None, kept: dict[str, Any]
) -> None:
    signature = signature_of(fn, takes)
    found = chosen(signature, _offered(answer=4), ALIASES)
    assert found == kept
    assert not missing(signature, found)


def test_what_a_function_requires_and_nobody_offers_is_named(root: Path) -> None:
    with rewards.trl(GRADE, root) as reward, pytest.raises(UsageError) as caught:
        reward(prompts=["p"], completions=["c"])
    assert "requires answer" in str(caught.value) and "prompts, completions" in str(caught.value)


def test_columns_become_samples() -> None:
    columns = {
        "a": [1, 2],
        "b": ("x", "y"),
        "same": 3,
        "word": "no",
        "map": {1: 1, 2: 2},
        "none": None,
    }
    same = {"same": 3, "word": "no", "map": {1: 1, 2: 2}, "none": None}
    assert list(rows(columns, 2)) == [{"a": 1, "b": "x", **same}, {"a": 2, "b": "y", **same}]
    assert list(rows(columns, 0)) == []


# -- what follows a failure


def _error(status: str) -> TaskError:
    return task_error(status, outcomes.cause("Kind", "words"))


@pytest.mark.parametrize(
    ("error", "retries", "given", "follows"),
    [
        (_error("timeout"), 0, {}, Next.RETRY),
        (_error("crashed"), 2, {}, Next.RETRY),
        (_error("worker died"), 0, {}, Next.RAISE),
        (_error("worker died"), 0, {"retry_on": ["worker died"]}, Next.RETRY),
        (_error("timeout"), 3, {}, Next.RAISE),
        (_error("timeout"), 3, {"on_error": "default"}, Next.DEFAULT),
        (_error("timeout"), 0, {"max_retries": 0}, Next.RAISE),
        (_error("error"), 0, {}, Next.RAISE),
        (_error("error"), 0, {"retry_on": ["error"]}, Next.RETRY),
        (_error("error"), 0, {"on_error": "default"}, Next.DEFAULT),
        (_error("timeout"), 0, {"retry_on": []}, Next.RAISE),
        (NotSent("too large"), 0, {}, Next.RAISE),
        (NotSent("too large"), 0, {"on_error": "default"}, Next.DEFAULT),
        (NoWorkers("nobody"), 0, {"on_error": "default"}, Next.RAISE),
        (UsageError("not served"), 0, {"on_error": "default"}, Next.RAISE),
        (OSError("disk"), 0, {"on_error": "default"}, Next.RAISE),
    ],
)
def test_what_follows_a_failure(error: Exception, retries: int, given: Any, follows: Next) -> None:
    assert after(error, retries, checked("/r", given)) is follows


def _pursue(outcomes_: list[Any], **given: Any) -> tuple[Future[Any], Stats, list[Future[Any]]]:
    """A call whose attempts end as told; an attempt without an outcome stays open."""
    sent: list[Future[Any]] = []
    stats = Stats()

    def submit() -> Future[Any]:
        future: Future[Any] = Future()
        sent.append(future)
        if len(sent) <= len(outcomes_):
            outcome = outcomes_[len(sent) - 1]
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        return future

    answer = Pursuit(submit, checked("/r", given), stats).start()  # type: ignore[arg-type]
    return answer, stats, sent


def test_attempts_are_counted() -> None:
    slow, crash = _error("timeout"), _error("crashed")
    answer, stats, sent = _pursue([slow, crash, slow, 0.5])
    assert answer.result(0) == 0.5 and len(sent) == 4
    assert stats.as_dict() == {"ok": 1, "timeouts": 2, "retries": 3, "defaults": 0, "failed": 0}
    answer, stats, _ = _pursue([slow] * 9, on_error="default", default=-1.0)
    assert answer.result(0) == -1.0
    assert stats.as_dict() == {"ok": 0, "timeouts": 4, "retries": 3, "defaults": 1, "failed": 0}
    answer, stats, _ = _pursue([slow] * 9, max_retries=1)
    assert isinstance(answer.exception(0), TaskTimeout)
    assert stats.as_dict() == {"ok": 0, "timeouts": 2, "retries": 1, "defaults": 0, "failed": 1}


def test_a_repetition_that_cannot_be_sent_ends_the_wait() -> None:
    tries = iter([_error("crashed")])

    def submit() -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_exception(next(tries))
        except StopIteration:
            raise RuntimeError("closed") from None
        return future

    answer = Pursuit(submit, Options("/r"), Stats()).start()
    with pytest.raises(RuntimeError, match="closed"):
        answer.result(0)


def test_cancelling_the_answer_cancels_the_attempt() -> None:
    answer, stats, sent = _pursue([_error("crashed")])
    assert len(sent) == 2 and not sent[1].done()
    assert answer.cancel()
    assert sent[1].cancelled()
    late: Future[Any] = _pursue([])[0]
    late.cancel()
    assert stats.as_dict()["ok"] == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"on_error": "ignore"}, "on_error must be"),
        ({"max_retries": -1}, "max_retries"),
        ({"timeout": 0}, "timeout must be"),
        ({"retry_on": ["never"]}, "retry_on names 'never'"),
        ({"takes": "answer"}, "takes must be a list"),
        ({"retries": 3}, "no option 'retries'"),
    ],
)
def test_wrong_options_are_refused_at_once(given: Any, words: str) -> None:
    for make in ALL:
        with pytest.raises(UsageError, match=words):
            make(GRADE, "/nowhere", **given)


def test_a_failure_raises_and_the_others_are_not_waited_for(
    root: Path, worker: SmallWorker
) -> None:
    def wrong(completion: str, answer: str) -> float:
        raise ValueError("plainly wrong")

    worker.functions = {**FUNCTIONS, GRADE: wrong}
    with rewards.trl(GRADE, root) as reward:
        with pytest.raises(TaskError, match="plainly wrong"):
            reward(prompts=["p"] * 3, completions=["c"] * 3, answer=["c"] * 3)
        assert reward.stats.failed >= 1 and reward.stats.retries == 0
    with rewards.trl(GRADE, root, on_error="default", default=None) as reward:
        assert reward(prompts=["p"], completions=["c"], answer=["c"]) == [None]
        assert reward.stats.as_dict()["defaults"] == 1
    with rewards.trl(GRADE, root, retry_on=["error"], max_retries=2) as reward:
        with pytest.raises(TaskError, match="plainly wrong"):
            reward(prompts=["p"], completions=["c"], answer=["c"])
        assert reward.stats.retries == 2


def test_what_cannot_be_sent_is_one_samples_failure(root: Path, worker: SmallWorker) -> None:
    with rewards.trl(GRADE, root, on_error="default") as reward:
        assert reward(prompts=["p"] * 2, completions=["1", {1}], answer=[1, 1]) == [1.0, 0.0]
        assert reward.stats.as_dict() | {"ok": 1, "defaults": 1} == reward.stats.as_dict()


def test_nobody_serving_is_raised_even_with_a_default(root: Path) -> None:
    reward = rewards.trl(GRADE, root, on_error="default", no_worker_timeout=0.1)
    with reward, pytest.raises(NoWorkers):
        reward(prompts=["p"], completions=["c"], answer=[1])
    reward = rewards.trl("tests.fn:unknown", root, on_error="default")
    with reward, pytest.raises(UsageError, match="does not serve"):
        reward(prompts=["p"], completions=["c"], answer=[1])


# -- who it seems to be


@pytest.mark.parametrize("fn", [GRADE, f"{HERE}.grade", reward_functions.grade])
def test_it_has_the_name_of_its_function(fn: arguments.Fn) -> None:
    for make in ALL:
        assert make(fn, "/nowhere").__name__ == "grade"


def test_trainers_can_ask_whether_to_await() -> None:
    def awaited(reward: Any) -> bool:
        return inspect.iscoroutinefunction(reward)

    assert awaited(rewards.areal(GRADE, "/r")) and awaited(rewards.verl(GRADE, "/r"))
    assert not awaited(rewards.trl(GRADE, "/r")) and not awaited(rewards.openrlhf(GRADE, "/r"))
    assert not awaited(rewards.verl(GRADE, "/r", form="sync"))
    assert not awaited(rewards.verl(GRADE, "/r", form="batch"))
    assert list(inspect.signature(rewards.areal(GRADE, "/r")).parameters)[:2] == [
        "prompt",
        "completions",
    ]
    assert next(iter(inspect.signature(rewards.verl(GRADE, "/r")).parameters)) == "data_source"


# -- many coroutines, threads and processes


def test_coroutines_are_scored_together(
    root: Path, worker: SmallWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[arguments.Fn] = []

    class Counted(Opened):
        def __init__(self, fn: arguments.Fn, options: Options) -> None:
            opened.append(fn)
            super().__init__(fn, options)

    monkeypatch.setattr("fsworker.rewards.reward.Opened", Counted)

    async def main(reward: Any) -> list[float]:
        waiting = [reward("p", str(i % 3), [], [], answer="1") for i in range(60)]
        return list(await asyncio.gather(*waiting))

    with rewards.areal(GRADE, root) as reward:
        assert asyncio.run(main(reward)) == [float(i % 3 == 1) for i in range(60)]
        assert reward.stats.ok == 60
    assert len(worker.sizes) < 60, "they travel together"
    assert opened == [GRADE], "they share one client"


def test_a_cancelled_coroutine_withdraws_its_call(root: Path) -> None:
    async def main(reward: Any) -> None:
        task = asyncio.create_task(reward("p", "c", [], [], answer="1"))
        while not reward._opened:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    reward = rewards.areal(GRADE, root)
    asyncio.run(main(reward))
    assert reward.stats.as_dict()["failed"] == 0


def test_threads_share_it(root: Path, worker: SmallWorker) -> None:
    found: list[list[float | None]] = []
    with rewards.trl(reward_functions.grade, root) as reward:
        batch = {"prompts": ["p"] * 2, "completions": ["1", "2"], "answer": [2, 2]}
        threads = [threading.Thread(target=lambda: found.append(reward(**batch))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == [[0.0, 1.0]] * 4
        assert reward.stats.ok == 8


@pytest.fixture
def _no_tracker() -> Iterator[None]:
    """`spawn` leaves a helper of multiprocessing running, for its own next time."""
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # no public way


def _in_a_child(reward: Any, answers: Any) -> None:
    reward = pickle.loads(pickle.dumps(reward))
    values = reward(prompts=["p"] * 2, completions=["1", "2"], answer=[2, 2])
    answers.put((os.getpid(), values, reward.stats.as_dict()["ok"]))
    reward.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.usefixtures("_no_tracker")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("fn", [GRADE, reward_functions.grade])
def test_it_works_in_processes_that_it_is_given_to(
    root: Path, worker: SmallWorker, method: str, fn: arguments.Fn
) -> None:
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    with rewards.trl(fn, root) as reward:
        batch = {"prompts": ["p"], "completions": ["2"], "answer": [2]}
        assert reward(**batch) == [1.0]
        child = context.Process(target=_in_a_child, args=(reward, answers))
        child.start()
        pid, values, ok = answers.get()
        child.join(30)
        assert child.exitcode == 0 and pid == child.pid != os.getpid()
        assert values == [0.0, 1.0] and ok == 2
        assert reward(**batch) == [1.0] and reward.stats.ok == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_uses_what_its_parent_uses(root: Path, worker: SmallWorker) -> None:
    """As a data loader does: nothing is pickled, and both go on."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with rewards.trl(GRADE, root) as reward:
        batch = {"prompts": ["p"], "completions": ["2"], "answer": [2]}
        assert reward(**batch) == [1.0]

        def child() -> None:
            answers.put((reward(**batch), reward.stats.ok))
            reward.close()

        process = context.Process(target=child)
        process.start()
        assert answers.get() == ([1.0], 1)
        process.join(30)
        assert process.exitcode == 0
        assert reward(**batch) == [1.0] and reward.stats.ok == 2


@pytest.mark.parametrize("make", ALL)
def test_it_is_pickled_with_its_options(make: Any) -> None:
    reward = make(GRADE, "/r", on_error="default", default=-1.0, takes=["answer"])
    again = pickle.loads(pickle.dumps(reward))
    assert type(again) is type(reward) and again.options == reward.options
    assert again.fn == GRADE
