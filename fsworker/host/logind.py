"""Will the login manager of this host end our processes when the connection is closed?

systemd-logind may be set to end everything of a session at logout, a session of its own
notwithstanding. A start that succeeds and is undone a second later must not be called a success
without a word, so the settings are read and said.
"""

from __future__ import annotations

import os
import pwd
import re

_FOLDERS = ("usr/lib/systemd", "run/systemd", "etc/systemd")  # later ones override
_SETTING = re.compile(r"\s*(#?)\s*(Kill[A-Za-z]+)\s*=\s*(.*?)\s*")
_TRUE = ("1", "yes", "y", "true", "t", "on")


def session_warnings(base: str = "/", user: str | None = None) -> list[str]:
    """Sentences about what will happen at logout; none where nothing will. `base` is for tests."""
    user = user or _user_name()
    cgroup = _read(os.path.join(base, "proc/self/cgroup"))
    lingers = os.path.exists(os.path.join(base, "var/lib/systemd/linger", user))
    if re.search(r"/session-[^/\n]*\.scope", cgroup):
        if not _kills(_settings(base), user):
            return []
        advice = "start it below `systemd-run --user --scope`" if lingers else _LINGER.format(user)
        return [f"logind ends what {user} started here at logout (KillUserProcesses=yes): {advice}"]
    if re.search(r"/user@\d+\.service", cgroup) and not lingers:
        return [f"logind ends what {user} started here at the last logout: " + _LINGER.format(user)]
    return []


_LINGER = "`loginctl enable-linger {}` prevents that where the site permits it"


def _kills(settings: dict[str, str], user: str) -> bool:
    """The rule of logind: an excluded user never, else the listed ones, else as the switch says."""
    if user in settings.get("KillExcludeUsers", "root").split():
        return False
    only = settings.get("KillOnlyUsers", "").split()
    return user in only if only else settings.get("KillUserProcesses", "no").lower() in _TRUE


def _settings(base: str) -> dict[str, str]:
    """The main file, then the drop-ins by name; one in /etc replaces its namesake elsewhere."""
    main: list[str] = []
    parts: dict[str, str] = {}
    for folder in _FOLDERS:
        path = os.path.join(base, folder, "logind.conf")
        main = [path] if os.path.exists(path) else main
        try:
            names = os.listdir(path + ".d")
        except OSError:
            names = []
        parts.update({n: os.path.join(path + ".d", n) for n in names if n.endswith(".conf")})
    found: dict[str, str] = {}
    for path in [*main, *(parts[name] for name in sorted(parts))]:
        for line in _read(path).splitlines():
            match = _SETTING.fullmatch(line)
            if match and not match[1]:
                found[match[2]] = match[3]
            elif match and path in main:
                # What is commented out in the main file shows the default it was built with.
                found.setdefault(match[2], match[3])
    return found


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER", str(os.getuid()))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
