"""The one error of launchers: where it broke, whether it will pass, and what the host said.

Those who decide (the watcher, a verb's exit code) go by the fields; people read the sentence, which
holds the host's last words, because they are most often the explanation.
"""

from __future__ import annotations

import copy
import os
import shlex

from ctl.launchers.script import ReplyReader
from fsworker.errors import FleetError, Refused

ALREADY_RUNNING = "already_running"
"""The host side's code when a wrapper or a worker of the run is there."""

STAGES = ("connect", "banner", "hostkey", "auth", "command", "reply", "timeout")


class LaunchError(FleetError):
    """A host could not be asked, or would not.

    `stage` is one of STAGES. `transient`: the same may work in a while. `timed_out`: a bound of
    ours ended it. `denied`: the host's own words when it says no to us rather than fails. `code` is
    the host side's, such as `already_running`.
    """

    def __init__(
        self,
        message: str,
        *,
        host: str,
        stage: str,
        transient: bool = False,
        timed_out: bool = False,
        denied: str | None = None,
        code: str | None = None,
        path: str | None = None,
        action: str | None = None,
    ) -> None:
        super().__init__(message, host=host, path=path, action=action)
        self.stage = stage
        self.transient = transient
        self.timed_out = timed_out
        self.denied = denied
        self.code = code
        if stage == "hostkey" or code == ALREADY_RUNNING:
            self.exit_code = Refused.exit_code  # it could be done, and must not

    @property
    def not_ours(self) -> bool:
        """Whether another launch runs there, which whoever tried this one must leave alone."""
        return self.code == ALREADY_RUNNING

    @property
    def nothing_ran(self) -> bool:
        """Whether it is certain that the host side started nothing, or undid what it started."""
        early = self.stage in ("connect", "banner", "hostkey", "auth") or self.denied is not None
        return early or (self.stage == "command" and self.code is not None)

    @property
    def worth_retrying(self) -> bool:
        """Whether to try again at once; what took its whole time is left to the next sweep."""
        return self.transient and not self.timed_out

    def with_words(self, words: str) -> LaunchError:
        """The same error with the host's last words added."""
        if not words:
            return self
        error = copy.copy(self)
        error.args = (f"{self}; its last words: {words}",)
        return error

    def __reduce__(self) -> tuple[object, ...]:
        # Not by calling the class, which wants more than the sentence.
        return (type(self).__new__, (type(self), *self.args), self.__dict__)


def no_reply(
    host: str, reader: ReplyReader, status: int | None, python: str, bundle: str | None = None
) -> LaunchError:
    """Why there is no reply in what the host printed before its command ended.

    `bundle` is the file that was to answer, below the run root; None where the package was.
    """
    words, ended = reader.words(), "" if status is None else f" (exit status {status})"
    if reader.too_much:
        return _reply_error(host, f"prints without end: {words}")
    if reader.begun:
        return _reply_error(host, f"its reply was cut off{ended}: {words}")
    if not reader.hello and words:
        # The script's first line never ran, and somebody said something instead.
        text = f"host {host} refuses to run commands{ended}: {words}"
        return LaunchError(text, host=host, stage="command", denied=words)
    if bundle and (any(sign in words for sign in _NO_BUNDLE) or (status == 0 and not words)):
        return _no_bundle(host, bundle, words)
    if not words:
        return _reply_error(host, f"the command ended without a word{ended}")
    if status in (126, 127):
        return _reply_error(host, f"the interpreter {python} cannot be run there: {words}")
    if "No module named" in words:
        return _reply_error(host, f"{python} does not find the package there: {words}")
    return _reply_error(host, f"no reply came{ended}: {words}")


_NO_BUNDLE = ("can't open file", "find '__main__'", "SyntaxError", "zipimport", "ZipImport", "zlib")
"""What a Python says of a bundle that is not there, or that is no whole one. Of an empty one it
says nothing and is content."""


def _no_bundle(host: str, bundle: str, words: str) -> LaunchError:
    root = os.path.dirname(os.path.dirname(bundle))
    advice = f"ctl bundle --root {shlex.quote(root)} of its release writes it anew"
    text = f"the bundle {bundle} is damaged or missing: {advice}" + (f": {words}" if words else "")
    return _reply_error(host, text, path=bundle, action=advice)


def _reply_error(
    host: str, text: str, *, path: str | None = None, action: str | None = None
) -> LaunchError:
    return LaunchError(f"host {host}: {text}", host=host, stage="reply", path=path, action=action)
