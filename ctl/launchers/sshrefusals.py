"""What ssh would heed of its configuration and we cannot: a host is refused rather than misread.

To ignore such a line would reach a host by another way, or with a key, than its owner allowed. Who
has to change it is told where it stands: file, line and directive.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from ctl.launchers.errors import LaunchError

_NO_KEYS = "only public keys are supported"
_HEAD = re.compile(r"\s*(?:host|match)\b", re.IGNORECASE)
_ALWAYS = re.compile(r"\s*match\s.*\b(?:all|final|canonical)\b", re.IGNORECASE)
_READS = re.compile(r"^debug1: Reading configuration data (.+)$")
_APPLIES = re.compile(r"^debug1: (.+) line (\d+): Applying options for ")
_MATCHES = re.compile(r"^debug3: (.+) line (\d+): (?:not )?matched ")


def _unless(*fine: str) -> re.Pattern[str]:
    return re.compile(rf"(?!(?:{'|'.join(fine)})$).*", re.IGNORECASE)


_REFUSED: Mapping[str, tuple[str, re.Pattern[str], str]] = {
    "proxyusefdpass": (
        "ProxyUseFdpass",
        _unless("no", "false"),
        "use a ProxyCommand without it",
    ),
    "bindinterface": ("BindInterface", _unless("none"), "use BindAddress"),
    "revokedhostkeys": (
        "RevokedHostKeys",
        _unless("none"),
        "mark the keys with @revoked in known_hosts",
    ),
    "pubkeyauthentication": ("PubkeyAuthentication", re.compile(r"no|false", re.I), _NO_KEYS),
    "preferredauthentications": (
        "PreferredAuthentications",
        re.compile(r"(?!(?:.*,)?publickey(?:,|$)).*", re.I),
        _NO_KEYS,
    ),
}
"""By keyword as `ssh -G` shows it: the directive, which values are refused, what to do instead."""


def check(
    host: str, given: Mapping[str, list[str]], ssh: Sequence[str], options: Mapping[str, str]
) -> None:
    """LaunchError when the settings hold what cannot be followed. `options` were put before it."""
    for keyword, (directive, refused, advice) in _REFUSED.items():
        value = given.get(keyword, [""])[0]
        if value and refused.fullmatch(value):
            place = _place(host, keyword, ssh, options)
            raise LaunchError(
                f"host {host}: {place}{directive} {value} is not supported: {advice}",
                host=host,
                stage="connect",
            )


def _place(host: str, keyword: str, ssh: Sequence[str], options: Mapping[str, str]) -> str:
    """Where it was said, as `FILE line N: `; empty when ssh does not tell."""
    if keyword in {name.lower() for name in options}:
        return "its ssh options in fleet.toml: "
    try:
        done = subprocess.run(
            [*ssh, "-G", "-vvv", "--", host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for file, start in _blocks(done.stderr.decode("utf-8", "surrogateescape").splitlines()):
        for number in _lines_with(keyword, file, start):
            return f"{file} line {number}: "
    return ""


def _blocks(said: Sequence[str]) -> Iterator[tuple[str, int | None]]:
    """The parts of files that ssh says it applied, in its order, by the line that begins each.

    0 is the beginning of a file, None a `Match all`, of which it does not say where it stands.
    """
    file, number = "", None
    for line in said:
        if match := _READS.match(line):
            file = match[1]
            yield file, 0
        elif match := _APPLIES.match(line):
            yield match[1], int(match[2])
        elif line.startswith("debug2: checking match"):
            number = None
        elif match := _MATCHES.match(line):
            file, number = match[1], int(match[2])
        elif line == "debug2: match found" and file:
            yield file, number


def _lines_with(keyword: str, file: str, start: int | None) -> Iterator[int]:
    """The lines that set the keyword in the block that begins at line `start`."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(1 << 20).splitlines()
    except OSError:
        return
    inside = start == 0
    for number, line in enumerate(lines, 1):
        if _HEAD.match(line):
            inside = number == start or (start is None and _ALWAYS.match(line) is not None)
        elif inside and re.match(rf"\s*{keyword}\b", line, re.IGNORECASE):
            yield number
