"""A file server of the test's own: nfs-ganesha on loopback, NFSv4 only, with what can go wrong.

Two exports: `/fleet`, a folder, and `/small`, on a filesystem of some megabytes, which is filled by
a file beside what is exported; a shim below the server's `pwrite` says whether whoever writes is
over quota. Nobody may touch what is exported behind the server's back: it remembers folders. The
mounts live in a namespace of their own, so they are gone with the last process in it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.rigs.vm import end, free_port, spawn
from tests.support.waiting import gone, start_ticks, wait_until

GANESHA = "ganesha.nfsd"
SMALL_MB = 24
GRACE = 5
"""Seconds in which a restarted server waits for its clients' claims to old state."""

_CONFIG = """
NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; mount_path_pseudo = true;
    Enable_RQUOTA = false; Enable_NLM = false; Enable_UDP = false; }}
NFSV4 {{ Grace_Period = {grace}; Lease_Lifetime = 10; Graceless = true; Minor_Versions = 1,2; }}
EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4; }}
EXPORT {{ Export_Id = 1; Path = {folder}/fleet; Pseudo = /fleet; FSAL {{ Name = VFS; }} }}
EXPORT {{ Export_Id = 2; Path = {folder}/disk/small; Pseudo = /small; FSAL {{ Name = VFS; }} }}
"""

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

/* While FLAG exists, everything that is written is refused: over quota. */
static int refused(void) { return access(FLAG, F_OK) == 0; }

#define REFUSE(name, args, pass) \
  ssize_t name args { \
    static ssize_t (*real) args; \
    if (refused()) { errno = EDQUOT; return -1; } \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name); \
    return real pass; \
  }
/* The server loads its modules so that they prefer the C library's symbols to ours. */
void *dlopen(const char *name, int flags) {
  static void *(*real)(const char *, int);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
  return real(name, flags & ~RTLD_DEEPBIND);
}
REFUSE(pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
REFUSE(pwrite64, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
REFUSE(pwritev, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
REFUSE(pwritev64, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
"""


def missing() -> str | None:
    """One sentence on what this machine lacks for a file server, or None."""
    if os.geteuid() != 0:
        return "a file server needs root, to open files by handle"
    wanted = {
        GANESHA: "nfs-ganesha and nfs-ganesha-vfs",
        "mkfs.ext4": "e2fsprogs",
        "mount.nfs4": "nfs-common",
        "unshare": "util-linux",
        "gcc": "gcc and libc6-dev",
    }
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for program, package in wanted.items():
        if not shutil.which(program, path=path):
            return f"a file server needs {program} ({package})"
    return None


@dataclass
class Server:
    """The server. `holder` is the process whose mount namespace holds the small filesystem."""

    folder: str
    port: int = 0
    stay: bool = False
    pid: int = 0
    ticks: int | None = None
    holder: int = 0
    holder_ticks: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Server:
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def flag(self) -> Path:
        """While this file exists, whoever writes is over quota."""
        return Path(self.folder) / "over-quota"

    def prepare(self) -> None:
        """Make what is exported, and the shim; once."""
        base = Path(self.folder)
        for name in ("fleet", "disk"):
            (base / name).mkdir(parents=True)
        (base / "fleet").chmod(0o777)
        self.port = free_port()
        (base / "conf").write_text(_CONFIG.format(port=self.port, grace=GRACE, folder=base))
        (base / "shim.c").write_text(_SHIM)
        shim = ["gcc", "-shared", "-fPIC", "-O1", f'-DFLAG="{self.flag}"', "-o", base / "shim.so"]
        subprocess.run([*shim, base / "shim.c", "-ldl"], check=True)
        image = base / "small.img"
        with image.open("wb") as file:
            file.truncate(SMALL_MB << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-F", image], check=True)
        self._hold(image, base / "disk")

    def start(self) -> None:
        """Start it; returns once it answers."""
        base = Path(self.folder)
        argv = [*self._inside(), GANESHA, "-F", "-f", str(base / "conf"), "-L", str(base / "log")]
        argv += ["-p", str(base / "pid")]
        self.pid, self.ticks = self._spawn(argv, LD_PRELOAD=str(base / "shim.so"))
        wait_until(self._answers, 60, f"the file server answers ({base / 'log'})")

    @property
    def running(self) -> bool:
        """Whether its process is there, paused or not."""
        return bool(self.pid) and start_ticks(self.pid) == self.ticks and not gone(self.pid)

    def pause(self) -> None:
        """It answers nobody any more; its connections stand."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once: its connections break, its files stay."""
        end(self.pid, self.ticks)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        """End everything."""
        self.kill()
        end(self.holder, self.holder_ticks)

    def fill(self) -> None:
        """Take all that is left of the small filesystem."""
        more = "dd if=/dev/zero of=$0/fill oflag=append conv=notrunc,fsync bs={size} 2>/dev/null"
        self._sh("; ".join([*(more.format(size=size) for size in ("64k", "1k")), "true"]))

    def clear(self) -> None:
        """Give it back."""
        self._sh("rm -f $0/fill")

    def _sh(self, script: str) -> None:
        """Run a shell script where the small filesystem is mounted, at `$0`."""
        argv = [*self._inside(), "sh", "-c", script, f"{self.folder}/disk"]
        subprocess.run(argv, check=True)

    def _inside(self) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.holder}/ns/mnt", "--"]

    def _hold(self, image: Path, target: Path) -> None:
        script = 'set -e; mount -o loop "$1" "$2"; mkdir -m 777 "$2/small"; echo ready; '
        script += "exec sleep infinity"
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        mounted = Path(self.folder) / "holder"
        self.holder, self.holder_ticks = self._spawn([*argv, "sh", str(image), str(target)])
        wait_until(
            lambda: re.search(r"^ready$", mounted.read_text(), re.M), 30, f"a mount ({mounted})"
        )

    def _spawn(self, argv: list[str], **env: str) -> tuple[int, int | None]:
        return spawn(argv, Path(self.folder) / "holder", stay=self.stay, env=env)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 2.0).close()
        except OSError:
            return False
        return True
