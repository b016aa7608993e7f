"""Start a worker on this host so that it lives on when the connection is cut.

The starter is told what really happened: the pids, or why not, within its time. A start that
cannot be confirmed in time is undone, so that nothing comes up later that nobody knows of.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from fsworker import bundled
from fsworker.errors import FleetError
from fsworker.host.logind import session_warnings
from fsworker.host.view import HostView, view
from fsworker.identity import end_tree
from fsworker.life import detach, hostlock, lifefiles
from fsworker.life.boundlog import BoundLog
from fsworker.life.lifetime import LIFE_FD_VARIABLE
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.launch import LaunchRequest

log = logging.getLogger("fsworker.host.start")

MARGIN = 1.0
"""Seconds of the starter's patience that are kept for the answer itself."""
ANOTHERS_PATIENCE = 3.0
"""Seconds to wait for the one that holds the lock to say who it is."""

NOT_PASSED_ON = ("FLEET_INCARNATION", LIFE_FD_VARIABLE, hostlock.LOCK_FD_VARIABLE)
"""What a start from inside a task would otherwise inherit, and then be ended with that worker."""


def start(request: Mapping[str, Any]) -> dict[str, Any]:
    """Perform it; returns the reply."""
    asked = LaunchRequest.parse(request)
    deadline = time.monotonic() + asked.wait - MARGIN
    seen = view(asked.root, asked.host)
    if seen.run_id is None:
        lifefiles.read_manifest(seen.store)  # says what is wrong with it
    env = _environment(asked, seen)
    report = (_start_wrapper if asked.respawn else _start_worker)(asked, env, deadline, seen)
    if report.get("code") == "already_running":
        report = _who_runs(asked, report, deadline)
    report.pop("exit", None)
    return {**report, "warnings": session_warnings()}


def _start_wrapper(
    asked: LaunchRequest, env: dict[str, str], deadline: float, seen: HostView
) -> dict[str, Any]:
    left = max(0.1, deadline - time.monotonic())
    argv = [*bundled.command("fsworker.respawn"), "--root", asked.root, "--host", asked.host]
    # Less for it than for us: its own word on what went wrong is better than our guess.
    argv += [
        "--launch",
        str(asked.launch),
        "--wait",
        f"{left * 0.8:.3f}",
        "--",
        *asked.worker_argv(bundled.command(python=asked.python)),
    ]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=env,
            cwd="/",
            timeout=left,
            check=False,
        )
        report: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        report = {"ok": False, "code": "failed", "message": "the wrapper did not report in time"}
    except ValueError:
        words = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        report = {"ok": False, "code": "failed", "message": f"the wrapper did not start: {words}"}
    if not report["ok"] and report.get("code") == "failed":
        _undo(asked, seen)
    return report


def _start_worker(
    asked: LaunchRequest, env: dict[str, str], deadline: float, seen: HostView
) -> dict[str, Any]:
    assert seen.run_id is not None
    try:
        hostlock.acquire(asked.root, seen.run_id, asked.host, hostlock.PATIENCE).close()
    except FleetError as error:
        return {"ok": False, "code": "already_running", "message": str(error)}
    wait = max(0.1, deadline - time.monotonic())
    answer = detach.run_detached(lambda fd: _become_worker(asked, env, fd), wait)
    lines = [json.loads(line) for line in answer.splitlines()]
    if not lines:
        _undo(asked, seen)
        return {"ok": False, "code": "failed", "message": "the worker did not start in time"}
    report: dict[str, Any] = lines[-1]
    return report


def _become_worker(asked: LaunchRequest, env: dict[str, str], report: int) -> int:
    """Turn this detached process into the worker; the report pipe closes when that has worked."""
    detach.point_to(BoundLog.of(Store(asked.root), asked.host, lifefiles.LOG).open(), (1, 2))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    _write(report, {"ok": True, "wrap_pid": None, "worker_pid": os.getpid()})
    argv = asked.worker_argv(bundled.command(python=asked.python))
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606  # no shell is the point
    except OSError as error:
        sentence = f"not started on {asked.host}: cannot run {argv[0]}: {error.strerror}"
        _write(report, {"ok": False, "code": "failed", "message": sentence})
    return 1


def _write(fd: int, fields: dict[str, Any]) -> None:
    try:
        os.write(fd, json.dumps(fields).encode() + b"\n")
    except OSError:
        pass  # the starter has given up; it undoes what it finds


def _undo(asked: LaunchRequest, seen: HostView) -> None:
    """End what this launch has begun: a launch number is used for one start only."""
    tokens = {**seen.tokens, "FLEET_LAUNCH": str(asked.launch)}
    for left in end_tree([], seen.place, tokens=tokens, grace=1.0, kill_patience=2.0):
        log.warning("pid %d of the failed start is left: %s", left.pid, left.state)


def _who_runs(asked: LaunchRequest, report: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Name the one that runs; it may have started a moment ago and not yet said so."""
    end = min(deadline, time.monotonic() + ANOTHERS_PATIENCE)
    while True:
        seen = view(asked.root, asked.host)
        who = seen.recorded
        if who and any(one and seen.lives(one) for one in (who.wrapper, who.worker)):
            pids = {"wrap_pid": who.wrapper, "worker_pid": who.worker}
            named = {key: one.pid for key, one in pids.items() if one and seen.lives(one)}
            return {**report, **named, "launch": who.launch}
        if time.monotonic() >= end or seen.lock_is_free():
            return report
        time.sleep(0.1)


def _environment(asked: LaunchRequest, seen: HostView) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
    env.update(asked.env)
    home = bundled.library()
    path = env.get("PYTHONPATH", "").split(os.pathsep) if env.get("PYTHONPATH") else []
    if home is not None and home not in path:
        # Run from a checkout or a bundle: the worker starts in / and would not find it.
        env["PYTHONPATH"] = os.pathsep.join([*path, home])
    launch = {"FLEET_LAUNCH": str(asked.launch), "FLEET_SHARD": str(asked.shard)}
    return {**env, **seen.tokens, **launch}
