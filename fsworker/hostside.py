"""What every launcher runs on a host: start, probe, stop or examine, and answer once.

    python -m fsworker.hostside '{"marker": …, "verb": "start", "root": …, "host": …, …}'

The reply is one JSON object between two marks that hold the request's marker, since a login shell
may print anything around it. Whatever goes wrong is a reply too (`ok` false, `code`, `message`): a
starter that gets none does not know what happened.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsworker import procfs
from fsworker.errors import FleetError
from fsworker.host.start import start
from fsworker.host.stop import stop
from fsworker.host.view import HostView, view
from fsworker.protocol.records.run import Identity


def main(argv: Sequence[str] | None = None) -> int:
    """Answer the request in the first argument; exit code 0 when the reply says ok."""
    args = sys.argv[1:] if argv is None else argv
    try:
        (text,) = args
        request = json.loads(text)
        marker = str(request["marker"])
    except (ValueError, TypeError, KeyError):
        print('usage: python -m fsworker.hostside \'{"marker": …, "verb": …}\'', file=sys.stderr)
        return 2
    reply = answer(request)
    sys.stdout.write(f"\n<BEGIN {marker}>{json.dumps(reply)}<END {marker}>\n")
    sys.stdout.flush()
    return 0 if reply["ok"] else 1


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Perform a request; every failure is a reply."""
    verb = str(request.get("verb"))
    if verb not in VERBS:
        return _failed(f"unknown verb {verb!r}: this host knows {', '.join(VERBS)}")
    missing = [name for name in ("root", "host") if not isinstance(request.get(name), str)]
    if missing:
        return _failed(f"the {verb} request has no {missing[0]}")
    try:
        return VERBS[verb](request)
    except (OSError, FleetError) as error:
        return _failed(str(error))
    except Exception as error:
        return _failed(f"{verb} failed unexpectedly: {type(error).__name__}: {error}")


def probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Say what is known of the wrapper, the worker and what has neither above it."""
    seen = view(request["root"], request["host"], request.get("identity"))
    us = {os.getpid(), *procfs.ancestors(os.getpid())}
    who = seen.asked or seen.recorded
    return {
        "ok": True,
        "boot_id": seen.place.boot_id,
        "launch": who.launch if who else None,
        "wrapper": _state(seen, who.wrapper if who else None, recorded=who is not None),
        "worker": _state(seen, who.worker if who else None, recorded=who is not None),
        "strays": sorted(one.pid for one in seen.strays() if one.pid not in us),
        "warnings": seen.warnings,
    }


def _state(seen: HostView, who: Identity | None, *, recorded: bool) -> dict[str, Any]:
    if who is None and recorded:
        return {"pid": None, "state": "dead"}  # this launch never had one
    return {"pid": who.pid if who else None, "state": seen.state(who)}


def _failed(message: str) -> dict[str, Any]:
    return {"ok": False, "code": "failed", "message": message}


def _examine(request: Mapping[str, Any]) -> dict[str, Any]:
    from fsworker.host.examine import examine  # lazily: the other verbs are in a hurry

    return examine(request)


VERBS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "start": start,
    "probe": probe,
    "stop": stop,
    "examine": _examine,
}

if __name__ == "__main__":
    sys.exit(main())
