"""Which hosts may be contacted, read from what people at HPC sites already write.

A host's identity is the name it is allowed under. Everything that is contacted passes through
`Allowed.select`, so that a typing error in a worker list can never reach a machine that nobody
allowed. Names that differ only in case are one machine to DNS, so two spellings are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsworker.errors import FleetError, Refused, StorageError, UsageError

_WORD = re.compile(r"(?:\[[^\]\n]*\]|[^\s,\[])+")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_-])?\.?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_ADDRESS = re.compile(r"\[(?P<ip>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?)\](?P<rest>.*)")
_RANGE = re.compile(r"(\d{1,12})-(\d{1,12})(?:/(\d{1,12}))?")

MOST = 100_000
"""Hosts that a list may name: more is a typing error, and would fill the memory."""


@dataclass(frozen=True)
class Host:
    """An allowed host: its name, and what was written with it about how to reach it."""

    name: str
    user: str | None = None
    port: int | None = None
    where: str = ""

    @property
    def key(self) -> str:
        """The spelling by which two names are the same host."""
        return self.name.lower().rstrip(".")


class Allowed:
    """The hosts that may be contacted, in the order in which they were written."""

    def __init__(self, hosts: Iterable[Host], source: str) -> None:
        self.source = source
        self._by_key: dict[str, Host] = {}
        for host in hosts:
            before = self._by_key.setdefault(host.key, host)
            if before is not host:
                raise UsageError(
                    f"{host.where}: host {host.name!r} is there already as {before.name!r} "
                    f"({before.where}): keep one of them",
                    host=host.name,
                )

    def __iter__(self) -> Iterator[Host]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and Host(name).key in self._by_key

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(h.name for h in self)

    def get(self, name: str) -> Host | None:
        """The allowed host that `name` means, whatever its case."""
        return self._by_key.get(Host(name).key)

    def check(self, name: str) -> Host:
        """The allowed host that `name` means; Refused when nobody allowed it."""
        found = self.get(name)
        if found:
            return found
        if not self:
            raise Refused(
                f"host {name!r} is not allowed, because no host is: "
                "set FLEET_HOSTS, or hosts in fleet.toml",
                host=name,
            )
        head = " (it is this machine)" if is_here(name) else ""
        raise Refused(
            f"host {name!r}{head} is not among the allowed hosts ({self.source}): add it there",
            host=name,
        )

    def select(self, names: Iterable[str]) -> list[Host]:
        """The allowed hosts that `names` mean; Refused names the first that is not allowed."""
        return [self.check(name) for name in names]


def allowed_hosts(text: str | None, source: str, file: str | None, file_source: str) -> Allowed:
    """Everything that is allowed: the list, and the host file, one after the other."""
    hosts = parse(text or "", source)
    if file:
        hosts += read_file(file)
        source = f"{source} and {file}" if text else f"{file_source}: {file}"
    return Allowed(hosts, source)


def parse(text: str, source: str) -> list[Host]:
    """Hosts from white-space or comma separated text; `#` starts a comment.

    Understands `node[01-16,20]`, `user@host`, `host:port` and `[::1]:2222`. Raises UsageError
    naming `source`, and the line where there are several.
    """
    hosts: list[Host] = []
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{source} line {number}" if len(lines) > 1 else source
        bare = line.partition("#")[0]
        if bare.count("[") != bare.count("]"):
            raise UsageError(f"{where}: {bare.strip()!r} has a bracket without its partner")
        for word in _WORD.findall(bare):
            _check_size(len(hosts) + _size(word), word, where)
            hosts += _parse_word(word, where)
    return hosts


def _check_size(size: int, word: str, where: str) -> None:
    if size > MOST:
        raise UsageError(f"{where}: with {word!r:.80} it names more than {MOST} hosts: shorten it")


def _size(word: str) -> int:
    """How many hosts a word names at most, told without making their names."""
    total = 1
    for inside in re.findall(r"\[([^\]]*)\]", word):
        total *= sum(map(_length, inside.split(",")))
    return total


def _length(text: str) -> int:
    if re.search(r"\d{13}", text):
        return MOST + 1
    found = _RANGE.fullmatch(text.strip())
    if not found:
        return 1  # one number; or nothing that is understood, which is said where it is read
    step = max(1, int(found[3] or 1))
    return max(1, (int(found[2]) - int(found[1])) // step + 1)


def read_file(path: str) -> list[Host]:
    """The hosts of a host file, as `parse` reads them."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        kind: type[FleetError] = (
            UsageError if isinstance(error, FileNotFoundError) else StorageError
        )
        raise kind(f"cannot read host file {path}: {error.strerror}", path=path) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"host file {path} is not UTF-8 (byte {error.start}): save it as plain text",
            path=path,
        ) from None
    return parse(text, path)


def names_of(text: str, source: str = "--hosts") -> list[str]:
    """The names in a `--hosts` value; a name twice is refused."""
    return [h.name for h in Allowed(parse(text, source), source)]


def _parse_word(word: str, where: str) -> list[Host]:
    user, at, rest = word.rpartition("@")
    if at and not user:
        return [_host(name, None, "", where) for name in _expand(word, where)]  # @group
    if at and not _USER.fullmatch(user):
        raise UsageError(f"{where}: {user!r} in {word!r} is not a user name")
    address = _ADDRESS.fullmatch(rest)
    if address:
        return [_host(address["ip"], user or None, address["rest"], where, address=True)]
    if "[" in rest:
        stem, _, port = rest.rpartition(":") if re.search(r"\]:\d+$", rest) else (rest, "", "")
        suffix = f":{port}" if port else ""
        return [_host(n, user or None, suffix, where) for n in _expand(stem, where)]
    if rest.count(":") > 1:
        return [_host(rest, user or None, "", where, address=True)]
    name, colon, port = rest.partition(":")
    return [_host(name, user or None, colon + port, where)]


def _host(name: str, user: str | None, suffix: str, where: str, address: bool = False) -> Host:
    if not address and not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: {name!r} is not a host name: use letters, digits, '.', '-' and '_'",
            host=name,
        )
    if address:
        _check_address(name, where)
    return Host(name, user, _port(name, suffix, where), where)


def _check_address(name: str, where: str) -> None:
    import ipaddress  # lazily: few hosts are written as addresses

    try:
        ipaddress.IPv6Address(name)
    except ValueError as error:
        raise UsageError(f"{where}: {name!r} is not an IPv6 address: {error}", host=name) from None


def _port(name: str, suffix: str, where: str) -> int | None:
    if not suffix:
        return None
    digits = suffix.removeprefix(":")
    if not (suffix[0] == ":" and digits.isascii() and digits.isdigit() and 0 < int(digits) < 65536):
        raise UsageError(f"{where}: {suffix!r} behind {name!r} is not a port", host=name)
    return int(digits)


def _expand(pattern: str, where: str) -> list[str]:
    from ClusterShell.NodeSet import (  # lazily: slow to import, and plain lists do without
        NodeSet,
        NodeSetException,
    )

    try:
        found = NodeSet(pattern)
        _check_size(len(found), pattern, where)  # a @group may be of any size
        names = [str(name) for name in found]
    except NodeSetException as error:
        raise UsageError(f"{where}: {pattern!r} is not a host set: {error}") from None
    if not names:
        raise UsageError(f"{where}: the host set {pattern!r} is empty")
    return names


def is_here(name: str) -> bool:
    """Whether `name` is a name of the machine that asks."""
    own = os.uname().nodename.lower()
    return name.lower() in {own, own.partition(".")[0], "localhost", "127.0.0.1", "::1"}
