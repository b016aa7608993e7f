"""What ssh itself would do to reach a host: its effective settings, read from `ssh -G`.

People have already written down how their cluster is reached, and `ssh node7` works. paramiko's
own reader of ssh_config knows neither `Match`, nor canonical names, nor half of the tokens; so the
program that owns the language is asked. Without it only the plain defaults are known.
"""

from __future__ import annotations

import base64
import getpass
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from ctl.launchers import sshrefusals
from ctl.launchers.errors import LaunchError

_DEFAULT_KEYS = tuple(f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ed25519"))
_DEFAULT_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True, slots=True)
class Settings:
    """How one host is reached. Files are absolute; `proxy` is an argv, None for plain TCP."""

    host: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    hash_known_hosts: bool = False
    family: int = socket.AF_UNSPEC
    connect_timeout: float | None = None
    keepalive: int = 15
    proxy: tuple[str, ...] | None = None
    bind_address: str | None = None

    @property
    def known_as(self) -> tuple[str, ...]:
        """The names to look up in known_hosts: the first is the one that ssh would add."""
        if self.host_key_alias:
            return (self.host_key_alias.lower(),)
        name = self.hostname.lower()
        return (name,) if self.port == 22 else (f"[{name}]:{self.port}", name)

    @property
    def gives_keys(self) -> bool:
        """Whether the configuration names key files, and does not leave them to ssh's defaults."""
        usual = {os.path.expanduser(file) for file in _DEFAULT_KEYS}
        return bool(self.identity_files) and not usual.issubset(self.identity_files)

    def key_files(self) -> list[str]:
        """The files of keys and certificates that exist, or whose public half does."""
        certified = [c for c in self.certificate_files if c.endswith("-cert.pub")]
        listed = dict.fromkeys([*self.identity_files, *certified])
        return [f for f in listed if os.path.exists(f) or os.path.exists(f + ".pub")]


def effective(
    host: str,
    config: str | None = None,
    timeout: float = 20.0,
    options: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of `host`, with `config` in place of the user's ssh_config. LaunchError.

    `options` win over both, as those on the command line of ssh do.
    """
    if host.startswith("-") or not host:
        raise _error(host, f"{host!r} is not a host name")
    base = ssh_argv(config)
    if base is None:
        if config or options:
            what = config or "its ssh options"
            raise _error(host, f"no ssh is installed here, so {what} cannot be read")
        return parse(host, {"hostname": [host]}, ("ssh",))
    words = [word for k, v in (options or {}).items() for word in ("-o", f"{k}={v}")]
    return parse(host, ask(host, [*base, *words], timeout), base, options or {})


def ssh_argv(config: str | None) -> tuple[str, ...] | None:
    """How ssh is called with `config` in place of the user's; None where there is no ssh."""
    ssh = _program(os.environ.get("PATH"))
    if ssh is None:
        return None
    return (ssh, "-F", config) if config else (ssh,)


@lru_cache(maxsize=4)
def _program(path: str | None) -> str | None:
    """Where ssh is; looked for once, and not once for each host."""
    return shutil.which("ssh", path=path)


def ask(host: str, ssh: Sequence[str], timeout: float = 20.0) -> dict[str, list[str]]:
    """What `ssh -G` says of a host; `ssh` is how it is called. LaunchError."""
    argv = [*ssh, "-G", "--", host]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _error(host, f"its ssh settings cannot be read: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().replace("\r", "")
        raise _error(host, "ssh rejects its configuration: " + " / ".join(said.splitlines()))
    return read_output(done.stdout.decode("utf-8", "surrogateescape"))


def read_output(text: str) -> dict[str, list[str]]:
    """The output of `ssh -G`: each keyword with its values in order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword.lower(), []).append(value)
    return found


def parse(
    host: str,
    given: Mapping[str, list[str]],
    ssh: Sequence[str],
    options: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """Settings from what `read_output` found; `ssh` is how ssh is called with the same config.

    LaunchError for what cannot be followed. `options` are those that won over the config.
    """
    sshrefusals.check(host, given, ssh, options)

    def one(keyword: str, default: str = "") -> str:
        value = given.get(keyword, [default])[0]
        return default if value.lower() == "none" else value

    def listed(keyword: str, default: Sequence[str]) -> tuple[str, ...]:
        values = [v for v in given.get(keyword, default) if v.lower() != "none"]
        return tuple(_expand(v, tokens) for v in values)

    def known(keyword: str, default: Sequence[str]) -> tuple[str, ...]:
        files = split_files(one(keyword)) if keyword in given else list(default)
        return tuple(_expand(f, tokens) for f in files)

    tokens = _tokens(host, one("hostname", host), one("port", "22"), one("user"))
    seconds = one("connecttimeout")
    return Settings(
        host=host,
        hostname=tokens["h"],
        port=int(tokens["p"]),
        user=tokens["r"],
        identity_files=listed("identityfile", _DEFAULT_KEYS),
        certificate_files=listed("certificatefile", ()),
        identities_only=one("identitiesonly") == "yes",
        agent=_agent(given.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        user_known_hosts=known("userknownhostsfile", _DEFAULT_KNOWN),
        global_known_hosts=known("globalknownhostsfile", _GLOBAL_KNOWN),
        host_key_alias=one("hostkeyalias") or None,
        hash_known_hosts=one("hashknownhosts") == "yes",
        family=_FAMILIES.get(one("addressfamily"), socket.AF_UNSPEC),
        connect_timeout=float(seconds) if seconds.isdigit() and int(seconds) else None,
        keepalive=int(one("serveraliveinterval", "0")) or 15,
        proxy=_proxy(given, tokens, ssh),
        bind_address=one("bindaddress") or None,
    )


_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


def split_files(value: str) -> list[str]:
    """File names from one line of `ssh -G`, which does not quote the blanks within names.

    The longest run of words that names an existing file is taken for one name.
    """
    words, files = value.split(), []
    while words:
        sizes = range(len(words), 1, -1)
        whole = (n for n in sizes if os.path.exists(os.path.expanduser(" ".join(words[:n]))))
        size = next(whole, 1)
        files.append(" ".join(words[:size]))
        del words[:size]
    return files


def _tokens(host: str, hostname: str, port: str, user: str) -> dict[str, str]:
    local, me = socket.gethostname(), _login_name()
    return {
        "%": "%",
        "d": os.path.expanduser("~"),
        "h": hostname,
        "i": str(os.getuid()),
        "L": local.partition(".")[0],
        "l": local,
        "n": host,
        "p": port,
        "r": user or me,
        "u": me,
    }


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid that no directory knows, as in a container
        return str(os.getuid())


def _expand(value: str, tokens: Mapping[str, str]) -> str:
    value = _percent(value, tokens)
    value = re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], ""), value)
    return os.path.abspath(os.path.expanduser(value))


def _percent(value: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), value)


def _agent(value: str, tokens: Mapping[str, str]) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:]) or None
    return _expand(value, tokens)


def _proxy(
    given: Mapping[str, list[str]], tokens: Mapping[str, str], ssh: Sequence[str]
) -> tuple[str, ...] | None:
    command = given.get("proxycommand", ["none"])[0]
    jump = given.get("proxyjump", ["none"])[0]
    if command.lower() != "none":
        return ("/bin/sh", "-c", "exec " + _percent(command, tokens))
    if jump.lower() != "none":
        return jump_argv(jump, tokens["h"], tokens["p"], ssh)
    return None


def jump_argv(jump: str, hostname: str, port: str, ssh: Sequence[str]) -> tuple[str, ...]:
    """The ssh that reaches hostname:port by way of the hops in `jump`, and asks nothing."""
    before, _, last = jump.rpartition(",")
    match = re.fullmatch(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]]+\]|[^:/]+)(?::(\d+))?/?", last)
    user, hop, hop_port = match.groups() if match else (None, last, None)
    argv = [*ssh, "-o", "BatchMode=yes", "-o", "ControlPath=none", "-o", "ClearAllForwardings=no"]
    argv += ["-W", f"[{hostname}]:{port}"]
    argv += ["-J", before] if before else []
    argv += ["-l", user] if user else []
    argv += ["-p", hop_port] if hop_port else []
    return (*argv, "--", hop.strip("[]"))


def _error(host: str, text: str) -> LaunchError:
    return LaunchError(f"host {host}: {text}", host=host, stage="connect")


def public_blob(file: str) -> bytes | None:
    """The public half that lies beside a key file, as the agent and the host know it."""
    try:
        with open(file + ".pub", "rb") as stream:
            return base64.b64decode(stream.read(64 << 10).split()[1])
    except (OSError, IndexError, ValueError):
        return None


def show(argv: Sequence[str]) -> str:
    """A command as a person would type it."""
    return shlex.join(argv[2:]) if argv[:2] == ("/bin/sh", "-c") else shlex.join(argv)
