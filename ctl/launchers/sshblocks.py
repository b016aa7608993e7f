"""Settings of many hosts from few runs of `ssh -G`, where a configuration is plain enough.

Asking ssh costs a process for each host, which on a first contact is most of our work. But most of
a fleet differs in name, address, port and user alone. So `Host` blocks are read here, ssh is asked
once for all hosts for which the same blocks count, and what differs is put in. Only what this page
is certain of: after `Match`, a quote, an odd token or anything else that it does not know, ssh is
asked for every host. The first answer of each kind is compared with what would have been put in.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ctl.launchers import sshconfig
from ctl.launchers.hostkeys import fits
from ctl.launchers.sshconfig import Settings

_SYSTEM = "/etc/ssh/ssh_config"
_PROGRAMS = ("/usr/bin/ssh", "/bin/ssh")
"""Those that read it. Others were perhaps built to read another file."""
_ADDRESS = ("hostname", "port", "user")
_RAW = ("proxycommand", "proxyjump", "identityfile", "certificatefile", "controlpath")
"""What ssh shows without expanding its tokens, or what is of no use to us."""
_ODD = re.compile(r"match|tag|canonical\w*|.*\bcanonical.*")
_PLAIN_HOST = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PLAIN_VALUE = {
    "hostname": re.compile(r"(?:%h|[a-z0-9._:-])+"),
    "port": re.compile(r"[1-9][0-9]*"),
    "user": re.compile(r"[A-Za-z0-9._-]+"),
}
_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(\S.*)")


class NotPlain(Exception):
    """Something that is not understood here for certain."""


@dataclass
class Block:
    """Lines for the hosts of some patterns, None for all: the address, and whether that is all."""

    patterns: tuple[str, ...] | None
    address: dict[str, str] = field(default_factory=dict)
    more: bool = False

    def counts_for(self, host: str) -> bool:
        """Whether ssh reads these lines for this host."""
        if self.patterns is None:
            return True
        if any(p[0] == "!" and fits(p[1:], host) for p in self.patterns):
            return False
        return any(p[0] != "!" and fits(p, host) for p in self.patterns)


def parse(text: str) -> Iterator[Block | str]:
    """The blocks of a file in order, and the patterns of files that it includes. NotPlain."""
    block = Block(None)
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or "#" in line:
            raise NotPlain(line)
        keyword, value = match[1].lower(), match[2]
        if keyword == "host":
            yield block
            block = Block(_patterns(value))
        elif keyword == "include":
            if block.patterns is not None or not re.fullmatch(r"/[\w/.*-]+", value):
                raise NotPlain(line)
            yield block
            yield value
            block = Block(None)
        elif keyword in _ADDRESS:
            if not _PLAIN_VALUE[keyword].fullmatch(value):
                raise NotPlain(line)
            block.address.setdefault(keyword, value)
        elif _ODD.fullmatch(keyword) or ("%" in value and keyword not in _RAW):
            raise NotPlain(line)
        else:
            block.more = True
    yield block


def _patterns(value: str) -> tuple[str, ...]:
    if not re.fullmatch(r"[A-Za-z0-9._*?!\s-]+", value) or "!" in value.split():
        raise NotPlain(value)
    return tuple(value.split())


class SshConfig:
    """The settings of hosts by one configuration. Safe to use from many threads."""

    def __init__(self, file: str | None = None) -> None:
        self.asked = 0
        self._file = file
        self._guard = threading.Lock()
        self._stamp: object = None
        self._paths: list[str] = []
        self._blocks: list[Block] | None = None
        self._answers: dict[tuple[int, ...], tuple[str, dict[str, list[str]]]] = {}

    def effective(self, host: str, options: Mapping[str, str] | None = None) -> Settings:
        """The settings of `host`, as `sshconfig.effective` has them. LaunchError."""
        if not options and _PLAIN_HOST.fullmatch(host):
            found = self._by_likeness(host)
            if found is not None:
                return found
        self.asked += 1
        return sshconfig.effective(host, self._file, options=options)

    def _by_likeness(self, host: str) -> Settings | None:
        base = sshconfig.ssh_argv(self._file)
        if base is None:
            return None
        with self._guard:  # whoever comes second waits for the answer, and need not ask
            blocks = self._read()
            if blocks is None:
                return None
            kind = tuple(i for i, b in enumerate(blocks) if b.more and b.counts_for(host))
            if kind not in self._answers:
                self.asked += 1
                answer = sshconfig.ask(host, base)
                if not _agrees(answer, host, blocks):
                    self._blocks = None
                    return sshconfig.parse(host, answer, base)
                self._answers[kind] = (host, answer)
            first, answer = self._answers[kind]
        given = _put_in(answer, _address(first, blocks), host, _address(host, blocks))
        return None if given is None else sshconfig.parse(host, given, base)

    def _read(self) -> list[Block] | None:
        """The blocks that hold now; None where only ssh knows."""
        stamp = [_version(path) for path in self._paths]
        if stamp != self._stamp:
            self._answers.clear()
            try:
                self._paths = []
                self._blocks = list(self._of_files())
            except (NotPlain, OSError, UnicodeDecodeError):
                self._blocks = None
            self._stamp = [_version(path) for path in self._paths]
        return self._blocks

    def _of_files(self) -> Iterator[Block]:
        program = (sshconfig.ssh_argv(None) or ("",))[0]
        if not self._file and program not in _PROGRAMS:
            raise NotPlain(program)
        files = [self._file] if self._file else [_own_config(), _SYSTEM]
        for file in files:
            yield from self._of_file(file, 0)

    def _of_file(self, file: str, depth: int) -> Iterator[Block]:
        self._paths.append(file)
        try:
            with open(file, encoding="utf-8") as stream:
                text = stream.read()
        except FileNotFoundError:
            return
        for part in parse(text):
            if isinstance(part, Block):
                yield part
                continue
            if depth > 3:
                raise NotPlain(part)
            self._paths.append(os.path.dirname(part))
            for each in sorted(glob.glob(part)):
                yield from self._of_file(each, depth + 1)


def _own_config() -> str:
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError as error:
        raise NotPlain("nobody knows this user") from error
    if os.path.expanduser("~") != home:
        raise NotPlain("HOME is not what ssh takes for it")
    return os.path.join(home, ".ssh", "config")


def _version(path: str) -> tuple[str, int, int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return (path, info.st_mtime_ns, info.st_size, info.st_ino)


def _address(host: str, blocks: Sequence[Block]) -> dict[str, str]:
    """What the configuration says of it: of each the first value that counts."""
    found: dict[str, str] = {}
    for block in blocks:
        if block.address and block.counts_for(host):
            found = {**block.address, **found}
    return found


def _shown(host: str, address: Mapping[str, str]) -> dict[str, str]:
    """The same as `ssh -G` shows it, as far as the configuration says it."""
    name = address.get("hostname", host).replace("%h", host)
    return {**address, "hostname": name}


def _agrees(answer: Mapping[str, list[str]], host: str, blocks: Sequence[Block]) -> bool:
    """Whether ssh says of a host what we would have put in."""
    expected = _shown(host, _address(host, blocks))
    return all(answer.get(keyword) == [value] for keyword, value in expected.items())


def _put_in(
    answer: Mapping[str, list[str]], first: Mapping[str, str], host: str, own: Mapping[str, str]
) -> dict[str, list[str]] | None:
    """The answer for another host, made of that for the `first`; None where they may differ."""
    jump = answer.get("proxyjump", ["none"])[0]
    shown = _shown(host, own)
    if jump != "none" and (host in jump or shown["hostname"] in jump):
        return None  # ssh does not jump over a host to itself
    made = {**answer, **{keyword: [value] for keyword, value in shown.items()}}
    if "port" in first and "port" not in own:
        made["port"] = ["22"]
    if "user" in first and "user" not in own:
        made["user"] = [pwd.getpwuid(os.getuid()).pw_name]
    return made
