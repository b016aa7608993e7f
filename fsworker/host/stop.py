"""Stop the processes of a run on this host: gently, completely, and nobody else's.

The topmost process gets TERM and ends those below it in its own way: the wrapper drains its
worker, the worker its slots. What loses its parent on the way becomes topmost and gets its turn.
KILL comes only when it was asked for. What is left is named, with its state.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from fsworker.errors import FleetError, UnknownState
from fsworker.host.view import HostView, view
from fsworker.identity import Hunt
from fsworker.life import lifefiles
from fsworker.life.wrapper import STOP_SIGNAL
from fsworker.protocol.records.run import Identity

KILL_PATIENCE = 10.0
"""Seconds until a killed process must be gone; in state D it may take for ever."""


def stop(request: Mapping[str, Any]) -> dict[str, Any]:
    """Perform it; returns the reply."""
    covers = request.get("launch")
    grace, kill_after = float(request.get("grace", 60.0)), request.get("kill_after")
    seen = view(str(request["root"]), str(request["host"]))
    if seen.run_id is None and seen.recorded is None:
        raise UnknownState("; ".join(seen.warnings), path=seen.store.root, host=seen.place.host)
    roles = _recorded(seen, covers)
    hunt = Hunt(seen.place, roles, seek=lambda: seen.members(covers))
    was_running = bool(hunt.look())
    patience = grace if kill_after is None else max(0.0, float(kill_after))
    # Not TERM to the wrapper: asked twice, by a stop that is repeated, it would kill.
    gently = {who: STOP_SIGNAL for who, role in roles.items() if role == "wrapper"}
    living = hunt.pursue(signal.SIGTERM, patience, tops_only=True, instead=gently)
    if living and kill_after is not None:
        hunt.pursue(signal.SIGKILL, KILL_PATIENCE)
    names = {who.pid: role for who, role in roles.items()}
    left = [
        {"pid": one.pid, "role": names.get(one.pid, "stray"), "state": one.state}
        for one in hunt.left()
    ]
    left = left or _unseen(seen, covers)
    if not left:
        _tidy(seen)
    return {"ok": True, "was_running": was_running, "left": left, "warnings": seen.warnings}


def _unseen(seen: HostView, covers: int | None) -> list[dict[str, Any]]:
    """What still holds the lock although nothing of it is in sight, as in another container."""
    who = seen.recorded
    if not seen.lock_is_held() or (who and covers is not None and who.launch > covers):
        return []
    pid = who.wrapper.pid if who and who.wrapper else None
    return [{"pid": pid, "role": "wrapper", "state": "unknown"}]


def _recorded(seen: HostView, covers: int | None) -> dict[Identity, str]:
    """The recorded wrapper and worker that this stop means and that are proven to run."""
    who = seen.recorded
    if who is None:
        return {}
    if covers is not None and who.launch > covers:
        seen.warnings.append(f"launch {who.launch} runs, which this stop does not cover")
        return {}
    both = ((who.wrapper, "wrapper"), (who.worker, "worker"))
    return {one: role for one, role in both if one and seen.lives(one)}


def _tidy(seen: HostView) -> None:
    """Remove the pid files of those that could not do it themselves, because they were killed."""
    who = seen.recorded
    if who is None or not seen.lock_is_free():
        return
    pids = [one.pid for one in (who.wrapper, who.worker) if one]
    try:
        lifefiles.withdraw(seen.store, seen.place.host, pids)
    except (OSError, FleetError) as error:
        seen.warnings.append(f"the pid files could not be removed: {error}")
