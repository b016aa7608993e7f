"""What a host measures of itself for the doctor: nothing is changed, and nothing is judged here.

Everything is tried for real: the functions are imported, a file is written and synced, and how
long the other side takes to see a file is measured by asking it for an answer. Each measurement
stands by itself; one that fails says why and the others go on.
"""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import fsworker
from fsworker import bundled
from fsworker.digest import package_digest
from fsworker.functions import canonical
from fsworker.host.account import quota, sshd_config
from fsworker.host.importable import Tried, tried
from fsworker.host.logind import session_warnings
from fsworker.inventory import software
from fsworker.protocol.fsops import Store

NEEDED = ("click", "msgpack")
"""The packages that a worker imports; a bundle brings its own."""
TRIAL = 1 << 20
"""Bytes that are written to see whether a quota or a full disk says no."""
ANSWER_WITHIN = 15.0
LOOK_EVERY = 0.02


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure. `request`: root, host, a `folder` for trials, `functions`, the workers' `env`."""
    store, folder, host = Store(request["root"]), str(request["folder"]), str(request["host"])
    facts: dict[str, Any] = {"ok": True, "problems": {}}
    names, env = tuple(request.get("functions") or ()), request.get("env")
    functions = functools.cache(lambda: tried(names, env))
    steps: dict[str, Callable[[], object]] = {
        "python": _python,
        "packages": _packages,
        "functions": lambda: {name: one.why for name, one in functions().items()},
        "code": lambda: _code(functions(), env or {}),
        "mounts": lambda: _read("/proc/self/mountinfo"),
        "real_root": lambda: os.path.realpath(store.root),
        "space": lambda: _space(store),
        "quota": lambda: quota(store.root),
        "limits": _limits,
        "login": session_warnings,
        "sshd": sshd_config,
        "clock": lambda: _clock(store, folder, host),
        "visibility": lambda: _visibility(store, folder, host),
        "rename": lambda: _rename(store, folder, host),
        "trial": lambda: _trial(store, folder, host),
    }
    begun = time.monotonic()
    for name, step in steps.items():
        try:
            facts[name] = step()
        except OSError as error:
            facts["problems"][name] = error.strerror or str(error)
        except Exception as error:
            facts["problems"][name] = f"{type(error).__name__}: {error}"
    facts["took"] = time.monotonic() - begun
    return facts


def _python() -> dict[str, str | None]:
    return {
        "version": platform.python_version(),
        "path": sys.executable,
        "shardfleet": fsworker.__version__,
        "digest": package_digest(),
        "bundle": bundled.archive(),
        "hostname": platform.node(),
    }


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    packed = bundled.facts().get("packages", {})
    for name in NEEDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = packed.get(name)
    return found


def _code(functions: Mapping[str, Tried], env: Mapping[str, str]) -> dict[str, Any]:
    """What is installed, and the digests of the functions' sources, in the words of beats."""
    path = [*env.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    sources = {canonical(name): one.source for name, one in functions.items() if one.why is None}
    return {"packages": software.packages(path), "functions": sources}


def _space(store: Store) -> dict[str, int]:
    room = os.statvfs(store.root)
    return {
        "free": room.f_bavail * room.f_frsize,
        "size": room.f_blocks * room.f_frsize,
        "inodes_free": room.f_favail,
        "inodes": room.f_files,
    }


def _limits() -> dict[str, list[int]]:
    return {
        "files": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "processes": list(resource.getrlimit(resource.RLIMIT_NPROC)),
    }


def _clock(store: Store, folder: str, host: str) -> float:
    """Seconds by which this host's clock is ahead of the file server's."""
    probe = f"{folder}/clock~{host}"
    before = time.time()
    store.put(probe, b"")
    after = time.time()
    return (before + after) / 2 - store.read_with_mtime(probe)[1]


def _visibility(store: Store, folder: str, host: str) -> float:
    """Seconds from publishing a file until the other side's answer to it is seen here."""
    begun = time.monotonic()
    store.publish(f"{folder}/call~{host}", b"")
    while f"answer~{host}" not in store.scan(folder):
        if time.monotonic() - begun > ANSWER_WITHIN:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer was seen in {ANSWER_WITHIN:g} s")
        time.sleep(LOOK_EVERY)
    return time.monotonic() - begun


def _rename(store: Store, folder: str, host: str) -> dict[str, Any]:
    """Seconds that a rename takes, and whether a folder in use is safe from being replaced."""
    one, two = f"{folder}/one~{host}", f"{folder}/two~{host}"
    for name in (one, two):
        store.mkdir(name)
        store.put(f"{name}/file", b"", durable=False)
    begun = time.monotonic()
    store.rename(f"{one}/file", f"{one}/renamed")
    took = time.monotonic() - begun
    try:
        store.rename(one, two)
    except OSError as error:
        return {"seconds": took, "replaces": None, "error": errno.errorcode.get(error.errno or 0)}
    return {"seconds": took, "replaces": True, "error": None}


def _trial(store: Store, folder: str, host: str) -> float:
    """Seconds to write, sync and close some data."""
    begun = time.monotonic()
    store.put(f"{folder}/trial~{host}", b"\0" * TRIAL)
    return time.monotonic() - begun


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read(1 << 20).encode("utf-8", "replace").decode()
