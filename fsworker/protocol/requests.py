"""Asking the workers of a run to cancel something: writing the request, and taking it back.

A request is a file of its own name, so nobody overwrites another's; it costs one file however many
tasks it names. Who asked removes it when the answer is there.
"""

from __future__ import annotations

import secrets

from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.records.cancel import CancelRequest


def ask(store: Store, target: str, request: CancelRequest) -> str:
    """Publish a request about `target` (a batch or an encoded stream); gives its path."""
    path = layout.cancel_path(target, secrets.token_hex(4))
    try:
        store.publish(path, request.to_json(), durable=False)
    except FileNotFoundError:  # a run that was begun without this folder
        store.mkdir(layout.CANCEL)
        store.publish(path, request.to_json(), durable=False)
    return path
