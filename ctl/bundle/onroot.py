"""Bundles on a run root: the one of this release, written where it is missing or damaged."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import fsworker
from fsworker.digest import package_digest
from fsworker.errors import Refused, StorageError
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.records.run import LaunchMeta

if TYPE_CHECKING:
    from ctl.bundle.packing import Bundle

LARGEST = 64 << 20
"""Bytes; more is no bundle."""


@functools.lru_cache(maxsize=1)
def of_this_release() -> Bundle:
    """The bundle of the code that runs here."""
    from ctl.bundle import contents, packing  # lazily: few commands have a use for it

    return packing.pack(contents.gather(), fsworker.__version__, package_digest())


def release(*, bundle: bool) -> dict[str, str | None]:
    """Which code this is: its release, its digest, and that of its `bundle` where it matters."""
    packed = of_this_release().digest if bundle else None
    return {"release": fsworker.__version__, "code": package_digest(), "bundle": packed}


def path_here() -> str:
    """Where the bundle of this release lies under a root."""
    return layout.bundle_path(of_this_release().digest)


def ensure(store: Store) -> bool:
    """Have the bundle of this release on the root, whole; whether it had to be written.

    Whole and durable before it has its name: a host never sees a part of it.
    """
    bundle = of_this_release()
    path = layout.bundle_path(bundle.digest)
    try:
        store.mkdir(layout.BUNDLES)
        there = path.rpartition("/")[2] in store.scan(layout.BUNDLES)
        if there and store.read(path, LARGEST) == bundle.data:
            return False
        store.publish(path, bundle.data)
    except OSError as error:
        raise storage_error(error, "write", store.path(path)) from None
    return True


def provide(store: Store, meta: LaunchMeta) -> None:
    """Have on the root what a run that is about to start needs. StorageError."""
    if meta.bundle is not None:
        ensure(store)


def renew(store: Store, meta: LaunchMeta) -> str:
    """Have the bundle of this release there for a run that starts from one; its path.

    Refused for a run that does not. StorageError.
    """
    if meta.bundle is None:
        raise Refused("this run does not start from a bundle: give ctl start --bundle --replace")
    ensure(store)
    return path_here()


@contextmanager
def lent(store: Store, meta: LaunchMeta) -> Iterator[LaunchMeta]:
    """The terms of a run that is not there yet, with its bundle hidden below `store` meanwhile."""
    if meta.bundle is None or layout.MANIFEST in store.scan(""):
        yield meta
        return
    folder = f".doctor~{secrets.token_hex(6)}"
    path = f"{folder}/{meta.bundle.rpartition('/')[2]}"
    try:
        store.mkdir(folder)
        store.publish(path, of_this_release().data)
    except OSError as error:
        raise storage_error(error, "write to", store.root) from None
    try:
        yield replace(meta, bundle=path)
    finally:
        store.remove_quietly(path)
        try:
            store.rmdir(folder)
        except OSError:
            pass  # it is hidden, and so is no run


def damage(store: Store, path: str) -> str | None:
    """What is wrong with a bundle on the root; None when it is what its name says."""
    try:
        data = store.read(path, LARGEST)
    except FileNotFoundError:
        return "it is not there"
    except (OSError, StorageError) as error:
        return f"it cannot be read: {error}"
    from ctl.bundle import packing  # lazily: few roots have any

    found = packing.check(data)
    if found is None:
        return "it is no bundle, or was cut or changed"
    if found != layout.parse_bundle_name(path):
        return f"it holds what the digest {found} stands for"
    return None
