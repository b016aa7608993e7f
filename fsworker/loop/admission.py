"""Whether this worker may serve this root: what it is, whose it is, and how it is mounted.

A manifest names the functions that run here, so whoever owns it commands this account. It is
followed only when it belongs to the worker's own user, or, in a root that is shared with a group,
to the owner of that root. Every refusal is one sentence, which `ctl start` shows as it is.
"""

from __future__ import annotations

import os
import stat

from fsworker.errors import Refused, StorageError, UsageError
from fsworker.life import lifefiles
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import Manifest


def admit(store: Store, shard: int) -> Manifest:
    """The manifest of a root that may be served; raises what a user can act on."""
    _check_mount(store.root)
    manifest = lifefiles.read_manifest(store)
    try:
        root, file = os.stat(store.root), os.stat(store.path(layout.MANIFEST))
    except OSError as error:
        raise storage_error(error, "look at", store.root) from error
    why = distrust(root, file, os.getuid())
    if why:
        raise Refused(f"{store.path(layout.MANIFEST)} is not trusted: {why}", path=store.root)
    if not 0 <= shard < manifest.shard_count:
        raise UsageError(
            f"shard {shard} does not exist: run {manifest.run_id} has shards 0 to "
            f"{manifest.shard_count - 1}"
        )
    return manifest


def distrust(root: os.stat_result, manifest: os.stat_result, uid: int) -> str | None:
    """Why user `uid` must not follow this manifest in this root; None when it may."""
    if root.st_mode & stat.S_IWOTH:
        return "everybody can write to its folder; make it private (chmod o-w)"
    if manifest.st_mode & stat.S_IWOTH:
        return "everybody can change it; make it private (chmod o-w)"
    if manifest.st_uid == uid:
        return None
    shared = root.st_mode & stat.S_IWGRP and root.st_uid == manifest.st_uid
    if shared:
        return None
    return (
        f"it belongs to user {manifest.st_uid} and this worker runs as {uid}; start the run as "
        "that user, or share its root with a group"
    )


def function_names(manifest: Manifest) -> tuple[str, ...]:
    """Every function that tasks of the run may call, the default first."""
    return tuple(dict.fromkeys((manifest.reward_fn, *manifest.functions)))


def _check_mount(root: str) -> None:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mount = mount_of(os.path.realpath(root), file.read())
    except OSError:
        return
    if mount and "nocto" in mount[1]:
        raise StorageError(
            f"{root} is on {mount[0]}, which is mounted with nocto: changes by other hosts would "
            "not be seen; mount it without nocto",
            path=root,
        )


def mount_of(path: str, mountinfo: str) -> tuple[str, set[str]] | None:
    """(mount point, options) of the mount that `path` is on, from `/proc/self/mountinfo`."""
    best: tuple[str, set[str]] | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) < 6:
            continue
        point = _unescape(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best[0])):
            best = point, {*fields[5].split(","), *rest[-1].split(",")}
    return best


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
