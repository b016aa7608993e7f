"""What every launcher says to a host, and how the answer is found in what comes back.

A host answers through a login shell and its start-up files, which may print anything: a host
name, a bare number, escape bytes, 200 kB without a newline. So nothing that comes back is believed
by its position: the reply stands between two markers that hold a random word of this one call, and
everything else is noise. A third marker is printed first of all, by the script itself; without it
the host never ran the script, and what it printed instead are its own words of refusal.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

COMMAND = "/bin/sh -s"
"""The whole remote command: it means the same to bash, tcsh and fish."""

MODULE = "fsworker.hostside"
NOISE_LIMIT = 64 << 20
"""Bytes that a host may print before its reply; one that prints more will never answer."""
REPLY_LIMIT = 8 << 20
_KEEP = 64 << 10
_WORDS = 400

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")


def hello_mark(marker: str) -> bytes:
    """What the script prints before anything else of ours."""
    return f"<HELLO {marker}>".encode()


def begin_mark(marker: str) -> bytes:
    """What stands before the reply."""
    return f"<BEGIN {marker}>".encode()


def end_mark(marker: str) -> bytes:
    """What stands after the reply."""
    return f"<END {marker}>".encode()


def build(
    request: Mapping[str, Any],
    *,
    python: str,
    pythonpath: Sequence[str] = (),
    setup: Sequence[str] = (),
    bundle: str | None = None,
) -> bytes:
    """The script that asks `request` of the host that runs it, from `bundle` if one is given.

    It is one function, called in the last line: a shell that got only a part of it runs nothing,
    and neither the setup lines nor the module can read the rest of the script as their input.
    """
    lines = [
        "fleet_main() {",
        # In two parts, so that a shell that echoes what it reads does not print the marker.
        rf"printf '\n<%s %s>\n' HELLO {shlex.quote(str(request['marker']))}",
        *setup,
        # `-m` puts the working folder first on the path: a ~/json.py must not be imported.
        "cd /",
    ]
    if pythonpath:
        joined = shlex.quote(":".join(pythonpath))
        lines.append(f'PYTHONPATH={joined}"${{PYTHONPATH:+:$PYTHONPATH}}"; export PYTHONPATH')
    asked = shlex.quote(json.dumps(request, sort_keys=True))
    program = [python] if bundle is None else [python, bundle]
    lines += [
        f"exec {shlex.join(program)} -m {MODULE} {asked}",
        "} </dev/null",
        "fleet_main",
        "",
    ]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


class ReplyReader:
    """Finds the reply to one call in the bytes that the host prints.

    `feed` takes them as they come, in pieces of any size, and says when the reply is complete.
    `heard` is the end of the noise before it.
    """

    def __init__(self, marker: str) -> None:
        self.hello = False
        self.begun = False
        self.reply: bytes | None = None
        self.noise = 0
        self.heard = ""
        self._marker = marker
        self._tail = bytearray()

    def feed(self, data: bytes) -> bool:
        """Take more bytes; true once nothing more needs to be read."""
        if self.reply is not None:
            return True
        self._tail += data
        if not self.begun:
            self._skip_noise()
        if self.begun:
            self._find_end()
        return self.reply is not None or self.too_much

    @property
    def too_much(self) -> bool:
        """Whether the host printed more than any reply or login file does."""
        limit = REPLY_LIMIT if self.begun else NOISE_LIMIT
        return self.reply is None and self.noise + len(self._tail) > limit

    def words(self) -> str:
        """The last words of the host that are not ours, fit to stand in a sentence."""
        return clean(bytes(self._tail[-_KEEP:]))

    def _skip_noise(self) -> None:
        if not self.hello:
            self.hello = self._drop_through(hello_mark(self._marker))
        if self._drop_through(begin_mark(self._marker)):
            self.hello = self.begun = True
            self.noise = 0
        elif len(self._tail) > 2 * _KEEP:
            self.noise += len(self._tail) - _KEEP
            del self._tail[:-_KEEP]

    def _drop_through(self, mark: bytes) -> bool:
        at = self._tail.find(mark)
        if at < 0:
            return False
        self.noise += at
        self.heard = clean(bytes(self._tail[max(0, at - _KEEP) : at])) or self.heard
        del self._tail[: at + len(mark)]
        return True

    def _find_end(self) -> None:
        at = self._tail.find(end_mark(self._marker))
        if at >= 0:
            self.reply = bytes(self._tail[:at])


def clean(data: bytes) -> str:
    """Bytes of unknown origin as one short printable line; what is cut off is the beginning."""
    text = _ESCAPES.sub("", data.decode("utf-8", "replace"))
    text = _CONTROL.sub(" ", text.replace("\r", "\n")).replace("\ufffd", "?")
    lines = [" ".join(line.split()) for line in text.split("\n")]
    joined = " / ".join(line for line in lines if line)
    return joined if len(joined) <= _WORDS else "…" + joined[-_WORDS:]
