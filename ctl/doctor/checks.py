"""From what a host measured to lines that say ok, warn or fail, and what to do. Pure.

A warning is what a run survives and its users will notice; a failure is what it will not survive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ctl.mounts import mount_of, parse

OK, WARN, FAIL = "ok", "warn", "fail"

SLOW_LOGIN = 10.0
SLOW_RENAME = 0.25
SLOW_TRIAL = 5.0
LATE_SIGHT = 3.0
"""Seconds there and back: with more, heartbeats look old and claims come late."""
SKEWED = 5.0
LITTLE_SPACE = 1 << 30
FEW_INODES = 100_000
FEW_FILES = 1024
FEW_PROCESSES = 1024
NEARLY_FULL = 0.9
_STARTUPS = re.compile(r"^\s*MaxStartups(?:\s*=\s*|\s+)\"?((\d+)[:\d]*)", re.M | re.I)


@dataclass(frozen=True)
class Check:
    """One line about one host. `advice` is empty where all is well."""

    level: str
    what: str
    words: str
    advice: str = ""

    def fields(self, host: str) -> dict[str, Any]:
        """The line as a JSON object."""
        return {"host": host, **vars(self)}


@dataclass(frozen=True)
class Here:
    """What the head knows, to compare with: its own facts, and how many hosts it starts at once."""

    version: str
    digest: str
    python: str
    width: int
    packages: Mapping[str, str | None] = field(default_factory=dict)


Facts = Mapping[str, Any]


def judge(facts: Facts, seconds: float, here: Here) -> list[Check]:
    """All lines about one host, in the order in which they matter; `seconds`: the whole answer."""
    found = [_login(seconds - facts.get("took", 0.0))]
    for name, check in _CHECKS.items():
        if name in facts.get("problems", {}):
            found.append(Check(FAIL, name, facts["problems"][name], _ADVICE.get(name, "")))
        elif name in facts:
            found.extend(check(facts, here))
    return found


def worst(checks: Iterable[Check]) -> str:
    """The level that the whole has."""
    levels = {check.level for check in checks}
    return FAIL if FAIL in levels else WARN if WARN in levels else OK


def _login(seconds: float) -> Check:
    words = f"logged in and answered in {seconds:.1f} s"
    if seconds > SLOW_LOGIN:
        return Check(WARN, "login", words, "look at its login files, DNS (UseDNS) and load")
    return Check(OK, "login", words)


def _python(facts: Facts, here: Here) -> Iterator[Check]:
    there = facts["python"]
    words = f"Python {there['version']} at {there['path']}, shardfleet {there['shardfleet']}"
    if there["shardfleet"] != here.version:
        yield Check(
            FAIL, "python", f"{words}; the head has {here.version}", "install the same release"
        )
    elif there["digest"] != here.digest:
        yield Check(
            WARN, "python", f"{words}; its code differs from the head's", "install the same release"
        )
    elif there["version"].rsplit(".", 1)[0] != here.python.rsplit(".", 1)[0]:
        yield Check(WARN, "python", f"{words}; the head has Python {here.python}", "use one Python")
    else:
        yield Check(OK, "python", words)


def _packages(facts: Facts, here: Here) -> Iterator[Check]:
    there = facts["packages"]
    missing = [name for name, version in there.items() if version is None]
    words = ", ".join(f"{n} {v}" for n, v in there.items())
    ours = {n: here.packages.get(n) for n in there}
    others = [f"{n} {v}" for n, v in ours.items() if v is not None and v != there[n]]
    if missing:
        yield Check(
            FAIL, "packages", f"missing: {', '.join(missing)}", "install shardfleet there by pip"
        )
    elif others:
        told = f"{words}; the head has {', '.join(others)}"
        yield Check(WARN, "packages", told, "install the same versions, or use a bundle")
    else:
        yield Check(OK, "packages", words)


def _functions(facts: Facts, here: Here) -> Iterator[Check]:
    for name, why in facts["functions"].items():
        if why:
            yield Check(FAIL, "function", f"{name}: {why}", "install what it needs, or --repo")
        else:
            yield Check(OK, "function", f"{name} can be imported")


def _mounts(facts: Facts, here: Here) -> Iterator[Check]:
    mount = mount_of(facts.get("real_root", "/"), parse(facts["mounts"]))
    if mount is None:
        yield Check(WARN, "mount", "the mount table does not tell", "look at it by hand")
        return
    words = f"{mount.kind} on {mount.point}"
    nfs = mount.kind.startswith("nfs")
    if "ro" in mount.options:
        yield Check(FAIL, "mount", f"{words} is read-only", "mount it read-write")
    elif nfs and "nocto" in mount.options:
        yield Check(FAIL, "mount", f"{words} with nocto: changes are not seen", "mount without")
    elif nfs and mount.options & {"soft", "softerr"}:
        advice = "mount it hard, or expect errors that pass when the server is slow"
        yield Check(WARN, "mount", f"{words}, soft", advice)
    elif nfs and _seconds(mount.options, "acdirmax") > 60:
        yield Check(WARN, "mount", f"{words} with a long acdirmax", "leave the default of 60 s")
    else:
        yield Check(OK, "mount", words)


def _seconds(options: Iterable[str], name: str) -> int:
    values = [o.partition("=")[2] for o in options if o.startswith(f"{name}=")]
    return max((int(v) for v in values if v.isdigit()), default=0)


def _space(facts: Facts, here: Here) -> Iterator[Check]:
    room = facts["space"]
    words = f"{room['free'] / (1 << 30):.1f} GiB free"
    if room["inodes"]:
        words += f", {room['inodes_free']:,} files more"
    if room["free"] < LITTLE_SPACE:
        yield Check(WARN, "space", words, "make room, or name another root")
    elif room["inodes"] and room["inodes_free"] < FEW_INODES:
        yield Check(WARN, "space", words, "remove files: each batch needs two or three for a while")
    else:
        yield Check(OK, "space", words)


def _quota(facts: Facts, here: Here) -> Iterator[Check]:
    found = facts["quota"]
    if found is None:
        yield Check(OK, "quota", "no tool tells of one; the write that was tried went through")
        return
    full, told = [], []
    for what, used, limit, size in (
        ("GiB", found["used"], found["limit"], 1 << 20),
        ("files", found["files"], found["files_limit"], 1),
    ):
        if limit:
            told.append(f"{_amount(used / size)} of {_amount(limit / size)} {what}")
            full += [what] if used >= NEARLY_FULL * limit else []
    words = ", ".join(told) + " are used" if told else "this account has no limit"
    advice = "remove what is not needed, or ask for more: a full quota stops all work"
    yield Check(WARN, "quota", words, advice) if full else Check(OK, "quota", words)


def _amount(number: float) -> str:
    return f"{number:,.1f}" if number % 1 else f"{number:,.0f}"


def _limits(facts: Facts, here: Here) -> Iterator[Check]:
    files, processes = facts["limits"]["files"][0], facts["limits"]["processes"][0]
    words = f"open files {_number(files)}, processes {_number(processes)}"
    few = [n for n, v, least in (("-n", files, FEW_FILES), ("-u", processes, FEW_PROCESSES))
           if 0 <= v < least]  # fmt: skip
    if few:
        yield Check(WARN, "limits", words, f"raise ulimit {' and '.join(few)} for this account")
    else:
        yield Check(OK, "limits", words)


def _number(limit: int) -> str:
    return "unlimited" if limit < 0 else f"{limit:,}"


def _logout(facts: Facts, here: Here) -> Iterator[Check]:
    for sentence in facts["login"]:
        yield Check(FAIL, "logout", sentence.partition(": ")[0], sentence.partition(": ")[2])
    if not facts["login"]:
        yield Check(OK, "logout", "what is started stays when the connection ends")


def _sshd(facts: Facts, here: Here) -> Iterator[Check]:
    if facts["sshd"] is None:
        yield Check(OK, "sshd", "this account may not read MaxStartups, or none runs")
        return
    match = _STARTUPS.search(facts["sshd"])
    if match is None:
        yield Check(OK, "sshd", "MaxStartups is the default")
    elif int(match[2]) < min(here.width, 10):
        words = f"MaxStartups {match[1]}, and up to {here.width} logins at once"
        yield Check(WARN, "sshd", words, "it matters behind a gateway: lower --width, or raise it")
    else:
        yield Check(OK, "sshd", f"MaxStartups {match[1]}")


def _clock(facts: Facts, here: Here) -> Iterator[Check]:
    ahead = facts["clock"]
    words = f"{abs(ahead):.2f} s {'ahead of' if ahead > 0 else 'behind'} the file server"
    if abs(ahead) > SKEWED:
        advice = "nothing depends on it, but its logs are hard to read: run a time service"
        yield Check(WARN, "clock", words, advice)
    else:
        yield Check(OK, "clock", words)


def _visibility(facts: Facts, here: Here) -> Iterator[Check]:
    there_and_back = facts["visibility"]
    words = f"a new file is seen there and its answer here in {there_and_back:.2f} s"
    if there_and_back > LATE_SIGHT:
        yield Check(WARN, "visibility", words, "look at acdirmin, acdirmax and the server's load")
    else:
        yield Check(OK, "visibility", words)


def _rename(facts: Facts, here: Here) -> Iterator[Check]:
    seen = facts["rename"]
    words = f"a rename takes {seen['seconds'] * 1000:.1f} ms"
    if seen["replaces"]:
        told = "a folder that is not empty was replaced by a rename"
        yield Check(FAIL, "rename", told, "this filesystem is not fit: name another root")
    elif seen["seconds"] > SLOW_RENAME:
        yield Check(WARN, "rename", words, "a batch needs three: expect few batches a second")
    else:
        yield Check(OK, "rename", words)


def _trial(facts: Facts, here: Here) -> Iterator[Check]:
    words = f"1 MiB was written and synced in {facts['trial'] * 1000:.0f} ms"
    if facts["trial"] > SLOW_TRIAL:
        yield Check(WARN, "write", words, "the storage is very slow: look at its server")
    else:
        yield Check(OK, "write", words)


_CHECKS: dict[str, Callable[[Facts, Here], Iterator[Check]]] = {
    "python": _python,
    "packages": _packages,
    "functions": _functions,
    "mounts": _mounts,
    "visibility": _visibility,
    "rename": _rename,
    "trial": _trial,
    "space": _space,
    "quota": _quota,
    "limits": _limits,
    "clock": _clock,
    "login": _logout,
    "sshd": _sshd,
}

_ADVICE = {
    "visibility": "is it the same filesystem on both sides? compare the mounts",
    "trial": "look at the quota (quota -s) and the free space",
    "rename": "look at the permissions of the root",
    "clock": "look at the permissions of the root",
    "space": "is the root mounted there?",
    "mounts": "look at the mounts by hand",
}
