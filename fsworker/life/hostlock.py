"""The lock that keeps two wrappers, or two workers, of one run from living on one host.

It is a bound abstract Unix socket: it needs no file that a cleaner of `/tmp` could remove, works
on no network filesystem, and is free the moment its last holder ends, however that happened.
The wrapper binds it and its worker inherits the descriptor, so whoever gets the lock has proof
that both of before are gone. User code must not hold it: the descriptor is closed on exec, and a
process that forks without exec closes it itself.

A worker calls `hold(root, run_id, host)`: with a wrapper it takes over the wrapper's lock, without
one it binds its own. The socket must be kept until the worker ends.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from collections.abc import Mapping

from fsworker.errors import Busy
from fsworker.protocol import layout

LOCK_FD_VARIABLE = "FLEET_LOCK_FD"

PATIENCE = 1.0
"""Seconds for which a start waits: a worker that has just lost its wrapper is about to end."""

_LONGEST_HOST = 40  # an abstract address has room for 107 bytes in all


def run_key(root: str, run_id: str) -> str:
    """What tells this run from every other on this host: the value of `FLEET_RUN`.

    A run id alone may be used under two roots, and a root for one run after another.
    """
    digest = hashlib.sha256(os.fsencode(os.path.realpath(root)) + b"\0" + os.fsencode(run_id))
    return f"{layout.encode(run_id)[:40]}.{digest.hexdigest()[:16]}"


def address(root: str, run_id: str, host: str) -> bytes:
    """The socket's abstract address: user, run and host."""
    name = layout.encode(host, dots=True)
    if len(name) > _LONGEST_HOST:
        name = hashlib.sha256(name.encode()).hexdigest()[:_LONGEST_HOST]
    digest = run_key(root, run_id).rpartition(".")[2]
    return b"\0" + f"shardfleet/{os.getuid()}/{digest}/{name}".encode()


def acquire(root: str, run_id: str, host: str, patience: float = 0.0) -> socket.socket:
    """Take the lock, trying again for `patience` seconds; raises Busy when another has it."""
    where = address(root, run_id, host)
    end = time.monotonic() + patience
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(where)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return sock
        if time.monotonic() >= end:
            raise Busy(
                f"a wrapper or worker of {root} already runs on {host}: stop it first", host=host
            )
        time.sleep(0.05)


def is_free(root: str, run_id: str, host: str) -> bool:
    """Whether nobody has the lock now. Only looks, so that it never stands in anybody's way."""
    name = b"@" + address(root, run_id, host)[1:]
    with open("/proc/self/net/unix", "rb") as table:
        return not any(line.rstrip(b"\n").endswith(b" " + name) for line in table)


def inherited(
    root: str, run_id: str, host: str, environ: Mapping[str, str] = os.environ
) -> socket.socket | None:
    """The wrapper's lock, if this process was given exactly that; None otherwise."""
    text = environ.get(LOCK_FD_VARIABLE, "")
    if not (text.isascii() and text.isdigit()):
        return None
    try:
        sock = socket.socket(fileno=int(text))
    except OSError:
        return None
    if sock.family != socket.AF_UNIX or sock.getsockname() != address(root, run_id, host):
        sock.detach()  # some other file of this process: not ours to close
        return None
    sock.set_inheritable(False)
    return sock


def hold(
    root: str, run_id: str, host: str, environ: Mapping[str, str] = os.environ
) -> socket.socket:
    """The lock for a worker: the inherited one, or its own; raises Busy."""
    mine = inherited(root, run_id, host, environ)
    return mine or acquire(root, run_id, host, PATIENCE)
