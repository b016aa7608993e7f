"""Which folder may be deleted: the checks of `cleanup`, each a reason not to.

Deleting is the one thing that cannot be undone, so nothing is taken on trust: not the path (links
and `..` are resolved), not the folder (it must be known for ours), not the silence of the run (it
is looked at twice, the second time right before the first file goes).
"""

from __future__ import annotations

import os

from ctl import beats, locks, removal, roots, signs
from fsworker.errors import FormatError, Refused
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import LaunchMeta

STALE = 15.0
"""Seconds without a beat after which a worker counts as silent, where the run names no limit."""


def check(root: str, prefix: str | None) -> str | None:
    """The real path of the root that may be deleted; None when it is missing; else Refused."""
    root = roots.check_root_text(root)
    if not prefix:
        raise Refused(
            f"cleanup of {root} is refused, no prefix is set: "
            "set FLEET_ROOT to the folder that holds your runs",
            path=root,
        )
    real = os.path.realpath(root)
    if not roots.is_below(prefix, real):
        where = f"{root} (really {real})" if real != root else root
        raise Refused(f"cleanup of {where} is refused: it is not below {prefix}", path=root)
    if not os.path.lexists(root):
        return None
    if not os.path.isdir(real):
        raise Refused(f"cleanup of {root} is refused: it is not a folder", path=root)
    if not roots.is_ours(real):
        raise Refused(
            f"cleanup of {real} is refused: it holds neither a manifest nor a marker of ours",
            path=real,
        )
    refuse_if_alive(Store(real))
    return real


def clean(root: str, real: str) -> None:
    """Delete what `check` allowed; a link that named it goes too."""
    store, marker = Store(real), roots.marker_bytes(os.path.basename(real))
    try:
        if os.path.isdir(store.path(layout.CTL)):
            with locks.verb_lock(store, "cleanup"):
                refuse_if_alive(store)
                removal.hide(real, marker)
        # Without the lock: its file lies in the root, and an open file cannot go from NFS.
        removal.remove_root(real, marker)
        if os.path.islink(root):
            os.unlink(root)
    except OSError as error:
        raise storage_error(error, "remove", real) from None


def refuse_if_alive(store: Store) -> None:
    """Refused when a heartbeat is fresh, or when a process of the run lives on this machine."""
    limit = _stale_limit(store)
    fresh = _beating(store, limit)
    if fresh:
        raise Refused(
            f"{store.root} is alive: {', '.join(fresh[:5])} beat within {limit:g} s: "
            "run ctl stop first",
            path=store.root,
        )
    here = signs.living_here(store, _names(store, layout.CTL))
    if here:
        raise Refused(
            f"{store.root} is alive: process {here[1]} of {here[0]} runs here: run ctl stop first",
            path=store.root,
            host=here[0],
        )


def _beating(store: Store, limit: float) -> list[str]:
    try:
        return beats.beating(store, limit)
    except FileNotFoundError:
        return []  # a start that died before it made the folder
    except OSError as error:
        raise storage_error(error, "read", store.path(layout.STATUS)) from None


def _stale_limit(store: Store) -> float:
    try:
        meta: LaunchMeta = LaunchMeta.from_json(store.read(layout.LAUNCH_META), layout.LAUNCH_META)
    except (OSError, FormatError):
        return STALE
    return max(meta.heartbeat_stale, 5.0)


def _names(store: Store, folder: str) -> list[str]:
    try:
        return store.scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_error(error, "read", store.path(folder)) from None
