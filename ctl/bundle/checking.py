"""What `fsck` says of the bundles on a root: each is what its name says, and the run's is there."""

from __future__ import annotations

from ctl.bundle import onroot
from ctl.roots import Run
from fsworker.protocol import layout
from fsworker.protocol.audit import Finding, Survey

KIND = "bundle"


def inspect(run: Run, seen: Survey, *, quick: bool) -> list[Finding]:
    """What is wrong with bundles; `quick` looks at names only. Names that are none are noted in
    `seen`, with what was begun and not ended."""
    try:
        names = sorted(run.store.scan(layout.BUNDLES))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    found = []
    for name in names:
        path = f"{layout.BUNDLES}/{name}"
        if name.startswith(".tmp~"):
            seen.temporaries.append(path)
        elif layout.parse_bundle_name(name) is None:
            seen.ignored.append(path)
        elif not quick and (why := onroot.damage(run.store, path)) is not None:
            found.append(Finding(KIND, path, why))
    wanted = run.meta.bundle if run.meta else None
    if wanted is not None and wanted.rpartition("/")[2] not in names:
        found.append(Finding(KIND, wanted, "the run starts hosts from it, and it is missing"))
    return found
