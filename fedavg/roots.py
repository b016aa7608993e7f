"""Which run a command means, and its groups: `--root`, or FLEET_ROOT where it is itself a run."""

from __future__ import annotations

import os

from fsworker.errors import NotRunning, UsageError
from fsworker.protocol import federation, layout
from fsworker.protocol.fsops import Store


def open_root(flag: str | None) -> Store:
    """The run root that was named. UsageError when none was, NotRunning when it is none."""
    root = flag or os.environ.get("FLEET_ROOT")
    if not root:
        raise UsageError("no run is named: give --root, or set FLEET_ROOT")
    root = os.path.abspath(os.path.expanduser(root))
    store = Store(root)
    if layout.MANIFEST not in federation.names(store, ""):
        raise NotRunning(f"there is no run at {root}: it holds no {layout.MANIFEST}", path=root)
    if store.group_writable:
        os.umask(0o007)  # what libraries create there must stay open to the run's group
    return store
