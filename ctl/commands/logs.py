"""`ctl logs`: what a host's worker or wrapper wrote, read from the root."""

from __future__ import annotations

import os
import sys
import time

import click

from ctl import completion, launching, roots
from ctl.params import COUNT, root_option
from ctl.session import Session
from fsworker.errors import NotRunning
from fsworker.protocol import layout
from fsworker.protocol.fsops import Store, storage_error

POLL = 0.5
CHUNK = 1 << 16


@click.command()
@click.argument("host", shell_complete=completion.hosts)
@root_option
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows.")
@click.option("--wrap", is_flag=True, help="The wrapper's log instead of the worker's.")
@click.option(
    "-n", "--lines", type=COUNT, default=100, show_default=True, help="Lines from the end."
)
@click.pass_obj
def command(
    session: Session, host: str, root: str | None, follow: bool, wrap: bool, lines: int
) -> int:
    """Show the log of a host's worker."""
    run = roots.open_run(*roots.find_root(root, session.config))
    name = launching.worker_of(run.everybody or run.need_meta(), host).host
    rel = layout.host_file(name, "wrap.log" if wrap else "log")
    position = _tail(run.store, rel, lines)
    while follow:
        time.sleep(POLL)
        position = _more(run.store, rel, position)
    return 0


def _tail(store: Store, rel: str, lines: int) -> int:
    """Print the last lines; the position behind them."""
    if rel.rpartition("/")[2] not in store.scan(layout.CTL):
        raise NotRunning(f"there is no log {store.path(rel)} yet", path=store.path(rel))
    try:
        data = store.read(rel)
    except OSError as error:
        raise storage_error(error, "read", store.path(rel)) from None
    parts = data.splitlines(keepends=True)
    _write(b"".join(parts[-lines:]))
    return len(data)


def _more(store: Store, rel: str, position: int) -> int:
    """Print what came since `position`, from a fresh open; a log that was cut begins anew."""
    try:
        fd = os.open(store.path(rel), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        if os.fstat(fd).st_size < position:
            position = 0
        while data := os.pread(fd, CHUNK, position):
            _write(data)
            position += len(data)
    finally:
        os.close(fd)
    return position


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
