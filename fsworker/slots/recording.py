"""Arguments on their way into a call, and what becomes of its value: the same in every slot."""

from __future__ import annotations

import os
from typing import Any

from fsworker import outcomes
from fsworker.protocol import packing
from fsworker.slots import wire as slot_wire


def fetched(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with what was sent in files of its own. Raises ValueError."""
    from fsworker import blob  # seldom needed, and not free

    return blob.fetch_all(os.environ.get("FLEET_RUN_ROOT", ""), args, kwargs)


def result_record(
    index: int, task_id: Any, status: str, value: Any, elapsed: float
) -> tuple[str, bytes]:
    """(status, result record); a value that cannot be sent makes the result an invalid one."""
    try:
        data = outcomes.record(index, task_id, status, value, elapsed)
        if len(data) <= slot_wire.MAX_RECORD:
            return status, data
        told = f"the result has {len(data)} bytes, {slot_wire.MAX_RECORD} is the limit"
        why = outcomes.cause("ResultTooLarge", told)
    except BaseException as error:  # the value's own methods run here
        kind = "InvalidResult" if isinstance(error, packing.Unpackable) else type(error).__name__
        why = outcomes.cause(
            kind, f"the result cannot be sent: {outcomes.raised(error)['message']}"
        )
    return outcomes.INVALID, outcomes.record(index, task_id, outcomes.INVALID, why, elapsed)
