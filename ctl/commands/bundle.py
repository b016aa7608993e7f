"""`ctl bundle`: the worker and what it needs as one file, for hosts without packages."""

from __future__ import annotations

import os

import click

from ctl import render, roots
from ctl.params import json_option, root_option
from ctl.session import Session
from fsworker.errors import UsageError
from fsworker.protocol.fsops import Store, storage_error


@click.command()
@root_option
@click.option("-o", "--output", metavar="FILE", help="Write it there instead of onto a run root.")
@json_option
@click.pass_obj
def command(session: Session, root: str | None, output: str | None, as_json: bool) -> int:
    """Write this release of the worker as one file that a bare Python 3.11 runs.

    Onto the run root, beside older ones, where `ctl start --bundle` puts it by itself and
    `python3 FILE attach --root ROOT` finds it; or with -o to any place. What runs goes on from the
    file that it was started from.
    """
    from ctl.bundle import onroot  # lazily: it packs

    if output is not None and root is not None:
        raise UsageError("-o and --root both say where to write: give one of them")
    if output == "-":
        raise UsageError("-o - is no file: a bundle is not written to stdout, name a file")
    bundle = onroot.of_this_release()
    if output is not None:
        path, written = os.path.abspath(output), True
        _write(path, bundle.data)
    else:
        run = roots.open_run(*roots.find_root(root, session.config))
        path, written = run.store.path(onroot.path_here()), onroot.ensure(run.store)
    if as_json:
        told = {"release": bundle.release, "digest": bundle.digest, "bytes": len(bundle.data)}
        render.document({"path": path, "written": written, **told})
    else:
        session.note(f"release {bundle.release}, {len(bundle.data):,} bytes")
        print(path)
    return 0


def _write(path: str, data: bytes) -> None:
    """A whole new file in the place of the one that is there: a worker may run from that."""
    folder, name = os.path.split(path)
    if os.path.isdir(path) or not os.path.isdir(folder):
        raise UsageError(f"-o {path}: name a file in a folder that is there", path=path)
    if os.path.exists(path) and not os.path.isfile(path):  # /dev/null would be replaced
        raise UsageError(f"-o {path} is no regular file: name another", path=path)
    try:
        Store(folder).publish(name, data)
        os.chmod(path, 0o755)  # noqa: S103  # a program, for whoever may reach its folder
    except OSError as error:
        raise storage_error(error, "write", path) from None
