"""The wrapper: keeps one worker of a host alive, for weeks, with nobody watching.

This process is what remains when everything else goes wrong, so it depends on nothing: standard
library only, everything imported before it detaches, and no error of the shared filesystem ends
it. It starts the worker, waits, buries what a dead worker left behind, and starts the next after
a pause that grows. It stops when it is told to, by signal or by the stop intent in `ctl/`, and
then as gently as the worker likes.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fsworker.errors import Busy, FleetError
from fsworker.identity import Left, Place, end_tree, identify
from fsworker.life import detach, hostlock, lifefiles
from fsworker.life.backoff import Backoff
from fsworker.life.boundlog import LIMIT, BoundHandler, BoundLog
from fsworker.life.lifetime import Life, be_subreaper, reap_children, spawn
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.run import HostIdentity

log = logging.getLogger("fsworker.life.wrapper")

STOP_SIGNAL = signal.SIGUSR1
"""Stop, however often it is said. TERM and INT mean the same the first time, KILL the second."""

IMPATIENT = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*IMPATIENT, STOP_SIGNAL, signal.SIGHUP, signal.SIGCHLD)
LEFTOVER_GRACE = 2.0
NO_FILE = 2
"""With what a Python ends that cannot open the file that it shall run."""


def _nobody(_: str) -> None:
    """Hears what is told where nobody looks on."""


Report = Callable[[dict[str, object]], None]
"""Tells the starter the outcome, once."""


@dataclass(frozen=True)
class Options:
    """What one wrapper is to do. Times are in seconds, `log_limit` in bytes."""

    root: str
    host: str
    launch: int
    argv: tuple[str, ...]
    poll: float = 2.0
    backoff: Backoff = field(default_factory=Backoff)
    log_limit: int = LIMIT
    final: frozenset[int] = frozenset()
    """Exit codes of a worker after which no life follows; they are the wrapper's own then."""
    relay: int = signal.SIGTERM
    """By what the worker is told to stop."""
    program: str | None = None
    """The file that workers run from. While it is gone an end with NO_FILE is not final."""
    tell: Callable[[str], None] = _nobody
    """Told what no report tells: that `program` is gone."""


class Wrapper:
    """The life of a wrapper: `run` returns when it was told to stop and the worker has ended."""

    def __init__(self, options: Options, run_id: str, lock: socket.socket) -> None:
        self._o, self._lock = options, lock
        self._store = Store(options.root)
        self._place = Place.here(options.host)
        self._env = _worker_env(options, hostlock.run_key(options.root, run_id))
        self._log = BoundLog.of(self._store, options.host, lifefiles.LOG, options.log_limit)
        self.own_log = BoundLog.of(self._store, options.host, lifefiles.WRAP_LOG, options.log_limit)
        me = identify(os.getpid(), self._place)
        self._who = HostIdentity(options.host, options.launch, me)
        self._files_due = False
        self._told = False
        self._impatience = 0
        self._next_look = 0.0
        self._troubles: dict[str, str] = {}

    def run(self, report: Report) -> int:
        """Keep a worker alive until told to stop; returns the exit code."""
        self._begin()
        self._look()
        life = None if self._told else self._start_life()
        if life is None:
            why = self._troubles.get("run the worker") or "a stop intent covers this launch"
            code = "stopped" if self._told else "failed"
            report({"ok": False, "code": code, "message": f"not started on {self._o.host}: {why}"})
            return 1
        report({"ok": True, "wrap_pid": os.getpid(), "worker_pid": life.pid})
        short_lives, ended = 0, 0
        while True:
            lived = self._see_through(life) if life else 0.0
            short_lives, pause = self._o.backoff.after(short_lives, lived)
            if life and life.code in self._o.final and not (life.code == NO_FILE and self._gone()):
                ended = life.code or 0
                break
            if self._told or not self._rest(pause):
                break
            life = self._start_life()
        self._leave()
        return ended

    def _begin(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for signum in SIGNALS:
            # An ignored SIGCHLD, inherited from our starter, would hide every end of a worker.
            signal.signal(signum, signal.SIG_DFL)
        handler = BoundHandler(self.own_log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        log.info("wrapper pid=%d host=%s launch=%d", os.getpid(), self._o.host, self._o.launch)
        if not be_subreaper():
            log.warning("orphans cannot be adopted: leftovers are found by environment only")

    def _gone(self) -> bool:
        """Whether the file that workers run from is not there, which is said once."""
        path = self._o.program
        if path is None or os.path.exists(path):
            return False
        sentence = f"cannot run the worker: {path} is gone; it is tried again until it is back"
        if self._note("run the worker", sentence):
            self._o.tell(sentence)
        return True

    def _start_life(self) -> Life | None:
        if self._gone():
            return None
        incarnation = layout.new_incarnation()
        try:
            life = spawn(
                self._o.argv, self._env, incarnation, self._log.open(), self._lock.fileno()
            )
        except OSError as error:
            self._note("run the worker", f"cannot run {self._o.argv[0]}: {error.strerror or error}")
            return None
        self._troubles.pop("run the worker", None)
        log.info("worker pid=%d incarnation=%s started", life.pid, incarnation)
        worker = identify(life.pid, self._place)
        self._who = HostIdentity(
            self._o.host, self._o.launch, self._who.wrapper, worker, incarnation
        )
        self._files_due = True
        self._publish()
        return life

    def _see_through(self, life: Life) -> float:
        """Wait for the end of a life, passing on what we are told; returns how long it was."""
        asked = killed = False
        while not life.reap():
            if self._told and not asked:
                name = signal.Signals(self._o.relay).name.removeprefix("SIG")
                log.info("stopping: %s to worker pid=%d, which may take its time", name, life.pid)
                life.signal(self._o.relay)
                asked = True
            elif self._impatience > 1 and not killed:
                log.warning("told again: KILL to worker pid=%d and all below it", life.pid)
                self._end_all(life, grace=0.0)
                killed = True
            else:
                self._listen(self._o.poll)
        log.info("worker pid=%d ended rc=%s after %.1f s", life.pid, life.code, life.lived)
        self._bury(life)
        return life.lived

    def _bury(self, life: Life) -> None:
        """End everything that the dead worker left behind, and its pid file, which now lies."""
        life.close()
        for left in self._end_all(life, LEFTOVER_GRACE):
            log.error("leftover pid=%d of %s is %s", left.pid, life.incarnation, left.state)
        reap_children()
        self._files_due = False
        self._try(
            "remove the pid file",
            lambda: lifefiles.withdraw(self._store, self._o.host, (life.pid,), (lifefiles.PID,)),
        )

    def _end_all(self, life: Life, grace: float) -> list[Left]:
        token = {"FLEET_INCARNATION": life.incarnation}
        return end_tree([], self._place, tokens=token, grace=grace, below=[os.getpid()])

    def _rest(self, pause: float) -> bool:
        """Wait for the next life; False if told to stop meanwhile."""
        log.info("next life in %.3g s", pause)
        end = time.monotonic() + pause
        while not self._told and (left := end - time.monotonic()) > 0:
            self._listen(left)
            reap_children()
        self._look()
        return not self._told

    def _listen(self, seconds: float) -> None:
        """Wait for a signal, for `seconds` at most, and look at `ctl/` when it is time."""
        wait = max(0.0, min(seconds, self._next_look - time.monotonic()))
        info = signal.sigtimedwait(SIGNALS, wait)
        if info and info.si_signo in (*IMPATIENT, STOP_SIGNAL):
            log.info("got %s", signal.Signals(info.si_signo).name)
            self._told = True
            self._impatience += info.si_signo in IMPATIENT
        if time.monotonic() >= self._next_look:
            self._look()

    def _look(self) -> None:
        """See the stop intent, write pid files that could not be written before, bound the logs."""
        self._next_look = time.monotonic() + self._o.poll
        self._try("read ctl/", self._look_at_ctl)
        if self._files_due:
            self._publish()
        self._log.tend()
        self.own_log.tend()

    def _look_at_ctl(self) -> None:
        present = self._store.scan(layout.CTL)
        if not self._told and lifefiles.stop_wanted(
            self._store, self._o.host, self._o.launch, present
        ):
            log.info("a stop intent covers launch %d", self._o.launch)
            self._told = True

    def _publish(self) -> None:
        if self._try("write pid files", lambda: lifefiles.publish(self._store, self._who)):
            self._files_due = False

    def _leave(self) -> None:
        pids = [who.pid for who in (self._who.wrapper, self._who.worker) if who]
        self._try("remove pid files", lambda: lifefiles.withdraw(self._store, self._o.host, pids))
        log.info("wrapper pid=%d stopped", os.getpid())

    def _try(self, what: str, act: Callable[[], None]) -> bool:
        """Do what touches the shared filesystem; its errors are said and survived."""
        try:
            act()
        except (OSError, FleetError) as error:
            self._note(what, f"cannot {what}: {error}")
            return False
        self._troubles.pop(what, None)
        return True

    def _note(self, what: str, sentence: str) -> bool:
        """Log trouble when it changes, not every two seconds of a long outage; whether it did."""
        changed = self._troubles.get(what) != sentence
        if changed:
            log.warning("%s", sentence)
        self._troubles[what] = sentence
        return changed


def live(
    options: Options, report: Report, *, detached: bool, lock: socket.socket | None = None
) -> int:
    """Take the lock, unless it is given, and be the wrapper.

    What prevents it is reported, and is the exit code.
    """
    try:
        run_id = lifefiles.read_manifest(Store(options.root)).run_id
        if lock is None:
            lock = hostlock.acquire(options.root, run_id, options.host, hostlock.PATIENCE)
        wrapper = Wrapper(options, run_id, lock)
    except (OSError, FleetError) as error:
        code = "already_running" if isinstance(error, Busy) else "failed"
        exit_code = error.exit_code if isinstance(error, FleetError) else 1
        report({"ok": False, "code": code, "message": str(error), "exit": exit_code})
        return exit_code
    if detached:
        detach.point_to(wrapper.own_log.open(), (1, 2))
    with lock:
        return wrapper.run(report)


def _worker_env(options: Options, run_key: str) -> dict[str, str]:
    env = {
        **os.environ,
        "FLEET_RUN": run_key,
        "FLEET_HOST": options.host,
        "FLEET_LAUNCH": str(options.launch),
    }
    if "--shard" in options.argv[:-1]:
        env["FLEET_SHARD"] = options.argv[options.argv.index("--shard") + 1]
    return env
