"""The initramfs from which machines for tests boot, and the script that makes a machine of one.

A machine has a kernel of its own (Debian's) and no disk: it sees this machine's root folder over
9p, read-only, below an overlay in its memory. So it has the same Python and the same checkout, and
forgets everything when it is switched off.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

MODULES = ("virtio_pci", "virtio_net", "9p", "9pnet_virtio", "overlay", "nfsv4")
BUSYBOX = "/bin/busybox"
_KERNELS = Path("/boot")
_PACKED: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\xfd7zXZ\x00", lambda data: lzma.LZMADecompressor().decompress(data)),
    (b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data)),
)
"""How a kernel is packed within its file: what it begins with, and what unpacks it."""
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in virtio_pci virtio_net 9pnet_virtio 9p overlay; do modprobe $m; done
for word in $(cat /proc/cmdline); do case $word in rig=*|node=*) eval "$word";; esac; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose hostroot /lower
mount -t tmpfs -o size=256m tmpfs /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /new
for d in proc sys dev; do mount --move /$d /new/$d; done
exec switch_root /new /bin/sh "$rig/$node/boot"
"""


def kernel() -> tuple[Path, str] | None:
    """The newest kernel that is installed with its modules, and its version."""
    found = [
        (path.stat().st_mtime, path, version)
        for path in _KERNELS.glob("vmlinuz-*")
        if Path(f"/lib/modules/{version}" if (version := path.name[8:]) else "/none").is_dir()
    ]
    return max(found)[1:] if found else None


def missing() -> str | None:
    """One sentence on what this machine lacks to make the image, or None."""
    if not Path(BUSYBOX).exists():
        return "virtual machines need busybox (busybox-static)"
    if not shutil.which("cpio"):
        return "virtual machines need cpio"
    if kernel() is None:
        return "virtual machines need a kernel with its modules in /boot (linux-image-amd64)"
    return None


def build(folder: Path) -> tuple[Path, Path]:
    """Make the initramfs in `folder`; the kernel's file and the initramfs."""
    found = kernel()
    assert found, missing()
    image, version = found
    tree, target = folder / "initramfs", folder / "initrd"
    for name in ("bin", "proc", "sys", "dev", "lower", "rw", "new"):
        (tree / name).mkdir(parents=True)
    shutil.copy2(BUSYBOX, tree / "bin" / "busybox")
    for file in _module_files(version):
        copy = tree / str(file).lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)
    init = tree / "init"
    init.write_text(_INIT)
    init.chmod(init.stat().st_mode | stat.S_IXUSR)
    names = [os.path.relpath(path, tree) for path in sorted(tree.rglob("*"))]
    packed = subprocess.run(
        ["cpio", "--quiet", "-o", "-H", "newc"],
        cwd=tree,
        input="\n".join([".", *names]).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    target.write_bytes(packed.stdout)
    shutil.rmtree(tree)
    return _unpacked(image, version, folder / "vmlinux"), target


def _unpacked(image: Path, version: str, target: Path) -> Path:
    """The kernel as it is in memory, where that can be had: else each boot unpacks it, emulated.

    Unpacked it can be begun by way of PVH alone, which a kernel was built for or not.
    """
    config = image.with_name(f"config-{version}")
    if not config.exists() or "CONFIG_PVH=y" not in config.read_text():
        return image
    data = image.read_bytes()
    for begin, unpack in _PACKED:
        at = data.find(begin)
        if at < 0:
            continue
        try:
            kernel = unpack(data[at:])
        except (lzma.LZMAError, zlib.error):
            continue  # these bytes stood there by chance
        if kernel.startswith(b"\x7fELF"):
            target.write_bytes(kernel)
            return target
    return image


def _module_files(version: str) -> list[Path]:
    """The modules that a machine needs with all that they need, and modprobe's tables."""
    files = list(Path(f"/lib/modules/{version}").glob("modules.*"))
    for module in MODULES:
        told = subprocess.run(
            ["/sbin/modprobe", "-D", "-S", version, module],
            capture_output=True,
            text=True,
            check=True,
        )
        words = (line.split() for line in told.stdout.splitlines())
        files += [Path(word[1]) for word in words if word[:1] == ["insmod"]]
    return list(dict.fromkeys(files))
