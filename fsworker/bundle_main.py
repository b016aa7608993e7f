"""What a bundle runs first: `python3 fsworker.pyz COMMAND`, or `-m MODULE` for a part of its own.

This file is in each bundle as `__main__.py`, and is read by whatever `python3` a host has: its
syntax is that of Python 3.6, so that one that is too old can say so instead of raising a
SyntaxError, also to a launcher that waits for a reply.
"""

import json
import os
import sys

OLDEST = (3, 11)


def main() -> None:
    """Run what the command line names."""
    arguments = sys.argv[1:]
    module = arguments[1] if arguments[:1] == ["-m"] and len(arguments) > 1 else ""
    if sys.version_info < OLDEST:
        _refuse(module, arguments[-1] if arguments else "")
    sys.path[0] = os.path.abspath(sys.path[0])  # processes below change their folder
    if not module.startswith("fsworker."):
        from fsworker.cli import main as command

        command()
        return
    import importlib

    sys.argv[:] = [module] + arguments[2:]  # noqa: RUF005  # older syntax
    if not sys.flags.safe_path:
        try:
            sys.path.insert(1, os.getcwd())  # as `python -m` does
        except OSError:
            pass  # the folder was removed
    sys.exit(importlib.import_module(module).main())


def _refuse(module: str, request: str) -> None:
    have = ".".join(map(str, sys.version_info[:3]))
    wanted = "the bundle needs Python 3.11 or newer"
    sentence = f"{wanted}, and {sys.executable} is {have}: name another (--python)"
    if module == "fsworker.hostside":
        marker = json.loads(request)["marker"]
        reply = json.dumps({"ok": False, "code": "failed", "message": sentence})
        sys.stdout.write(f"\n<BEGIN {marker}>{reply}<END {marker}>\n")
    else:
        sys.stderr.write("fsworker: " + sentence + "\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
