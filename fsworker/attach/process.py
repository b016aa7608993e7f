"""The process that attaches: it knocks until it is let in or refused, and then is the wrapper."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace

from fsworker import bundled
from fsworker.attach import entry, rootside
from fsworker.attach.entry import Wish
from fsworker.errors import (
    Busy,
    FleetError,
    FormatError,
    NotRunning,
    Refused,
    StorageError,
    UsageError,
)
from fsworker.host.importable import why_not
from fsworker.life import lifefiles, wrapper
from fsworker.loop.leaving import FINISHED
from fsworker.protocol import layout, membership
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.member import Member
from fsworker.protocol.records.run import Manifest
from fsworker.protocol.records.slots import SlotTerms

log = logging.getLogger("fsworker.attach")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
TOKEN_VARIABLE = "FLEET_WORKER_TOKEN"  # noqa: S105  # the name of a variable
FINAL = (Refused, UsageError, FormatError, Busy)
"""Errors that no waiting will mend."""
_FINAL_CODES = frozenset(error.exit_code for error in FINAL)


@dataclass(frozen=True)
class Options:
    """How to attach; times are in seconds."""

    root: str
    wish: Wish
    python: str | None = None
    slots: SlotTerms = field(default_factory=SlotTerms)
    job_slots: int = 1
    cpus: int = 0
    memory_mb: int = 0
    max_idle: float = 0.0
    grace: float = 10.0
    term_grace: float = 0.0
    once: bool = False
    log_level: str = "INFO"


def attach(options: Options) -> int:
    """Join, serve, leave; the exit code. FleetError for a refusal."""
    os.environ.pop(TOKEN_VARIABLE, None)  # user code must not see it
    store = Store(options.root)
    try:
        member, manifest, lock = _knock(store, options)
    except rootside.Stopped as stopped:
        say(str(stopped))
        return 0
    where = f"shard {member.shard}, launch {member.launch}"
    say(f"attached to {manifest.run_id} as {member.host}: {where}")
    signal.pthread_sigmask(signal.SIG_BLOCK, wrapper.SIGNALS)
    reports: list[dict[str, object]] = []
    wanted = _wrapper_options(options, member)
    refused = None
    try:
        code = wrapper.live(wanted, reports.append, detached=False, lock=lock)
        if code in _FINAL_CODES:
            refused = rootside.refusal(store, member.host)
    finally:
        _vanish(store, member)
    if refused is None and not (reports and reports[0].get("ok")):
        refused = str(reports[0].get("message")) if reports else "it did not start"
    if refused is not None:
        failure = FleetError(refused)
        failure.exit_code = code or 1
        raise failure
    return 0 if code == FINISHED else code


def _vanish(store: Store, member: Member) -> None:
    try:
        rootside.vanish(store, member)
    except OSError as error:
        log.warning("the record of %s stays: %s", member.host, error)


def _knock(store: Store, options: Options) -> tuple[Member, Manifest, socket.socket]:
    """Join the run, however long that takes. Refused and its like are final."""
    pause, said = FIRST_PAUSE, ""
    known: dict[str, bytes | None] = {}
    while True:
        try:
            return _join(store, options, known)
        except FINAL:
            raise
        except (OSError, NotRunning, StorageError) as error:
            sentence = str(
                storage_error(error, "use", options.root) if isinstance(error, OSError) else error
            )
        if sentence != said:
            say(f"waiting: {sentence}")
        said = sentence
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _join(
    store: Store, options: Options, known: dict[str, bytes | None]
) -> tuple[Member, Manifest, socket.socket]:
    """One try. `known` holds, by name, the stop intent that the first try found."""
    wish = options.wish
    seen = rootside.look(store)
    entry.check_name(wish, seen.meta)
    token = None
    if wish.token is not None:
        now = store.server_time(layout.CTL)
        token = entry.check_token(
            wish, membership.read_token(store, entry.split(wish.token)[0]), now
        )
    wish = replace(wish, name=entry.spelled(wish, seen.meta, seen.members, token))
    if wish.name not in known:  # what came since an earlier try is meant for this process
        known[wish.name] = lifefiles.stop_intent(store, wish.name)
    last = rootside.last_launch(store, wish.name)
    member = entry.join(wish, seen.manifest, seen.meta, seen.members, token, last)
    _check_functions(seen.manifest, options)
    rootside.check_silent(store, wish.name)
    lock = rootside.lock(store, seen.manifest.run_id, wish.name)
    try:
        rootside.take_back(store, wish.name, requeued=_requeued())
        rootside.appear(store, member, known[wish.name])
    except BaseException:
        lock.close()
        raise
    return member, seen.manifest, lock


def _requeued() -> bool:
    """Whether a batch system ended an earlier worker of this name, and runs its job once more."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def _check_functions(manifest: Manifest, options: Options) -> None:
    if options.python and shutil.which(options.python) is None:
        raise UsageError(f"--python {options.python} is no program that can be run here")
    names = dict.fromkeys((manifest.reward_fn, *manifest.functions))
    if not options.wish.parallel:
        return  # it serves jobs alone
    for name, why in why_not(names, python=options.python).items():
        if why:
            raise Refused(f"this machine cannot serve {name}: {why}")


def _wrapper_options(options: Options, member: Member) -> wrapper.Options:
    request = LaunchRequest(
        options.root,
        member.launch,
        member.shard,
        member.concurrency,
        options.slots,
        python=options.python,
        log_level=options.log_level,
        host=member.host,
        job_slots=options.job_slots,
        labels=member.labels,
    )
    argv = request.worker_argv(bundled.command(python=options.python))
    said = {"--max-idle": options.max_idle, "--cpus": options.cpus, "--ram-mb": options.memory_mb}
    said |= {"--grace": options.grace, "--term-grace": options.term_grace}
    argv += [word for k, v in said.items() if v for word in (k, str(v))]
    argv += ["--once"] if options.once else []
    return wrapper.Options(
        options.root,
        member.host,
        member.launch,
        tuple(argv),
        final=_FINAL_CODES | {FINISHED},
        relay=wrapper.STOP_SIGNAL,
        program=bundled.archive(),
        tell=say,
    )


def say(sentence: str) -> None:
    """One line for whoever started this."""
    print(f"fsworker: {sentence}", file=sys.stderr, flush=True)
