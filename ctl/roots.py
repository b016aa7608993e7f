"""Where runs lie, what they are called, and which one a verb means.

A wrong root is the most expensive typing error there is, so every rule about roots stands here:
how `start` builds one, which places can never be one, how a folder is known to be ours, and in
which order a verb looks for the run it should act on.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from ctl import current
from ctl.config import Config
from fsworker.errors import (
    FleetError,
    FormatError,
    NotRunning,
    Refused,
    UnknownState,
    UsageError,
    spelt,
)
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store
from fsworker.protocol.launches import numbers, with_numbers
from fsworker.protocol.membership import read_members
from fsworker.protocol.records.member import Member, with_members
from fsworker.protocol.records.run import LaunchMeta, Manifest, WorkerSpec

MARKER_KIND = "shardfleet run root"
_NEVER = ("/proc", "/sys", "/dev", "/boot", "/run/systemd")


@dataclass(frozen=True)
class Run:
    """A run that exists: its root, its records, and how its root was found."""

    root: str
    store: Store
    manifest: Manifest
    meta: LaunchMeta | None
    source: str = "--root"
    members: tuple[Member, ...] = ()
    """Workers that attached by themselves."""

    @property
    def hosts(self) -> list[str]:
        """The hosts of the run, in the order of its workers."""
        return [worker.host for worker in self.workers]

    @property
    def workers(self) -> tuple[WorkerSpec, ...]:
        """The workers that were asked for, and those that attached."""
        everybody = self.everybody
        return (everybody or self.manifest).workers

    @cached_property
    def everybody(self) -> LaunchMeta | None:
        """The launch meta with those that attached; never to be written."""
        return with_members(self.meta, self.members) if self.meta else None

    def need_meta(self) -> LaunchMeta:
        """The launch meta; FormatError when the run has none."""
        if self.meta is None:
            path = self.store.path(layout.LAUNCH_META)
            raise FormatError(f"{path} is missing: start the run again", path=path)
        return self.meta


def new_run_id(now: datetime | None = None) -> str:
    """`YYYYMMDD_HHMMSS_` in UTC and eight random hex digits."""
    return f"{now or datetime.now(UTC):%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"


def check_part(name: str, what: str) -> str:
    """`name` when it can be one folder's name; UsageError says what is wrong with it."""
    if not name or name in (".", "..") or name.startswith((".", "-")):
        raise UsageError(f"{what} {name!r} cannot be a folder name: begin with a letter or digit")
    if any(c in "/\0" or ord(c) < 32 for c in name) or len(os.fsencode(name)) > layout.MAX_NAME:
        raise UsageError(
            f"{what} {name!r:.80} cannot be a folder name: "
            f"no '/', no control characters, {layout.MAX_NAME} bytes at most"
        )
    return name


def run_root(base: str, experiment: str | None, trial: str | None, run_id: str) -> str:
    """Where a run lies below `base`; `base` itself unless experiment and trial are named."""
    if bool(experiment) != bool(trial):
        raise UsageError("--experiment and --trial go together: give both or neither")
    base = check_root_text(base)
    if spelt(base) != base:  # the run's own records could not name it
        raise Refused(f"the root {base!r} is no UTF-8: name another folder", path=base)
    if not experiment or not trial or os.path.basename(base) == run_id:
        return base
    parts = (check_part(experiment, "--experiment"), check_part(trial, "--trial"))
    return os.path.join(base, *parts, check_part(run_id, "--run-id"))


def check_root_text(text: str) -> str:
    """The absolute path that `text` is; Refused for spellings that hide where they lead."""
    if not text.strip():
        raise Refused("the root is an empty text: name a folder")
    if ".." in text.split("/"):
        raise Refused(f"the root {text!r} goes through '..': name the folder itself", path=text)
    if any(ord(c) < 32 for c in text):
        raise Refused(f"the root {text!r} holds control characters", path=text)
    path = os.path.abspath(os.path.expanduser(text))
    if path.strip("/") == "":
        raise Refused("the root is '/': name a folder of its own", path="/")
    return path


def check_place(root: str) -> None:
    """Refused for a place where a run root would harm others: home, system, another run."""
    real = os.path.realpath(root)
    home = os.path.realpath(os.path.expanduser("~"))
    if real in ("/", home) or os.path.dirname(real) == real:
        raise Refused(f"{root} is not a place for a run root: name a folder of its own", path=root)
    if any(real == bad or real.startswith(bad + "/") for bad in _NEVER):
        raise Refused(f"{root} lies in {real.split('/')[1]!r}, a system folder", path=root)
    parent = os.path.dirname(real)
    while parent != "/":
        if is_ours(parent):
            raise Refused(f"{root} lies inside another run root, {parent}", path=root)
        parent = os.path.dirname(parent)


def is_below(prefix: str, path: str) -> bool:
    """Whether the real `path` is `prefix` or below it, once links are followed."""
    top, real = os.path.realpath(prefix), os.path.realpath(path)
    return real == top or real.startswith(top.rstrip("/") + "/")


def marker_bytes(run_id: str) -> bytes:
    """What the marker holds: a folder with it is ours, whatever else is missing."""
    value = {"kind": MARKER_KIND, "run_id": run_id, "owner": os.getuid()}
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def is_ours(folder: str) -> bool:
    """Whether a folder is a run root of ours: by its marker, or by a manifest that reads as one."""
    return has_marker(folder) or _manifest(folder) is not None


def has_marker(folder: str) -> bool:
    """Whether `ctl start` began to make a run root of this folder."""
    try:
        value = json.loads(Store(folder).read(layout.MARKER, limit=1 << 16))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("kind") == MARKER_KIND


def _manifest(folder: str) -> Manifest | None:
    try:
        data = Store(folder).read(layout.MANIFEST)
        manifest: Manifest = Manifest.from_json(data, os.path.join(folder, layout.MANIFEST))
    except (OSError, FormatError):
        return None
    return manifest


def find_root(flag: str | None, config: Config) -> tuple[str, str]:
    """(root, where it was named) for every verb but `start`.

    `--root` first; then `FLEET_ROOT` where it is itself a run root; then the current run.
    """
    if flag is not None:
        return check_root_text(flag), "--root"
    prefix = config.get("root")
    if prefix and is_ours(prefix):
        return check_root_text(prefix), config.source("root")
    return current.read(config.get("workspace"))


def open_run(root: str, source: str = "--root") -> Run:
    """The run at `root`. NotRunning when there is none; UnknownState when that cannot be told."""
    store = Store(root)
    path = store.path(layout.MANIFEST)
    data = _read(store, layout.MANIFEST)
    if data is None:
        gone = "" if os.path.isdir(root) else ": there is no such folder"
        raise NotRunning(f"there is no run at {root}{gone or ': it holds no manifest'}", path=root)
    manifest = Manifest.from_json(data, path)
    names = _names(store)  # before the launch meta: numbers are given out before it is written
    raw = _read(store, layout.LAUNCH_META)
    meta = LaunchMeta.from_json(raw, store.path(layout.LAUNCH_META)) if raw else None
    if meta:
        meta = with_numbers(meta, numbers(names))
    if store.group_writable:
        # What this process creates there must stay open to the group that shares the run.
        os.umask(0o007)
    return Run(root, store, manifest, meta, source, _members(store, names))


def _names(store: Store) -> list[str]:
    """What lies in `ctl/`."""
    try:
        return store.scan(layout.CTL)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unknown(error, store.path(layout.CTL)) from None


def _members(store: Store, names: list[str]) -> tuple[Member, ...]:
    try:
        return read_members(store, names)
    except OSError as error:
        raise unknown(error, store.path(layout.CTL)) from None


def _read(store: Store, rel: str) -> bytes | None:
    try:
        return store.read(rel)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            who = "its group or owner must let you read it"
            raise UnknownState(
                f"cannot read {store.path(rel)}: {error.strerror}: {who}", path=store.path(rel)
            ) from None
        raise unknown(error, store.path(rel)) from None


def unknown(error: OSError, path: str) -> FleetError:
    """What to say when the root does not answer: nothing is known, not "nothing runs"."""
    return UnknownState(f"cannot read {path}: {error.strerror or error}", path=path)
