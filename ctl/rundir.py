"""Making a run root: in an order in which a start that dies leaves nothing that lies.

The marker comes first, so that whatever follows can be cleaned up. The manifest comes last, so
that no reader ever takes a half-made folder for a run. Then comes the launch meta, without which
nobody starts anything.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from ctl import launching, mounts, renewal, roots
from ctl.planning import Plan
from fsworker.errors import NotRunning, Refused, StorageError, UsageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error


def check_target(
    root: str, group: str | None, advice: str = "name an empty or a new folder"
) -> None:
    """Everything that can be known about the place without writing there; else an error.

    `advice`: what to do about a folder that holds something else.
    """
    roots.check_place(root)
    parent = existing_parent(root)
    mounts.check(root if os.path.isdir(root) else parent)
    if os.path.lexists(root):
        _check_existing(root, advice)
    elif not os.access(parent, os.W_OK | os.X_OK):
        raise StorageError(f"cannot make {root}: {parent} is not writable for you", path=parent)
    if group:
        _check_passable(parent, group_id(group), group)


def _check_existing(root: str, advice: str) -> None:
    if not os.path.isdir(root):
        raise UsageError(f"{root} is there and is not a folder: name another root", path=root)
    try:
        names = os.listdir(root)
    except OSError as error:
        raise storage_error(error, "read", root) from None
    if names and not roots.is_ours(root):
        raise Refused(f"{root} holds {sorted(names)[0]!r} and is no run root: {advice}", path=root)
    if not os.access(root, os.W_OK | os.X_OK):
        raise StorageError(f"{root} is not writable for you: check its owner and mode", path=root)


def existing_parent(path: str) -> str:
    """The nearest folder above `path` that exists."""
    parent = os.path.dirname(path)
    while not os.path.isdir(parent) and parent != "/":
        if os.path.lexists(parent):
            raise UsageError(f"{parent} is there and is not a folder: name another root", path=path)
        parent = os.path.dirname(parent)
    return parent


def group_id(group: str) -> int:
    """The number of a group that the user belongs to."""
    import grp  # lazily: few runs have a group

    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise UsageError(f"--group {group!r}: there is no such group on this machine") from None
    if os.geteuid() != 0 and gid not in {os.getegid(), *os.getgroups()}:
        raise UsageError(f"--group {group!r}: you are not a member of it")
    return gid


def _check_passable(parent: str, gid: int, group: str) -> None:
    """Refused when the group's members could not reach a root below `parent`."""
    path = os.path.realpath(parent)
    above = [path]
    while path != "/":
        path = os.path.dirname(path)
        above.append(path)
    for folder in reversed(above):
        found = os.stat(folder)
        bit = stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH
        if not found.st_mode & bit:
            raise Refused(
                f"group {group} cannot pass through {folder} "
                f"(mode {stat.S_IMODE(found.st_mode):04o}): choose a root that it can reach",
                path=folder,
            )


def check_shards(store: Store, shard_count: int) -> None:
    """Refused when batches wait in shards that the new run would not serve."""
    try:
        names = store.scan(layout.INBOX)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(names):
        if not (name.isascii() and name.isdigit()) or int(name) < shard_count:
            continue
        waiting = sum(
            layout.parse_inbox_name(int(name), n) is not None
            for n in store.scan(layout.inbox_dir(int(name)))
        )
        if waiting:
            raise Refused(
                f"{waiting} batches wait in shard {name} of {store.root}, but the new run has "
                f"{shard_count} shards: raise --shard-count",
                path=store.path(layout.inbox_dir(int(name))),
            )


def lay(plan: Plan) -> Store:
    """Make the root with its marker and folders. StorageError names what could not be written."""
    store = Store(plan.root)
    gid = group_id(plan.manifest.group) if plan.manifest.group else None
    if gid is not None:
        os.umask(0o007)
    try:
        _make_folders_above(plan.root, gid)
        _make_root(plan.root, gid)
        store.publish(layout.MARKER, roots.marker_bytes(plan.manifest.run_id))
        inboxes = (layout.inbox_dir(shard) for shard in range(plan.manifest.shard_count))
        for folder in (*layout.FOLDERS, *inboxes):
            store.mkdir(folder)
    except OSError as error:
        raise _unwritten(error, plan) from None
    return store


def publish(plan: Plan, store: Store) -> None:
    """Make the root a run: manifest, then launch meta. The verb lock must be held."""
    try:
        _refuse_overtaken(plan)
        clear_intents(store, plan.hosts, watcher=True)
        fresh = layout.MANIFEST not in store.scan("")
        if fresh:
            _forget_launches(store)
        store.publish(layout.MANIFEST, plan.manifest.to_json())
        if fresh:
            renewal.mark(store, store.read_with_mtime(layout.MANIFEST)[1])
        launching.number(store, plan.meta, plan.hosts)
        store.publish(layout.LAUNCH_META, plan.meta.to_json())
    except OSError as error:
        raise _unwritten(error, plan) from None


def _forget_launches(store: Store) -> None:
    """Without a manifest there is no run whose launches would have to be counted on from."""
    for name in store.scan(layout.CTL):
        token = layout.parse_launch_token(name)
        if token:
            store.remove(token.path)


def _refuse_overtaken(plan: Plan) -> None:
    """Refused when somebody launched on this root since the plan was made."""
    try:
        meta = roots.open_run(plan.root).meta
    except NotRunning:
        return
    for host in plan.hosts:
        if meta and meta.launches.get(host, 0) + 1 != plan.meta.launches[host]:
            raise Refused(
                f"host {host} of {plan.root} was launched by another command meanwhile: "
                "look at ctl status",
                host=host,
            )


def _unwritten(error: OSError, plan: Plan) -> StorageError:
    path = error.filename if isinstance(error.filename, str) else plan.root
    return storage_error(error, "write", path)


def _make_folders_above(root: str, gid: int | None) -> None:
    missing = []
    parent = os.path.dirname(root)
    while not os.path.isdir(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue  # another start makes its root below the same experiment
        if gid is not None:
            _share(folder, gid)


def _make_root(root: str, gid: int | None) -> None:
    fresh = not roots.is_ours(root) if os.path.isdir(root) else True
    try:
        os.mkdir(root, 0o700)
    except FileExistsError:
        if os.stat(root).st_uid not in (os.geteuid(), 0) and gid is None and fresh:
            raise Refused(
                f"{root} belongs to another user: name a root of yours", path=root
            ) from None
    if gid is not None:
        _share(root, gid)
    elif fresh:
        os.chmod(root, 0o700)  # a folder made by hand has the umask's mode


def _share(folder: str, gid: int) -> None:
    """Open a folder to the group, and let what is made in it belong to the group."""
    found = os.stat(folder)
    if found.st_gid == gid and stat.S_IMODE(found.st_mode) == 0o2770:
        return
    try:
        os.chown(folder, -1, gid)
        os.chmod(folder, 0o2770)  # noqa: S103  # what a shared root is
    except PermissionError as error:
        raise storage_error(error, "open to the group", folder) from None
    if not os.stat(folder).st_mode & stat.S_ISGID:
        raise StorageError(
            f"{folder} did not keep its setgid bit: this filesystem cannot hold a shared run",
            path=folder,
        )


def clear_intents(store: Store, hosts: Iterable[str], *, watcher: bool) -> None:
    """Drop the stop intents of hosts that are about to be launched; the watcher's too if asked."""
    present = set(store.scan(layout.CTL))
    paths = [layout.host_file(host, "stop") for host in hosts]
    for path in [*paths, layout.WATCH_STOP] if watcher else paths:
        if path.rpartition("/")[2] in present:
            store.remove(path)
