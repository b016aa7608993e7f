"""The small files in `ctl/` by which the processes of a host are found, and told to stop.

The bare pid files are for people (`kill $(cat ctl/HOST.pid)`); programs believe only the identity
file. Whoever runs the worker writes them: the wrapper, or a worker that was started without one:

    lifefiles.publish(store, HostIdentity(host, launch, worker=identity, incarnation=inc))
    lifefiles.stop_wanted(store, host, launch)       # every 2 s
    lifefiles.withdraw(store, host, [os.getpid()])   # at a clean end
"""

from __future__ import annotations

import os
from collections.abc import Collection

from fsworker.errors import FormatError, NotRunning
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import HostIdentity, Manifest

PID, WRAP_PID, IDENTITY, STOP = "pid", "wrap.pid", "identity.json", "stop"
DRAIN = "drain"
LOG, WRAP_LOG = "log", "wrap.log"

_SMALL = 1 << 20


def read_manifest(store: Store) -> Manifest:
    """What this run is; NotRunning, StorageError or FormatError say why it cannot be told."""
    try:
        data = store.read(layout.MANIFEST)
        manifest: Manifest = Manifest.from_json(data, store.path(layout.MANIFEST))
    except FileNotFoundError:
        raise NotRunning(
            f"no run at {store.root}: it has no {layout.MANIFEST}", path=store.root
        ) from None
    except OSError as error:
        raise storage_error(error, "read", store.path(layout.MANIFEST)) from error
    return manifest


def publish(store: Store, who: HostIdentity) -> None:
    """Say who runs: the identity first, then the bare pids of those that are known."""
    store.publish(layout.host_file(who.host, IDENTITY), who.to_json())
    for suffix, process in ((WRAP_PID, who.wrapper), (PID, who.worker)):
        if process:
            store.publish(layout.host_file(who.host, suffix), b"%d\n" % process.pid, durable=False)


def withdraw(
    store: Store, host: str, pids: Collection[int], suffixes: Collection[str] = (PID, WRAP_PID)
) -> None:
    """Remove the host's pid files that name one of `pids`: never those of a successor."""
    present = store.scan(layout.CTL)
    for suffix in suffixes:
        path = layout.host_file(host, suffix)
        if os.path.basename(path) in present and read_pid(store, path) in pids:
            store.remove(path)


def read_pid(store: Store, path: str) -> int | None:
    """The number in a pid file, or None if it holds anything but the pid of one process."""
    try:
        text = store.read(path, _SMALL).strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() and len(text) < 10 and int(text) > 1 else None


def read_identity(store: Store, host: str) -> HostIdentity | None:
    """Who was last started for `host`; None when nobody was. Raises FormatError and OSError."""
    path = layout.host_file(host, IDENTITY)
    if os.path.basename(path) not in store.scan(layout.CTL):
        return None
    who: HostIdentity = HostIdentity.from_json(store.read(path, _SMALL), store.path(path))
    if who.host != host:
        raise FormatError(f"{path} speaks of host {who.host!r}, not of {host!r}", path=path)
    return who


def stop_wanted(
    store: Store, host: str, launch: int, present: Collection[str] | None = None
) -> bool:
    """Whether a stop intent covers this launch. `present`: as for `stop_intent`."""
    content = stop_intent(store, host, present)
    return content is not None and covers(content, launch)


def covers(intent: bytes, launch: int) -> bool:
    """Whether a stop intent, as it is written, covers this launch."""
    return layout.stop_covers(intent.decode("utf-8", "replace"), launch)


def stop_intent(store: Store, host: str, present: Collection[str] | None = None) -> bytes | None:
    """What tells the workers of a host to stop, as it is written; None where nothing does.

    `present`: a fresh listing of `ctl/`, if at hand. The folder is listed, never asked for the one
    name: a client may remember an absence for long.
    """
    path = layout.host_file(host, STOP)
    names = store.scan(layout.CTL) if present is None else present
    if os.path.basename(path) not in names:
        return None
    try:
        return store.read(path, _SMALL)
    except FileNotFoundError:
        return None


def drain_patience(store: Store, host: str, launch: int) -> float | None:
    """Seconds that this launch may take to finish what runs when it is stopped; None: not said.

    The file holds the launch and the seconds: what was said of an earlier launch is void.
    """
    path = layout.host_file(host, DRAIN)
    if os.path.basename(path) not in store.scan(layout.CTL):
        return None
    try:
        told, seconds = store.read(path, _SMALL).decode().split()
        return float(seconds) if int(told) == launch else None
    except (FileNotFoundError, ValueError):
        return None
