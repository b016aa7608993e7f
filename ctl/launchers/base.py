"""The interface of every launcher, and all of it that is not transport.

A launcher starts, probes and stops the worker of one host. How a host is reached differs; what is
said to it does not, or else each new launcher would bring its own quoting, its own time-outs and
its own idea of what a refusal looks like. So a launcher is `run_script` and little more.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from ctl.bundle.terms import runs_from
from ctl.hostterms import setup_for
from ctl.launchers import replies, script
from ctl.launchers.errors import ALREADY_RUNNING, LaunchError, no_reply
from ctl.launchers.replies import ProcessState
from fsworker.errors import Refused
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.launch import LaunchRequest
from fsworker.protocol.records.run import HostIdentity

log = logging.getLogger(__name__)

START, PROBE, STOP, EXAMINE = "start", "probe", "stop", "examine"


@dataclass(frozen=True, slots=True)
class Started:
    """A worker that runs. `adopted`: an earlier try of this same launch had started it."""

    wrap_pid: int | None
    worker_pid: int | None
    warnings: tuple[str, ...] = ()
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """What a host says about the processes of `launch`; `strays` are pids without a parent."""

    boot_id: str
    wrapper: ProcessState
    worker: ProcessState
    launch: int | None = None
    strays: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop achieved; `left` are the processes that did not end."""

    was_running: bool
    left: tuple[ProcessState, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Upper bounds in seconds.

    `connect` bounds everything before the command; a stop may take its grace and `stop_extra`;
    for `retry` a failure that tends to pass is tried again.
    """

    connect: float = 20.0
    start: float = 60.0
    command: float = 120.0
    stop_extra: float = 30.0
    retry: float = 40.0


class Launcher(Protocol):
    """What the controller needs. `verbs` names the ones of start, probe, stop that are there."""

    name: ClassVar[str]
    verbs: frozenset[str]

    def start(self, host: str, request: LaunchRequest) -> Started:
        """Start the host's worker; returns once it runs."""

    def probe(self, host: str, root: str, identity: HostIdentity | None = None) -> Probe:
        """Ask which of the host's processes are there; with `identity` about exactly those."""

    def stop(
        self, host: str, root: str, launch: int, *, grace: float, kill_after: float | None = None
    ) -> Stopped:
        """End launch `launch` and those before; never by KILL unless `kill_after` is given."""

    def examine(self, host: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the host measures of itself; see `fsworker.host.examine`."""

    def unlock(self, hosts: Iterable[str], ask: Callable[[str], str | None]) -> None:
        """Ask a person now for all secrets that reaching these hosts will need."""

    def close(self) -> None:
        """Let go of every connection."""


Sink = Callable[[bytes], bool]
"""Takes what the host prints; true once the rest does not matter."""


class ScriptLauncher:
    """A launcher over anything that can run a shell script on a host.

    Safe to use from many threads at once.
    """

    name: ClassVar[str]
    verbs: frozenset[str] = frozenset({START, PROBE, STOP, EXAMINE})

    def __init__(
        self,
        *,
        python: str,
        pythonpath: tuple[str, ...] = (),
        setup: tuple[str, ...] = (),
        timeouts: Timeouts | None = None,
        terms: Mapping[str, HostTerms] | None = None,
        bundle: str | None = None,
        from_bundle: bool = False,
    ) -> None:
        self.python = python
        self._bundle, self._from_bundle = bundle, from_bundle
        self.pythonpath = pythonpath
        self.setup = setup
        self._terms = dict(terms or {})
        self.timeouts = timeouts or Timeouts()
        self._closing = threading.Event()

    def run_script(self, host: str, body: bytes, sink: Sink, timeout: float) -> int | None:
        """Run `/bin/sh -s` on `host` with `body` as its input, at most `timeout` seconds.

        All that it prints goes to `sink`. Returns the exit status, or None when there is none,
        which is normal once the sink has had enough. Raises LaunchError.
        """
        raise NotImplementedError

    def unlock(self, hosts: Iterable[str], ask: Callable[[str], str | None]) -> None:
        """Nothing has to be asked."""

    def terms(self, host: str) -> HostTerms:
        """What holds for this host only."""
        return self._terms.get(host, HostTerms())

    def bundle(self, host: str) -> str | None:
        """The file that the host runs from; None where the package is installed."""
        return self._bundle if runs_from(self._terms.get(host), self._from_bundle) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of every connection; a call that waits to try again gives up."""
        self._closing.set()

    def start(self, host: str, request: LaunchRequest) -> Started:
        """Start the host's worker; returns once it runs."""
        python = request.python or self.terms(host).python or self.python
        asked = {**asdict(request), "python": python}
        reply = self._ask(host, START, asked, self.timeouts.start)
        # A first try may have taken effect although its answer was lost. The launch number is
        # new for every start, so the same number is the same start.
        again = reply.get("code") == ALREADY_RUNNING and reply.get("launch") == request.launch
        if not reply["ok"] and not again:
            raise replies.refusal(host, START, reply)
        return Started(
            replies.pid(reply.get("wrap_pid")),
            replies.pid(reply.get("worker_pid")),
            replies.sentences(reply.get("warnings")),
            adopted=again,
        )

    def probe(self, host: str, root: str, identity: HostIdentity | None = None) -> Probe:
        """Ask which of the host's processes are there; with `identity` about exactly those."""
        known = json.loads(identity.to_json()) if identity else None
        reply = self._ask(host, PROBE, {"root": root, "identity": known}, self.timeouts.command)
        if not reply["ok"]:
            raise replies.refusal(host, PROBE, reply)
        return Probe(
            str(reply.get("boot_id", "")),
            replies.state(reply.get("wrapper")),
            replies.state(reply.get("worker")),
            replies.pid(reply.get("launch")),
            tuple(p for p in map(replies.pid, reply.get("strays") or ()) if p),
            replies.sentences(reply.get("warnings")),
        )

    def stop(
        self, host: str, root: str, launch: int, *, grace: float, kill_after: float | None = None
    ) -> Stopped:
        """End launch `launch` and those before; never by KILL unless `kill_after` is given."""
        asked = {"root": root, "launch": launch, "grace": grace, "kill_after": kill_after}
        patience = max(grace, kill_after or 0.0) + self.timeouts.stop_extra
        reply = self._ask(host, STOP, asked, patience)
        if not reply["ok"]:
            raise replies.refusal(host, STOP, reply)
        left = tuple(replies.state(item) for item in reply.get("left") or ())
        warnings = replies.sentences(reply.get("warnings"))
        return Stopped(bool(reply.get("was_running")), left, warnings)

    def examine(self, host: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the host measures of itself; see `fsworker.host.examine`."""
        reply = self._ask(host, EXAMINE, asked, self.timeouts.command)
        if not reply["ok"]:
            raise replies.refusal(host, EXAMINE, reply)
        return reply

    def _ask(
        self, host: str, verb: str, fields: Mapping[str, Any], budget: float
    ) -> dict[str, Any]:
        if verb not in self.verbs:
            raise Refused(f"the launcher {self.name!r} cannot {verb} a worker", host=host)
        begun = time.monotonic()
        for tries in itertools.count(1):
            left = begun + budget - time.monotonic()
            try:
                return self._ask_once(host, {**fields, "verb": verb, "host": host}, left)
            except LaunchError as error:
                pause = _pause(tries)
                spent = time.monotonic() - begun + pause
                if not error.worth_retrying or spent > min(budget, self.timeouts.retry):
                    raise
                log.info("%s; try %d of %s follows in %.1f s", error, tries + 1, verb, pause)
                if self._closing.wait(pause):
                    raise
        raise AssertionError("unreachable")

    def _ask_once(self, host: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        marker = secrets.token_hex(8)
        terms = self.terms(host)
        python = terms.python or self.python
        bundle = self.bundle(host)
        body = script.build(
            {**request, "marker": marker},
            python=python,
            pythonpath=self.pythonpath,
            setup=setup_for(self.setup, terms),
            bundle=bundle,
        )
        reader = script.ReplyReader(marker)
        try:
            status = self.run_script(host, body, reader.feed, timeout)
        except LaunchError as error:
            raise error.with_words(reader.words()) from error.__cause__
        if reader.heard:
            log.debug("host %s printed besides its reply: %s", host, reader.heard)
        if reader.reply is None:
            raise no_reply(host, reader, status, python, bundle)
        return replies.parse(host, reader.reply)


def _pause(tries: int) -> float:
    # Jitter, because those who were turned away together would come back together.
    return random.uniform(0.3, 1.0) * min(4.0, 0.25 * float(2**tries))  # noqa: S311  # no secret
