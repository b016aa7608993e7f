"""Start the wrapper that keeps one worker of this host alive, and tell whether that worked.

    python -m fsworker.respawn --root R --host H --launch N [--python P] -- WORKER ARGV...

Prints one line of JSON once the first worker runs (`wrap_pid`, `worker_pid`), or why none does, and
returns while the wrapper lives on, detached. With `--foreground` it stays, for a service manager.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence

from fsworker.life import detach, wrapper
from fsworker.life.backoff import Backoff
from fsworker.life.boundlog import LIMIT
from fsworker.life.wrapper import Options


def main(argv: Sequence[str] | None = None) -> int:
    """Start a wrapper; returns the exit code."""
    args = _parse(sys.argv[1:] if argv is None else argv)
    options = _options(args)
    if args.foreground:
        signal.pthread_sigmask(signal.SIG_BLOCK, wrapper.SIGNALS)
        return wrapper.live(options, _say, detached=False)
    answer = detach.run_detached(
        lambda fd: wrapper.live(options, _Pipe(fd), detached=True), args.wait
    )
    if not answer.strip():
        sentence = f"the wrapper on {args.host} did not report within {args.wait:g} s"
        answer = json.dumps({"ok": False, "code": "failed", "message": sentence}).encode()
    report = json.loads(answer)
    _say(report)
    return int(report.get("exit", 0 if report["ok"] else 1))


class _Pipe:
    """A report into the pipe to the starter, closed after it so that the starter reads the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, fields: dict[str, object]) -> None:
        try:
            os.write(self._fd, json.dumps(fields).encode())
        except OSError:
            pass  # the starter has given up waiting; the wrapper goes on
        os.close(self._fd)


def _say(fields: dict[str, object]) -> None:
    print(json.dumps(fields), flush=True)


def _options(args: argparse.Namespace) -> Options:
    argv = [*([args.python] if args.python else []), *args.worker]
    return Options(
        root=os.path.abspath(args.root),
        host=args.host,
        launch=args.launch,
        argv=tuple(argv),
        poll=args.poll,
        backoff=Backoff(args.retry_first, args.retry_cap, args.healthy_after),
        log_limit=args.log_limit,
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    rule = Backoff()
    parser = argparse.ArgumentParser(
        prog="python -m fsworker.respawn", description="Keep one worker of a host alive."
    )
    add = parser.add_argument
    add("--root", required=True, help="the run root")
    add("--host", required=True, help="the allowed name of this host")
    add("--launch", type=int, default=0, help="number of this launch of the host")
    add("--python", help="interpreter put before the worker's argv")
    add("--foreground", action="store_true", help="do not detach; for a service manager")
    add("--wait", type=float, default=30.0, help="seconds to wait for the first worker")
    add("--poll", type=float, default=2.0, help="seconds between looks for the stop intent")
    add("--retry-first", type=float, default=rule.first, help="seconds before the first retry")
    add("--retry-cap", type=float, default=rule.cap, help="seconds of the longest pause")
    add("--healthy-after", type=float, default=rule.healthy, help="seconds; resets the pause")
    add("--log-limit", type=int, default=LIMIT, help="bytes beyond which a log is cut in place")
    add("worker", nargs="+", metavar="-- ARGV", help="the worker's command")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
