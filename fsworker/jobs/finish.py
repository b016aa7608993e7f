"""`python -m fsworker.jobs.finish ROOT JOB`: the copies of a result that counts, for people.

`result.json` comes last: who sees it finds the log and the checkpoint beside it. It is made from
the token and the attempt that it names, so it may be done by anybody, twice, or later by `ctl`.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys

from fsworker.errors import FleetError
from fsworker.protocol import artifacts, federation, fsfolders, jobstate, layout
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.jobstate import Commit
from fsworker.protocol.records.job import Result

log = logging.getLogger("fsworker.jobs.finish")


def finish(store: Store, job: str) -> Result | None:
    """Make what is missing of the copies; the result, or None while there is none."""
    folder = jobstate.look(store, job)
    if folder.commit is None:
        return None
    result = jobstate.read_result(store, job, folder.commit)
    copied = layout.jobs.job_result(job)
    data = result.to_json()
    try:
        if layout.jobs.RESULT_FILE in folder.names and store.read(copied) == data:
            return result
        _copy_log(store, job, folder.commit)
        if result.checkpoint is not None:
            _copy_checkpoint(store, job, result.checkpoint, folder.names)
        store.publish(copied, data)
    except OSError as error:
        raise storage_error(error, "copy to", store.path(layout.jobs.job_dir(job))) from None
    return result


def _copy_log(store: Store, job: str, commit: Commit) -> None:
    """The log of the attempt that counts; a job that was cancelled as it waited has none."""
    folder = layout.jobs.attempt_dir(job, commit.attempt)
    if layout.jobs.LOG_FILE in federation.names(store, folder):
        _copy(store, f"{folder}/{layout.jobs.LOG_FILE}", layout.jobs.job_log(job))


def _copy_checkpoint(store: Store, job: str, source: str, names: frozenset[str]) -> None:
    target = layout.jobs.job_final(job, layout.ending(source.rpartition("/")[2]))
    if target.rpartition("/")[2] in names:
        return
    if not os.path.isdir(store.path(source)):
        _copy(store, source, target)
        return
    prepared = artifacts.prepare(store, target)
    for entry in fsfolders.entries(store, source):
        if entry.kind == "folder":
            fsfolders.make_folders(store, f"{prepared}/{entry.name}")
        elif entry.kind == "file":
            fsfolders.copy(store, f"{source}/{entry.name}", f"{prepared}/{entry.name}")
    artifacts.publish(store, prepared, target)


def _copy(store: Store, source: str, target: str) -> None:
    temp = layout.temporary(target, f"{os.getpid()}-{secrets.token_hex(4)}")
    try:
        fsfolders.copy(store, source, temp)
        store.rename(temp, target)
    except FileNotFoundError as error:
        log.info("%s is not copied: %s", source, error)  # a job that never ran has no log
        store.remove_quietly(temp)


def main() -> int:
    """Entry point."""
    logging.basicConfig(level="INFO", stream=sys.stderr)
    root, job = sys.argv[1:]
    try:
        finish(Store(root), job)
    except FleetError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
