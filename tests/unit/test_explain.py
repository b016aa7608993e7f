"""Explanations: what comes next as a table, and stories of hosts and batches from files alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctl import roots
from ctl.cli import main
from ctl.explain import batches, hosts, jobs, prospects, sources
from ctl.explain.prospects import Watching
from ctl.health import Limits, State
from ctl.memory import HostMemory
from fsworker.protocol import layout, packing, segment
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.offers import Provider
from fsworker.protocol.records.counters import StreamCounters
from fsworker.protocol.records.needs import Needs, Offer
from tests.support.runs import beat, make_run

pytestmark = pytest.mark.unit

CLIENT, LIFE = "c" * 12, "0123456789ab"
WATCHED = Watching("pid 7 on head", True)
NOBODY = Watching()


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_next_with_a_watcher_and_without(state: State) -> None:
    for watching in (WATCHED, Watching("pid 7 on head"), NOBODY):
        told = prospects.of_host(state, HostMemory(), Limits(), 0.0, watching, "ctl restart-host h")
        assert told and all(told)
        acts = state not in (State.READY, State.STARTING, State.DRAINING)
        assert acts == any("ctl restart-host h" in line for line in told)


@pytest.mark.parametrize(
    ("state", "watching", "words"),
    [
        (State.READY, WATCHED, "goes on taking work"),
        (State.STOPPED, WATCHED, "until it is started again"),
        (State.STALE, NOBODY, "no watcher runs, so nobody acts"),
        (State.STALE, WATCHED, "asks the host"),
        (State.DEAD, WATCHED, "deaths + 1"),
        (State.DENIED, Watching("pid 7 on head"), "if it still lives"),
        (State.STORAGE_SUSPECT, WATCHED, "acts on nobody"),
    ],
)
def test_what_happens_to_a_host(state: State, watching: Watching, words: str) -> None:
    told = prospects.of_host(state, HostMemory(), Limits(), 0.0, watching, "x")
    assert words in told[0]


def test_a_restart_that_has_to_wait_says_how_long() -> None:
    past = HostMemory(restarts=3, restarted_at=100.0)
    told = prospects.of_host(State.DEAD, past, Limits(cooldown=30.0), 110.0, WATCHED, "x")
    assert "in 1m50s at the earliest (3 restarts so far)" in told[0]
    told = prospects.of_host(State.DEAD, past, Limits(cooldown=30.0), 999.0, WATCHED, "x")
    assert "earliest" not in told[0]


@pytest.mark.parametrize(
    ("home", "others", "deaths", "words"),
    [
        ([], [], 0, "no worker of this run lives"),
        (["n1"], [], 0, "served by n1"),
        ([], ["n2", "n3"], 0, "nobody serves its shard; n2, n3 take from it"),
        (["n1"], [], 2, "runs alone"),
    ],
)
def test_what_happens_to_a_waiting_batch(
    home: list[str], others: list[str], deaths: int, words: str
) -> None:
    told = prospects.of_pending(home, others, deaths=deaths, most_deaths=3, ahead=4)
    assert words in " ".join(told)


GPU, BIG = Offer(frozenset({"gpu"})), Offer(cpus=64)


@pytest.mark.parametrize(
    ("needs", "found", "told"),
    [
        (Needs(), [], []),
        (Needs(("gpu",)), [Provider("n1", 1, GPU, True)], ["it needs label gpu"]),
        (
            Needs(("gpu",)),
            [Provider("n1", 2, GPU, True), Provider("n2", 1, BIG, True)],
            ["it needs label gpu", "it is forwarded to the shard of n1"],
        ),
        (
            Needs(("gpu",)),
            [Provider("n1", 1, GPU), Provider("n2", 1, BIG, True)],
            [
                "it needs label gpu",
                "it waits for n1, which offered that and does not serve now",
                "n2 lacks label gpu",
            ],
        ),
        (
            Needs(("gpu",), cpus=64, gpus=1),
            [Provider("n1", 1, GPU, True), Provider("n2", 1, BIG, True), Provider("n3", 0)],
            [
                "it needs label gpu, 64 cpus, 1 gpu",
                "it waits for a worker that offers that: none does",
                "n1 lacks 64 cpus (has 0), 1 gpu (has 0)",
                "n2 lacks label gpu, 1 gpu (has 0)",
                "n3: not heard of yet",
            ],
        ),
    ],
)
def test_for_what_a_batch_waits_and_who_comes_near(
    needs: Needs, found: list[Provider], told: list[str]
) -> None:
    assert prospects.of_needs(needs, found, 1, job=False) == told


@pytest.mark.parametrize(
    ("state", "current", "words"),
    [
        (State.READY, True, "executes it"),
        (State.DRAINING, True, "drains"),
        (State.READY, False, "life that held it is over"),
        (State.STALE, True, "proven dead"),
        (State.STOPPED, False, "proven dead"),
    ],
)
def test_what_happens_to_a_claimed_batch(state: State, current: bool, words: str) -> None:
    (told,) = prospects.of_claimed("n1", state, current=current, watching=WATCHED)
    assert words in told


@pytest.fixture
def run(tmp_path: Path) -> Iterator[roots.Run]:
    """Two hosts, of which n1 beats."""
    made = make_run(tmp_path, "n1", "n2")
    beat(tmp_path)
    (tmp_path / layout.OUTBOX / "s").mkdir()
    yield made


def put(run: roots.Run, path: str, data: bytes = b"") -> None:
    full = Path(run.root, path)
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(data)


def tell(run: roots.Run, name: str) -> list[str]:
    """Everything that `explain` says about a batch or task."""
    found = []
    for batch, index in batches.named(run, name):
        story = batches.explain(run, hosts.view(run), batch, index)
        if story:
            events = [e.words for e in story.history]
            found += [story.state, *story.now, *events, *story.next]
    return found


def test_a_batch_on_its_way(run: roots.Run) -> None:
    batch = layout.batch_id("s", CLIENT, 0)
    token = Token(batch, 1, 2, 1)
    path = layout.inbox_path(token)
    put(run, path)
    put(run, layout.Outcome(batch, 1, LIFE).part(0))
    waiting = " | ".join(tell(run, batch))
    assert "pending" in waiting and path in waiting
    assert "claimed 2 times; 1 workers died" in waiting
    assert f"attempt 1 by the life {LIFE}" in waiting
    assert "nobody serves its shard; n1 take from it" in waiting and "runs alone" in waiting

    Path(run.root, path).unlink()
    owner = Owner("n1", LIFE)
    put(run, layout.claim_path(owner, token.claimed()))
    assert "n1 executes it and commits its results" in tell(run, f"{batch}:3")

    Path(run.root, layout.claim_path(owner, token.claimed())).unlink()
    put(run, layout.outcome(owner, token.claimed()).done)
    committed = " | ".join(tell(run, batch))
    assert "committed" in committed and "reads the stream s" in committed


def test_a_batch_that_was_read_and_one_that_never_was(run: roots.Run) -> None:
    told = StreamCounters("s", CLIENT, submitted=5, read=5, settled=True)
    put(run, layout.counters_path("s", CLIENT), told.to_json())
    read = " | ".join(tell(run, layout.batch_id("s", CLIENT, 4)))
    assert "client submitted 5 batches of this stream and 5 are read" in read
    assert tell(run, layout.batch_id("s", CLIENT, 5)) == []
    assert tell(run, "no such id") == []


def test_a_batch_that_was_given_up_tells_the_reason_of_the_task(run: roots.Run) -> None:
    batch = layout.batch_id("s", CLIENT, 0)
    reason = {"batch": batch, "tasks": [{"task": 7, "why": "three workers died"}]}
    put(run, layout.dead_path(batch))
    put(run, layout.dead_path(batch) + ".reason.json", json.dumps(reason).encode())
    assert any("three workers died" in line for line in tell(run, f"{batch}:7"))
    assert any(f"dead/{batch}" in line for line in tell(run, batch))


def test_a_task_is_found_by_its_id_while_it_waits(run: roots.Run) -> None:
    batch = layout.batch_id("s", CLIENT, 0)
    records = [packing.pack([name, "m.f", [], {}]) for name in ("first", "second")]
    data = segment.encode(segment.Segment(segment.BATCH, {}, records))
    put(run, layout.inbox_path(Token(batch, 0)), data)
    assert batches.named(run, "second") == [(batch, 1)]
    assert "pending" in tell(run, "second")


def test_a_batch_that_went_from_host_to_host_tells_of_each(run: roots.Run) -> None:
    batch, longer = layout.batch_id("s", CLIENT, 1), layout.batch_id("s", CLIENT, 10)
    event = {"at": "t1", "by": "watch", "event": "revoke", "host": "n1", "reason": "dead"}
    events = [{**event, "names": [batch]}, {**event, "host": "n2", "names": [longer]}]
    put(run, layout.EVENTS, "".join(json.dumps(e) + "\n" for e in events).encode())
    lines = [f"2026-01-0{day} batch {name} is suspect\n" for day, name in ((2, batch), (1, longer))]
    put(run, layout.host_file("n1", "log"), "".join(lines).encode())
    put(run, layout.host_file("n2", "log"), f"2026-01-01 1 batches are back: {batch}\n".encode())
    put(run, layout.inbox_path(Token(batch, 1, 2, 2)))
    story = batches.explain(run, hosts.view(run), batch, None)
    assert story is not None
    assert [(e.at, e.words) for e in story.history] == [
        ("t1", "n1: revoke (by watch): reason dead"),
        (None, f"n2 logged: 2026-01-01 1 batches are back: {batch}"),
        (None, f"n1 logged: 2026-01-02 batch {batch} is suspect"),
    ]


def test_a_job_tells_from_which_hosts_it_was_returned(run: roots.Run) -> None:
    for shard in range(run.manifest.shard_count):
        Path(run.root, "inbox", str(shard)).mkdir(parents=True)
    submit = ["job", "submit", "--root", run.root, "--id", "j1", "--", "train", "{checkpoint}"]
    assert main(submit) == 0
    (place,) = Path(run.root, "inbox").glob("*/*")
    token = layout.parse_inbox_name(int(place.parent.name), place.name)
    assert token is not None
    event = {"at": "t1", "by": "watch", "event": "revoke", "host": "n1", "names": [token.batch]}
    put(run, layout.EVENTS, (json.dumps(event) + "\n").encode())
    (story,) = jobs.explain(run, hosts.view(run), "j1")
    assert (story.state, "n1: revoke (by watch)") == ("pending", story.history[-1].words)


def test_a_host_with_its_history_and_last_words(run: roots.Run, tmp_path: Path) -> None:
    events = [
        {"at": "t1", "by": "start", "event": "started", "hosts": ["n1", "n2"]},
        {"at": "t2", "by": "watch", "event": "restart", "host": "n2", "reason": "dead"},
    ]
    lines = "".join(json.dumps(e) + "\n" for e in events) + "cut in the midd"
    put(run, layout.EVENTS, lines.encode())
    put(run, layout.host_file("n2", "log"), b"ready\nTraceback of the end\n")
    story = hosts.explain(run, hosts.view(run), "n2")
    assert story.state == State.MISSING or story.state == State.STARTING
    assert [(e.at, e.words) for e in story.history] == [
        ("t1", "started (by start)"),
        ("t2", "restart (by watch): reason dead"),
    ]
    assert "worker: Traceback of the end" in story.last_words
    assert len(hosts.explain(run, hosts.view(run), "n1").history) == 1


def test_only_the_end_of_a_large_log_is_read(run: roots.Run) -> None:
    put(run, layout.host_file("n1", "log"), b"x" * 300_000 + b"\nlast\n")
    assert sources.last_lines(run, layout.host_file("n1", "log"), 1) == ["last"]
    assert sources.last_lines(run, layout.host_file("n2", "log"), 1) == []


def test_the_command_in_text_and_json(run: roots.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "n1", "--root", run.root]) == 0
    assert capsys.readouterr().out.startswith("host n1: ready\nnow:\n")
    assert main(["explain", "n1", "--root", run.root, "--json"]) == 0
    (story,) = json.loads(capsys.readouterr().out)["stories"]
    assert (story["kind"], story["state"], story["host"]["ok"]) == ("host", "ready", True)
    assert main(["explain", "n9", "--root", run.root]) == 3
    assert "'n9' is no host of this run" in capsys.readouterr().err
