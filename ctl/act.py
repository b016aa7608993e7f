"""What a watcher does on hosts, each act in a thread of its own and with a bound of its own.

A host that does not answer may take two minutes to say so, and a sweep must not wait for it. So an
act is handed out, at most one for each host and a bounded number in all, and what came of it is
collected at a later sweep. The threads touch nothing but the launcher: everything that is known
goes in with the act and everything that was learned comes out as a `Done`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ctl.decide import Action, Do
from ctl.health import Finding, Found
from ctl.launchers.base import Launcher, Probe, Stopped
from ctl.launchers.errors import LaunchError
from fsworker.errors import FleetError
from fsworker.identity import PROVABLY_DEAD
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import HostIdentity

log = logging.getLogger("ctl.act")

WIDTH = 32


@dataclass(frozen=True, slots=True)
class Subject:
    """What an act is about: the beat and launch that were known when it was decided."""

    root: str
    key: tuple[str, int]
    launch: int
    respawn: bool = True


@dataclass(frozen=True, slots=True)
class Done:
    """What came of an act. `finding` is None when it did what it should, or for a start."""

    action: Action
    launch: int
    finding: Finding | None = None
    error: str = ""
    warnings: tuple[str, ...] = ()


Work = Callable[[], Done]


class Hands:
    """Acts that are being done: one a host, `width` at once, the rest in the order they came."""

    def __init__(self, width: int = WIDTH, notify: Callable[[], None] | None = None) -> None:
        self._width = width
        self._notify = notify or (lambda: None)
        self._waiting: deque[tuple[str, Work]] = deque()
        self._running: set[str] = set()
        self._done: queue.SimpleQueue[tuple[str, Done]] = queue.SimpleQueue()

    @property
    def busy(self) -> frozenset[str]:
        """The hosts for which something is being done or waits to be."""
        return frozenset(self._running) | {host for host, _ in self._waiting}

    @property
    def idle(self) -> bool:
        """Whether everything that was handed out is done, though perhaps not yet collected."""
        return not self._waiting and self._done.qsize() >= len(self._running)

    def give(self, host: str, work: Work) -> None:
        """Hand out an act; `work` must not raise."""
        self._waiting.append((host, work))
        self._staff()

    def collect(self) -> list[Done]:
        """What was done since the last time."""
        found = []
        while True:
            try:
                host, done = self._done.get_nowait()
            except queue.Empty:
                break
            self._running.discard(host)
            found.append(done)
        self._staff()
        return found

    def drop_waiting(self) -> None:
        """Forget what was not begun."""
        self._waiting.clear()

    def _staff(self) -> None:
        while self._waiting and len(self._running) < self._width:
            host, work = self._waiting.popleft()
            thread = threading.Thread(
                target=self._serve, args=(host, work), name=f"act-{host}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads: later then
                log.warning("no thread for host %s: %s", host, error)
                self._waiting.appendleft((host, work))
                return
            self._running.add(host)

    def _serve(self, host: str, work: Work) -> None:
        self._done.put((host, work()))
        self._notify()


def probe(
    launcher: Launcher, action: Action, about: Subject, identity: HostIdentity | None
) -> Done:
    """Ask the host what is there of the processes that its record names."""
    life = (identity.incarnation if identity else None) or ""
    try:
        answer = launcher.probe(action.host, about.root, identity)
    except Exception as error:
        return _failed(action, about, error)
    found, words = classify(answer, about.respawn)
    finding = Finding(found, about.key, about.launch, action.silent, words, life)
    return Done(action, about.launch, finding, warnings=answer.warnings)


def classify(answer: Probe, respawn: bool) -> tuple[Found, str]:
    """What a probe's answer means, and what to say about it."""
    wrapper, worker = answer.wrapper.state, answer.worker.state
    if "unknown" in (wrapper, worker):
        return (
            Found.UNREACHABLE,
            "its processes cannot be seen from there: another boot or pid space",
        )
    for role, process in (("wrapper", answer.wrapper), ("worker", answer.worker)):
        if process.state == "stuck":
            return Found.STUCK, f"{role} pid {process.pid} is in state D and cannot be ended"
    gone = wrapper in PROVABLY_DEAD
    if worker in PROVABLY_DEAD:
        text = f"worker pid {answer.worker.pid} is {_state_words(worker)}"
        if answer.worker.pid is None:
            text = "no worker is there"
        return (Found.DEAD, text) if gone else (Found.BETWEEN, "")
    text = f"worker pid {answer.worker.pid} is there"
    if gone and respawn:
        return Found.BARE, f"{text}, its wrapper is {_state_words(wrapper)}"
    return Found.ALIVE, text


def start(launcher: Launcher, action: Action, about: Subject, request: LaunchRequest) -> Done:
    """Start the host's worker. That one runs already is as good."""
    try:
        started = launcher.start(action.host, request)
    except LaunchError as error:
        if error.not_ours:
            return Done(action, about.launch, warnings=(str(error),))
        return _failed(action, about, error)
    except Exception as error:
        return _failed(action, about, error)
    return Done(action, about.launch, warnings=started.warnings)


def stop(launcher: Launcher, action: Action, about: Subject, covers: int, grace: float) -> Done:
    """End every launch up to `covers`: TERM, after `grace` KILL; what is left is the finding."""
    try:
        answer = launcher.stop(action.host, about.root, covers, grace=grace, kill_after=grace)
    except Exception as error:
        return _failed(action, about, error)
    return Done(action, about.launch, _left(action, about, answer), warnings=answer.warnings)


def _left(action: Action, about: Subject, answer: Stopped) -> Finding | None:
    if not answer.left:
        return None
    names = ", ".join(f"{p.role or 'process'} pid {p.pid} ({p.state})" for p in answer.left)
    words = f"cannot be ended: {names}"
    return Finding(Found.STUCK, about.key, about.launch, action.silent, words)


def _failed(action: Action, about: Subject, error: Exception) -> Done:
    """The host could not be asked, or would not: with its own words if it said no."""
    found, words = Found.UNREACHABLE, str(error)
    if isinstance(error, LaunchError):
        words = f"{error.stage}: {error}"
        if error.denied:
            found, words = Found.DENIED, error.denied
        elif error.stage == "command" and error.code and action.do is Do.RESTART:
            found = Found.DEAD  # the host side answered: nothing runs, and the start failed
    elif not isinstance(error, FleetError):
        log.exception("%s of host %s failed unexpectedly", action.do, action.host)
    finding = Finding(found, about.key, about.launch, action.silent, words)
    return Done(action, about.launch, finding, error=str(error))


def _state_words(state: str) -> str:
    return {"other": "another process by now", "zombie": "a zombie"}.get(state, "dead")
