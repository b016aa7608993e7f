"""Have hosts examine themselves, all at once, while this side answers them over the filesystem."""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fsworker
from ctl.doctor import drifting
from ctl.doctor.checks import FAIL, Check, Here, judge
from ctl.drift.compare import Member
from ctl.fleet import fan_out
from ctl.launchers.base import Launcher
from ctl.launchers.errors import LaunchError
from fsworker.digest import package_digest
from fsworker.errors import FleetError
from fsworker.protocol.fsops import Store, storage_error

CALL, ANSWER = "call~", "answer~"
LOOK_EVERY = 0.02
NEEDED = ("click", "msgpack")


@dataclass(frozen=True)
class Patient:
    """What is examined: a folder on the shared filesystem, and functions that hosts must know."""

    store: Store
    functions: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    below: str = ""
    """The folder under the root in which the trials are made."""
    running: Mapping[str, Member] = field(default_factory=dict)
    """What the workers of a run say of the code that they run."""

    def request(self, folder: str) -> dict[str, Any]:
        """What each host is asked; `folder` under the root is for trials."""
        asked = {"root": self.store.root, "folder": folder}
        return {**asked, "functions": list(self.functions), "env": dict(self.env)}


def examine(
    patient: Patient, launcher: Launcher, hosts: Sequence[str], width: int
) -> dict[str, list[Check]]:
    """The lines about each host. StorageError when this side cannot write to the root."""
    here = Here(
        fsworker.__version__, package_digest(), platform.python_version(), width, _packages()
    )
    with _trials(patient) as folder, _answering(patient.store, folder):
        outcomes = fan_out(
            hosts,
            lambda h: launcher.examine(h, patient.request(folder)),
            width=width,
        )
    found = {}
    for outcome in outcomes:
        if outcome.value is not None:
            found[outcome.host] = judge(outcome.value, outcome.seconds, here)
        else:
            found[outcome.host] = [_unreached(outcome.error)]
    facts = {o.host: o.value for o in outcomes if o.value is not None}
    for host, checks in drifting.judge(facts, patient.running).items():
        found[host] += checks
    return found


def _packages() -> dict[str, str]:
    """The head's versions of what workers import."""
    return {name: importlib.metadata.version(name) for name in NEEDED}


def _unreached(error: BaseException | None) -> Check:
    stage = error.stage if isinstance(error, LaunchError) else "examine"
    advice = {
        "connect": "is the host up, and its name right? try ssh HOST true",
        "banner": "is sshd overloaded (MaxStartups)?",
        "auth": "try ssh -o BatchMode=yes HOST true",
        "reply": "is shardfleet installed there, for the python of the run?",
    }.get(stage, "")
    known = error.action if isinstance(error, LaunchError) else None
    return Check(FAIL, stage, str(error), known or advice)


@contextmanager
def _trials(patient: Patient) -> Iterator[str]:
    """A folder that this side made and that is gone afterwards."""
    store = patient.store
    name = f".doctor~{secrets.token_hex(6)}"
    folder = f"{patient.below}/{name}" if patient.below else name
    try:
        store.mkdir(folder)
    except OSError as error:
        raise storage_error(error, "write to", store.path(patient.below)) from None
    try:
        yield folder
    finally:
        _clear(store, folder)


def _clear(store: Store, folder: str) -> None:
    """Remove what the trials left; what cannot be removed is hidden, and `cleanup` takes it."""
    try:
        for name in store.scan(folder):
            path = f"{folder}/{name}"
            if name.startswith(("one~", "two~")):
                _clear(store, path)
            else:
                store.remove_quietly(path)
        store.rmdir(folder)
    except OSError:
        pass


@contextmanager
def _answering(store: Store, folder: str) -> Iterator[None]:
    """Answer each host's call as soon as it is seen."""
    over = threading.Event()

    def answer() -> None:
        answered: set[str] = set()
        while not over.wait(LOOK_EVERY):
            try:
                calls = {n.removeprefix(CALL) for n in store.scan(folder) if n.startswith(CALL)}
                for host in calls - answered:
                    store.publish(f"{folder}/{ANSWER}{host}", b"", durable=False)
                    answered.add(host)
            except OSError:
                continue  # the host's measurement will say that it got no answer

    thread = threading.Thread(target=answer, name="doctor-answers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5.0)


def summary(found: dict[str, list[Check]]) -> FleetError | None:
    """What ends the command when something fails."""
    failed = [h for h, checks in found.items() if any(c.level == FAIL for c in checks)]
    if not failed:
        return None
    return FleetError(f"{len(failed)} of {len(found)} hosts are not fit: {', '.join(failed[:8])}")
