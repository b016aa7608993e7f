"""Where a `ctl` process begins: so small that an interrupt finds somebody who answers it.

Importing the command line takes longer than a hasty Ctrl-C, and nothing has begun by then, so the
process just leaves. Whatever stands at the top of this module is not covered: keep it empty.
"""

from __future__ import annotations

import os


def main() -> int:
    """Run the command line of this process; the exit code."""
    try:
        import signal  # here: see the module docstring

        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return _run()  # a shell started us with interrupts ignored: that stays
        signal.signal(signal.SIGINT, _leave)
        from ctl import cli

        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = cli.main()
        signal.signal(signal.SIGINT, _leave)  # all is done and told: only Python is ending
        return code
    except KeyboardInterrupt:
        _leave()
        raise


def _run() -> int:
    from ctl import cli

    return cli.main()


def _leave(number: int = 2, frame: object = None) -> None:
    try:
        os.write(2, b"ctl: interrupted\n")
    finally:
        os._exit(128 + number)
