"""A start before anything is touched: workers, shards, functions, environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ctl import config, hosts, planning, rundir, workers
from ctl.planning import Wish
from fsworker.errors import Refused, UsageError
from fsworker.protocol import launches, layout
from fsworker.protocol.records.run import WorkerSpec

pytestmark = pytest.mark.unit


def plan(tmp_path: Path, wish: Wish | None = None, **environ: str) -> planning.Plan:
    base = {"HOME": str(tmp_path), "FLEET_FN": "a.b:c", "FLEET_LAUNCHER": "local"}
    settings = config.load(None, base | environ, str(tmp_path))
    allowed = hosts.Allowed(hosts.parse(settings.get("hosts") or "", "FLEET_HOSTS"), "FLEET_HOSTS")
    return planning.make(wish or Wish(), settings, allowed, str(tmp_path / "run"), "id1")


def chosen(tmp_path: Path, wish: Wish, **environ: str) -> list[tuple[str, int, int]]:
    return [(w.host, w.shard, w.concurrency) for w in plan(tmp_path, wish, **environ).meta.workers]


def test_by_default_every_allowed_host_sorted_with_a_shard_of_its_own(tmp_path: Path) -> None:
    made = plan(tmp_path, FLEET_HOSTS="n3 n1 n2")
    assert made.meta.workers == (
        WorkerSpec("n1", 0, 48), WorkerSpec("n2", 1, 48), WorkerSpec("n3", 2, 48),
    )  # fmt: skip
    assert made.manifest.shard_count == 3


def test_workers_from_json_text_and_from_a_file(tmp_path: Path) -> None:
    text = '[{"host": "n1", "shard": 2, "concurrency": 4}, {"host": "n2", "shard": 2, "x": 1}]'
    (tmp_path / "w.json").write_text("\ufeff" + text)
    want = [("n1", 2, 4), ("n2", 2, 48)]
    assert chosen(tmp_path, Wish(workers_json=text)) == want
    assert chosen(tmp_path, Wish(workers_json=str(tmp_path / "w.json"))) == want
    assert plan(tmp_path, Wish(workers_json=text)).manifest.shard_count == 3


def test_a_host_set_shares_the_shards_that_are_given(tmp_path: Path) -> None:
    found = chosen(tmp_path, Wish(hosts="node[01-04]", shard_count=2))
    assert [(h, s) for h, s, _ in found] == [
        ("node01", 0), ("node02", 1), ("node03", 0), ("node04", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(workers_json='[{"host": "n1"}, {"host": "N1"}]'), "host 'N1' is named twice"),
        (Wish(workers_json='[{"host": "n1", "shard": 3}]', shard_count=3), "has shard 3, but"),
        (Wish(workers_json='[{"host": "n1", "shard": -1}]'), "worker 0: field 'shard' must be"),
        (Wish(workers_json='[{"host": "n1", "concurrency": "48"}]'), "field 'concurrency' must be"),
        (Wish(workers_json='[{"host": "n1", "concurrency": -1}]'), "from 0 up, not -1"),
        (Wish(workers_json='[{"host": "n1", "concurrency": 0, "job_slots": 0}]'), "give it some"),
        (Wish(hosts="n1", flags={"concurrency": 0, "job_slots": 0}), "give it some"),
        (Wish(flags={"pass_env": ("NOT-A-NAME",)}), "not the name of a variable"),
        (Wish(flags={"pass_env": ("SURELY_NOT_SET",)}), "it is not set here"),
        (Wish(workers_json='[{"host": "n1", "shard": true}]'), "from 0 up, not True"),
        (Wish(workers_json='[{"shard": 0}]'), "field 'host' must be a text"),
        (Wish(workers_json='[{"host": "n[1-2]"}]'), "must be one host"),
        (Wish(workers_json='[{"host": "-x"}]'), "is not a host name"),
        (Wish(workers_json='["n1"]'), "worker 0 must be an object"),
        (Wish(workers_json="[]"), "with at least one"),
        (Wish(workers_json='{"host": "n1"}'), "must be a list"),
        (Wish(workers_json="[{]"), "is not valid JSON"),
        (Wish(workers_json="/no/such/file"), "cannot read '/no/such/file'"),
        (Wish(workers_json="[]", hosts="n1"), "give one of them"),
        (Wish(hosts=""), "--hosts names no host"),
        (Wish(hosts="n1 n1"), "is there already"),
        (Wish(functions=("plain",)), "'plain' is not of the form"),
        (Wish(functions=("a.b:c", "a b:c")), "'a b:c' is not of the form"),
        (Wish(flags={"launcher": "pbs"}), "launcher must be one of local, ssh"),
        (Wish(flags={"log_level": "loud"}), "log_level must be one of"),
    ],
)  # fmt: skip
def test_bad_wishes_are_one_sentence(tmp_path: Path, wish: Wish, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(tmp_path, wish)
    assert words in str(caught.value)


def test_default_shards_beyond_a_given_count_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="host 'n2' has shard 1, but there are 1 shards"):
        plan(tmp_path, Wish(shard_count=1), FLEET_HOSTS="n1 n2")


def test_only_allowed_hosts_are_planned_for(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="'n9' is not among the allowed hosts"):
        plan(tmp_path, Wish(hosts="n1 n9"), FLEET_HOSTS="n1")
    with pytest.raises(Refused, match="because no host is"):
        plan(tmp_path, Wish(hosts="n1"), FLEET_LAUNCHER="ssh")


def test_the_allowed_spelling_is_the_one_that_counts(tmp_path: Path) -> None:
    assert chosen(tmp_path, Wish(hosts="N1"), FLEET_HOSTS="n1")[0][0] == "n1"


def test_user_and_port_of_a_host_belong_into_ssh_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="into ssh_config"):
        plan(tmp_path, Wish(hosts="n1"), FLEET_HOSTS="fleet@n1", FLEET_LAUNCHER="ssh")


def test_an_explicit_workspace_is_the_home_of_the_workers(tmp_path: Path) -> None:
    made = plan(tmp_path, Wish(env=(("A", "1"), ("HOME", "/own"))), FLEET_WORKSPACE="/w s")
    assert made.meta.env == {"HOME": "/own", "TMPDIR": "/w s/tmp", "A": "1"}
    assert made.meta.setup == ("mkdir -p -- '/w s/home' '/w s/tmp'",)


def test_without_a_workspace_home_is_left_alone(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert (made.meta.env, made.meta.setup) == ({}, ())


def test_interpreter_path_and_repo(tmp_path: Path) -> None:
    flags = {"venv": "/venv", "repo": "/repo"}
    made = plan(tmp_path, Wish(flags=flags))
    assert made.meta.python == "/venv/bin/python"
    assert made.meta.pythonpath[0] == "/repo"
    assert made.meta.setup == ('PATH=/venv/bin:"$PATH"; export PATH',)
    assert plan(tmp_path).meta.python == sys.executable
    assert plan(tmp_path, Wish(flags={"python": "python3.12"})).meta.python == "python3.12"


def test_names_that_the_wrapper_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--env FLEET_RUN is set by"):
        plan(tmp_path, Wish(env=(("FLEET_RUN", "x"),)))


def test_the_records_have_the_fields_that_scripts_know(tmp_path: Path) -> None:
    wish = Wish(functions=("a.b.c", "d:e"), experiment="exp", trial="t1")
    made = plan(tmp_path, wish, FLEET_HOSTS="n1")
    manifest: dict[str, Any] = json.loads(made.manifest.to_json())
    meta: dict[str, Any] = json.loads(made.meta.to_json())
    assert {k: manifest[k] for k in ("experiment_name", "trial_name", "run_id", "reward_fn")} == {
        "experiment_name": "exp", "trial_name": "t1", "run_id": "id1", "reward_fn": "a.b.c",
    }  # fmt: skip
    (worker,) = manifest["workers"]
    assert {"host": "n1", "shard": 0, "concurrency": 48}.items() <= worker.items()
    assert meta["root"] == str(tmp_path / "run")
    assert (meta["respawn"], meta["shard_count"], meta["launches"]) == (True, 1, {"n1": 1})


def test_a_root_is_made_private_with_the_marker_first(tmp_path: Path) -> None:
    made = plan(tmp_path)
    store = rundir.lay(made)
    root = tmp_path / "run"
    assert root.stat().st_mode & 0o7777 == 0o700
    assert (root / layout.MARKER).is_file()
    assert not (root / layout.MANIFEST).exists()
    rundir.publish(made, store)
    assert json.loads((root / layout.MANIFEST).read_text())["run_id"] == "id1"
    assert (root / "inbox" / "0").is_dir()


def test_a_start_that_was_overtaken_is_refused(tmp_path: Path) -> None:
    made = plan(tmp_path)
    rundir.publish(made, rundir.lay(made))
    with pytest.raises(Refused, match="was launched by another command meanwhile"):
        rundir.publish(made, rundir.lay(made))


def test_a_root_without_its_manifest_counts_launches_anew(tmp_path: Path) -> None:
    made = plan(tmp_path)
    store = rundir.lay(made)
    store.put(layout.LaunchToken("localhost", 5, "0" * 8).path, b"")
    rundir.publish(made, store)
    assert launches.numbers(store.scan(layout.CTL)) == {"localhost": 1}


def test_a_foreign_folder_is_not_taken_over(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    rundir.check_target(str(root), None)
    (root / "thesis.tex").touch()
    with pytest.raises(Refused, match=r"holds 'thesis\.tex' and is no run root"):
        rundir.check_target(str(root), None)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for root in (tmp_path / "f", tmp_path / "f" / "run"):
        with pytest.raises(UsageError, match="is there and is not a folder"):
            rundir.check_target(str(root), None)


def test_batches_in_shards_that_would_go_are_not_forgotten(tmp_path: Path) -> None:
    made = plan(tmp_path, Wish(hosts="n[1-3]"))
    store = rundir.lay(made)
    token = layout.Token(layout.batch_id("s", "0123456789ab", 1), 2)
    (tmp_path / "run" / layout.inbox_path(token)).touch()
    rundir.check_shards(store, 3)
    with pytest.raises(Refused, match="1 batches wait in shard 2"):
        rundir.check_shards(store, 2)


def test_shards_are_counted_from_the_highest() -> None:
    specs = [WorkerSpec("a", 4), WorkerSpec("b", 0)]
    assert [workers.count_shards(specs, n) for n in (None, 5, 9)] == [5, 5, 9]
