"""What a batch system says that it granted on this node: Slurm, PBS and LSF, in all spellings.

Pure: from an environment to numbers. A form that is not known is a warning and counts as not said,
for a wrong number is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

OVERRIDE = "FLEET_GPUS"
MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NONE = frozenset({"", "-1", "NoDevFiles", "void", "none"})
"""How masks say that no device, and none after it, is visible."""
_TYPED = re.compile(r"(?:gpu:)?(?:[A-Za-z0-9_.-]+:)?(\d+)(?:\([^)]*\))?")
"""2, a100:2, gpu:a100:2(S:0-1)."""
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")
"""24, 24(x2)."""

Environ = Mapping[str, str]


@dataclass(frozen=True)
class Grant:
    """What is granted on this node; None where nothing is said. `source`: who said it."""

    cpus: int | None = None
    per_task: int | None = None
    memory_mb: int | None = None
    gpus: int | None = None
    mask: str | None = None
    source: str = ""
    warnings: tuple[str, ...] = ()


def granted(environ: Environ) -> Grant:
    """The grant that this environment speaks of."""
    notes: list[str] = []
    for name, mark, reader in _SYSTEMS:
        if mark(environ):
            cpus, per_task, memory = reader(environ, notes)
            gpus, mask = count_gpus(environ, notes)
            return Grant(cpus, per_task, memory, gpus, mask, name, tuple(notes))
    gpus, mask = count_gpus(environ, notes)
    return Grant(gpus=gpus, mask=mask, warnings=tuple(notes))


def count_gpus(environ: Environ, notes: list[str]) -> tuple[int | None, str | None]:
    """(how many GPUs are visible, the mask that says so). The override first, then masks."""
    override = environ.get(OVERRIDE, "").strip()
    mask = next((environ[name] for name in MASKS if name in environ), None)
    if override:
        return (int(override) if override.isdigit() else len(visible(override))), mask
    if mask is not None:
        return len(visible(mask)), mask
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_PER_NODE"):
        text = environ.get(name, "").strip()
        if not text:
            continue
        if name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
            return len(visible(text)), None  # a list of indices
        found = _sum(_TYPED, text)
        if found is not None:
            return found, None
        notes.append(f"{name}={text} is of no form that is known: it is not counted")
    return None, None


def visible(mask: str) -> tuple[str, ...]:
    """The devices in a mask, as they are written there: indices, UUIDs, MIG identifiers."""
    found: list[str] = []
    for part in (p.strip() for p in mask.split(",")):
        if part in _NONE:
            break  # as the drivers read it: what follows is invisible
        found.append(part)
    return tuple(found)


def repeated(text: str) -> list[int] | None:
    """`24(x2),8` as [24, 24, 8]; None for any other form."""
    found: list[int] = []
    for part in text.split(","):
        match = _REPEATED.fullmatch(part.strip())
        if not match:
            return None
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _slurm(environ: Environ, notes: list[str]) -> tuple[int | None, int | None, int | None]:
    cpus = _number(environ, "SLURM_CPUS_ON_NODE", notes)
    if cpus is None:
        cpus = _own_entry(environ, notes)
    per_task = _number(environ, "SLURM_CPUS_PER_TASK", notes)
    memory = _number(environ, "SLURM_MEM_PER_NODE", notes)
    if memory is None:
        per_cpu = _number(environ, "SLURM_MEM_PER_CPU", notes)
        memory = per_cpu * cpus if per_cpu and cpus else None
    # 0 stands for all of the node's memory, which the machine knows.
    return cpus, per_task, memory or None


def _own_entry(environ: Environ, notes: list[str]) -> int | None:
    """This node's entry in SLURM_JOB_CPUS_PER_NODE, where its place in the list is known."""
    text = environ.get("SLURM_JOB_CPUS_PER_NODE", "").strip()
    if not text:
        return None
    entries = repeated(text)
    if entries is None:
        notes.append(f"SLURM_JOB_CPUS_PER_NODE={text} is of no form that is known")
        return None
    if len(set(entries)) == 1:
        return entries[0]
    number = _number(environ, "SLURM_NODEID", notes)
    return entries[number] if number is not None and number < len(entries) else None


def _pbs(environ: Environ, notes: list[str]) -> tuple[int | None, int | None, int | None]:
    cpus = _number(environ, "NCPUS", notes) or _number(environ, "PBS_NUM_PPN", notes)
    memory = environ.get("PBS_RESC_MEM", "")
    return cpus, None, int(memory) >> 20 if memory.isdigit() else None


def _lsf(environ: Environ, notes: list[str]) -> tuple[int | None, int | None, int | None]:
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    hosts = dict(zip(words[::2], words[1::2], strict=False))
    here = environ.get("HOSTNAME", "")
    mine = hosts.get(here) or hosts.get(here.partition(".")[0])
    if mine is None and len(hosts) == 1:
        (mine,) = hosts.values()
    if mine is not None and mine.isdigit():
        return int(mine), None, None
    if words:
        notes.append(f"LSB_MCPU_HOSTS={' '.join(words)} does not tell about this host")
        return None, None, None
    return _number(environ, "LSB_DJOB_NUMPROC", notes), None, None


def _number(environ: Environ, name: str, notes: list[str]) -> int | None:
    text = environ.get(name, "").strip()
    if text.isascii() and text.isdigit():
        return int(text)
    if text:
        notes.append(f"{name}={text} is no number: it is not counted")
    return None


def _sum(form: re.Pattern[str], text: str) -> int | None:
    """The counts of all parts, as `a100:2,v100:1`; None when one is of another form."""
    matches = [form.fullmatch(part.strip()) for part in text.split(",")]
    return sum(int(m[1]) for m in matches if m) if all(matches) else None


_Reader = Callable[[Environ, list[str]], tuple[int | None, int | None, int | None]]
_SYSTEMS: tuple[tuple[str, Callable[[Environ], bool], _Reader], ...] = (
    ("slurm", lambda e: any(k.startswith("SLURM_") for k in e), _slurm),
    ("pbs", lambda e: "PBS_JOBID" in e, _pbs),
    ("lsf", lambda e: "LSB_JOBID" in e, _lsf),
)
