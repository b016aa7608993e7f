"""Which worker runs on which host, for which shard, with how many slots.

A list that is wrong here starts too much, too little, or on the wrong machine, so every entry is
checked by itself and the sentence names the entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ctl import slotterms
from ctl.hosts import Allowed, Host, names_of
from fsworker.errors import UsageError
from fsworker.protocol.records.run import MOST_SLOTS, WorkerSpec

MOST_SHARDS = 10_000
"""Each is a folder that every idle worker lists."""


def choose_workers(
    workers_json: str | None,
    hosts: str | None,
    shard_count: int | None,
    allowed: Allowed,
    usual: WorkerSpec,
    launcher: str,
) -> tuple[WorkerSpec, ...]:
    """The workers that were asked for, on hosts that are allowed, each host once.

    They are as `usual`, but for host and shard, where nothing else is said.
    """
    if usual.concurrency > MOST_SLOTS:
        raise UsageError(f"--concurrency must be {MOST_SLOTS} at most, not {usual.concurrency}")
    if usual.job_slots > MOST_SLOTS:
        raise UsageError(f"--job-slots must be {MOST_SLOTS} at most, not {usual.job_slots}")
    if launcher == "slurm":
        if workers_json or hosts:
            raise UsageError("--launcher slurm chooses hosts itself: give --nodes instead")
        return ()
    if workers_json and hosts:
        raise UsageError("--workers-json and --hosts both say where workers run: give one of them")
    if workers_json:
        found = parse_workers(workers_json, usual)
    else:
        names = _names(hosts, allowed, launcher)
        # Hosts beyond a given count share shards; without one, or by default, each has its own.
        turn = shard_count if hosts and shard_count else len(names)
        check_slots(usual, "--concurrency and --job-slots")
        found = [replace(usual, host=name, shard=i % turn) for i, name in enumerate(names)]
    return tuple(_allowed_once(found, allowed, launcher))


def _names(hosts: str | None, allowed: Allowed, launcher: str) -> list[str]:
    if hosts is not None:
        names = names_of(hosts)
        if not names:
            raise UsageError("--hosts names no host")
        return names
    if len(allowed):
        return allowed.names
    if launcher == "local":
        return ["localhost"]
    raise UsageError("no host is named: give --hosts or --workers-json, or set FLEET_HOSTS")


def _allowed_once(
    found: Iterable[WorkerSpec], allowed: Allowed, launcher: str
) -> Iterable[WorkerSpec]:
    seen: set[str] = set()
    for worker in found:
        key = Host(worker.host).key
        if key in seen:
            raise UsageError(f"host {worker.host!r} is named twice: give it one worker")
        seen.add(key)
        _check_places(worker)
        if launcher == "local" and not len(allowed):
            yield worker  # contacts nobody: without a list, the name is only a label
            continue
        host = allowed.check(worker.host)
        if launcher == "ssh" and (host.user or host.port):
            raise UsageError(
                f"{host.where}: write user and port of host {host.name!r} into ssh_config "
                f"(Host {host.name}, User …, Port …), and only the name here",
                host=host.name,
            )
        yield replace(worker, host=host.name)


def parse_workers(text: str, usual: WorkerSpec) -> list[WorkerSpec]:
    """Workers from JSON text, or from the file that `text` names."""
    source = "--workers-json"
    if not text.lstrip().startswith(("[", "{")):
        source, text = text, _read(text)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not valid JSON: {error}") from None
    if not isinstance(items, list) or not items:
        raise UsageError(f"{source} must be a list of workers, with at least one")
    return [_worker(item, i, source, usual) for i, item in enumerate(items)]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--workers-json: cannot read {path!r}: {reason}", path=path) from None


def _worker(item: Any, index: int, source: str, usual: WorkerSpec) -> WorkerSpec:
    where = f"{source}: worker {index}"
    if not isinstance(item, dict):
        raise UsageError(f"{where} must be an object with host and shard, not {item!r:.60}")
    host = item.get("host")
    if not isinstance(host, str):
        raise UsageError(f"{where}: field 'host' must be a text, not {host!r:.60}")
    names = names_of(host, where)
    if len(names) != 1:
        raise UsageError(f"{where}: field 'host' must be one host, not {host!r}")
    shard = _number(item.get("shard", index), f"{where}: field 'shard'", 0)
    given = item.get("concurrency", usual.concurrency)
    slots = _number(given, f"{where}: field 'concurrency'", 0)
    if slots > MOST_SLOTS:
        raise UsageError(f"{where}: field 'concurrency' must be {MOST_SLOTS} at most, not {slots}")
    jobs = _number(item.get("job_slots", usual.job_slots), f"{where}: field 'job_slots'", 0)
    terms = slotterms.own(item, where, usual.slots)
    return check_slots(WorkerSpec(names[0], shard, slots, terms, jobs), where)


def check_slots(worker: WorkerSpec, where: str) -> WorkerSpec:
    """`worker`, when it has anything to do; UsageError names where that was said."""
    if worker.concurrency or worker.job_slots:
        return worker
    raise UsageError(f"{where}: a worker needs slots (concurrency) or job slots: give it some")


def _check_places(worker: WorkerSpec) -> None:
    places = worker.concurrency * worker.slots.coroutines
    if places > MOST_SLOTS:
        raise UsageError(
            f"host {worker.host!r}: {worker.concurrency} slots of {worker.slots.coroutines} "
            f"coroutines are more than {MOST_SLOTS}: lower --concurrency or --slot-async",
            host=worker.host,
        )


def _number(value: Any, what: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise UsageError(f"{what} must be a whole number from {least} up, not {value!r:.60}")
    return value


def count_shards(workers: Sequence[WorkerSpec], given: int | None) -> int:
    """How many shards the inbox has; every worker's home must be one of them."""
    if not workers:  # they come by themselves
        return given or 1
    highest = max(workers, key=lambda w: w.shard)
    if given is not None and highest.shard >= given:
        raise UsageError(
            f"host {highest.host!r} has shard {highest.shard}, but there are {given} shards "
            f"(0 to {given - 1}): raise --shard-count or lower the shard",
            host=highest.host,
        )
    count = given if given is not None else highest.shard + 1
    if count > MOST_SHARDS:
        raise UsageError(
            f"{count} shards are more than {MOST_SHARDS}: lower --shard-count, or the highest shard"
        )
    return count
