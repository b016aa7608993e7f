"""The real verbs of the ledger and the stream, in every interleaving and with every fault.

`tests/model/explorer.py` says what is checked, `tests/model/disk.py` what the storage may do,
`tests/model/programs.py` what the processes do. SHARDFLEET_MODEL=large explores wider bounds, which
takes hours rather than a minute.
"""

from __future__ import annotations

import os

import pytest

from fsworker.protocol import ledger
from tests.model.explorer import Explorer
from tests.model.invariants import Violation
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.scenario import Bounds, Scenario

pytestmark = [pytest.mark.unit, pytest.mark.timeout(1200)]

SCENARIOS: tuple[tuple[Scenario, int], ...] = (
    (Scenario("two batches are sent, faults", Bounds(faults=1)), 14_000),
    (
        Scenario("two batches are sent, a live owner is reclaimed", Bounds(reclaims=1), capacity=1),
        46_000,
    ),
    (Scenario("a crash and a reclaim", Bounds(0, 1, 1), batches=1, written=1), 17_000),
    (
        Scenario(
            "faults while a live owner is reclaimed, proven dead or not",
            Bounds(faults=1, reclaims=1),
            batches=1,
            written=1,
            died=(True, False),
        ),
        53_000,
    ),
    (
        Scenario(
            "forwarded to another shard and back, with a fault and a crash",
            Bounds(faults=1, crashes=1, forwards=2),
            batches=1,
            written=1,
            capacity=1,
        ),
        12_000,
    ),
    (
        Scenario(
            "faults and crashes, of the client too, from the very start, nothing left out",
            Bounds(faults=1, crashes=1),
            batches=1,
            enlisted=False,
            stream_folder=False,
            client_crashes=True,
            prune=False,
        ),
        33_000,
    ),
)
WIDER = (
    (
        Scenario(
            "forwarded and back, with one of each",
            Bounds(faults=1, crashes=1, reclaims=1, forwards=2),
            batches=1,
            written=1,
            capacity=1,
        ),
        790_000,
    ),
    (Scenario("a reclaim in two rounds", Bounds(0, 1, 1), batches=1, written=1, rounds=2), 68_000),
    (Scenario("two faults and two reclaims", Bounds(2, 0, 2, 0), batches=1, written=1), 600_000),
    (Scenario("one of each", Bounds(1, 1, 1, 1), batches=1, written=1, rounds=2), 68_000),
    (Scenario("two batches, one of each", Bounds(1, 1, 1, 1), written=2), 156_000),
)
if os.environ.get("SHARDFLEET_MODEL") == "large":
    SCENARIOS += WIDER


@pytest.mark.parametrize(("scenario", "floor"), SCENARIOS, ids=[s.name for s, _ in SCENARIOS])
def test_no_interleaving_and_no_fault_breaks_an_invariant(
    scenario: Scenario, floor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "RECLAIM_ROUNDS", scenario.rounds)
    states = Explorer(scenario).run()
    print(f"\n{scenario.name}: {states:,} states, no violation")
    assert states >= floor, "the exploration has become smaller: is a fault no longer tried?"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_broken_rule_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "RECLAIM_ROUNDS", 1)
    if mutation.look:
        monkeypatch.setattr(ledger, "_look", mutation.look)
    explorer = Explorer(mutation.scenario())
    with pytest.raises(Violation) as found:
        explorer.run(limit=150_000)
    print(f"\n{found.value}\n  found among {len(explorer.states):,} states")
    assert mutation.told in str(found.value).splitlines()[0]
