"""What a host allows an account: its quota, and how sshd takes logins; None where nobody tells."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess

_SSHD = "/etc/ssh/sshd_config"
_TOOL_WITHIN = 10.0
_COLUMNS = 8
"""Of `quota`: blocks, quota, limit, grace, and the same of files, behind the filesystem's name."""


def quota(root: str) -> dict[str, int] | None:
    """The account's blocks (kB) and files on the filesystem of `root`, each with its limit.

    0 is no limit. None where no tool tells: what is written for a trial must do then. A file
    server that does not answer for quotas is nobody's fault here, and is waited for briefly.
    """
    tool = shutil.which("quota", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/sbin")
    if tool is None:
        return None
    where = os.path.realpath(root)
    while not os.path.ismount(where):
        where = os.path.dirname(where)
    argv = [tool, "--no-wrap", "--raw-grace", "--quiet-refuse", f"--filesystem={where}"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_WITHIN,
            env={**os.environ, "LC_ALL": "C"},
            check=False,  # 1 where something is exceeded, and where there is no quota
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_quota(done.stdout.decode("utf-8", "replace"))


def parse_quota(text: str) -> dict[str, int] | None:
    """The numbers of the last filesystem in the output of `quota --no-wrap --raw-grace`."""
    for line in reversed(text.splitlines()):
        words = [word.rstrip("*") for word in line.split()[-_COLUMNS:]]
        if len(words) == _COLUMNS and all(word.isascii() and word.isdigit() for word in words):
            used, soft, hard, _, files, soft_files, hard_files, _ = map(int, words)
            return {
                "used": used,
                "limit": _least(soft, hard),
                "files": files,
                "files_limit": _least(soft_files, hard_files),
            }
    return None


def _least(soft: int, hard: int) -> int:
    return min((limit for limit in (soft, hard) if limit), default=0)


def sshd_config(file: str = _SSHD) -> str | None:
    """sshd's settings with the files that they include, in the order in which the first one wins.

    None where this account may not read them, as on many systems, or where there is no sshd.
    """
    try:
        return "\n".join(_lines(file, 0))
    except OSError:
        return None


def _lines(file: str, depth: int) -> list[str]:
    found: list[str] = []
    with open(file, encoding="utf-8", errors="replace") as stream:
        for line in stream.read(1 << 20).splitlines():
            words = line.replace("=", " ", 1).split()
            if len(words) < 2 or words[0].lower() != "include" or depth > 3:
                found.append(line)
                continue
            for pattern in words[1:]:
                where = os.path.join(os.path.dirname(_SSHD), pattern.strip('"'))
                for each in sorted(glob.glob(where)):
                    found += _lines(each, depth + 1)
    return found
