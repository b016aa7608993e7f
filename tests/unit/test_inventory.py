"""What a worker may use: every spelling of a grant, and the machine behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctl.allocation import allocation
from fsworker import inventory
from fsworker.errors import UsageError
from fsworker.inventory import grants, machine
from fsworker.inventory.machine import Machine

pytestmark = pytest.mark.unit

BIG = Machine(256, 1 << 20, 8)


def cases() -> dict[str, dict[str, str]]:
    """The blocks of the collection, by their letter; a name that comes twice keeps the last."""
    found: dict[str, dict[str, str]] = {}
    for line in (Path(__file__).parents[1] / "data" / "slurm_env.txt").read_text().splitlines():
        if line.startswith("["):
            block = found.setdefault(line[1], {})
        elif "=" in line and not line.startswith(("#", "=>")):
            key, _, value = line.partition("=")
            block[key] = value
    return found


CASES = cases()


def test_a_typed_and_repeated_grant() -> None:
    found = inventory.take(CASES["A"], BIG)
    assert (found.cpus, found.memory_mb, found.gpus, found.mask) == (24, 96000, 2, "0,1")
    assert found.source == "slurm" and found.warnings == ()
    assert grants.granted(CASES["A"]).per_task == 8
    nodes = allocation(CASES["A"])
    assert nodes and nodes.nodes == ("node001", "node002") and nodes.warnings == ()


def test_a_node_list_of_every_form_and_counts_that_disagree() -> None:
    nodes = allocation(CASES["B"])
    assert nodes and nodes.nodes == (
        "foo003", "foo010", "foo011", "foo103", "foo104", "foo-m11-16",
        "rack0b08", "rack0b09", "rack1b08", "rack1b09",
    )  # fmt: skip
    assert len(nodes.warnings) == 1 and "10 nodes" in nodes.warnings[0]
    found = inventory.take(CASES["B"], BIG)
    assert (found.cpus, found.memory_mb) == (256, 64000), "which entry is ours is not known"
    assert grants.granted({**CASES["B"], "SLURM_NODEID": "6"}).cpus == 8


def test_a_mig_slice_is_one_gpu_and_is_passed_on_unchanged() -> None:
    found = inventory.take(CASES["C"], BIG)
    assert (found.gpus, found.mask) == (1, "MIG-11111111-2222-3333-4444-555555555555")


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        ("GPU-8932f937", 1),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2", 1),
        ("", 0),
        ("NoDevFiles", 0),
        ("-1", 0),
        ("3,1", 2),
        ("0,-1,2", 1),
    ],
)
def test_masks(mask: str, count: int) -> None:
    found = inventory.take({"CUDA_VISIBLE_DEVICES": mask}, BIG)
    assert (found.gpus, found.mask, found.source) == (count, mask, "machine")


def test_no_memory_limit_is_the_machines() -> None:
    found = inventory.take(CASES["E"], BIG)
    assert (found.cpus, found.memory_mb) == (128, 1 << 20)
    assert inventory.take(CASES["E"], Machine(128, None, 0)).memory_mb is None


def test_what_starts_elsewhere_inherits_no_grant() -> None:
    environ = {**CASES["F"], "PATH": "/bin", "PBS_JOBID": "1", "LSB_JOBID": "2"}
    assert inventory.without_grants(environ) == {"PATH": "/bin"}
    assert grants.granted(CASES["F"]).memory_mb == 65536


@pytest.mark.parametrize(
    ("environ", "gpus", "warned"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, 4, False),
        ({"SLURM_GPUS_ON_NODE": "gpu:a100:2(S:0-1),gpu:1g.10gb:4"}, 6, False),
        ({"SLURM_JOB_GPUS": "0,3"}, 2, False),
        ({"SLURM_GPUS_PER_NODE": "a100:2"}, 2, False),
        ({"SLURM_GPUS_PER_NODE": "two of them"}, 8, True),
        ({"SLURM_CPUS_ON_NODE": "many"}, 8, True),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(y2)"}, 8, True),
        ({"FLEET_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}, 3, False),
        ({"FLEET_GPUS": "GPU-1,GPU-2"}, 2, False),
        ({"FLEET_GPUS": "0"}, 0, False),
    ],
)
def test_gpus_and_forms_that_nobody_knows(environ: dict[str, str], gpus: int, warned: bool) -> None:
    found = inventory.take(environ, BIG)
    assert (found.gpus, bool(found.warnings)) == (gpus, warned)


@pytest.mark.parametrize(
    ("environ", "source", "cpus"),
    [
        ({"PBS_JOBID": "1", "NCPUS": "12"}, "pbs", 12),
        ({"PBS_JOBID": "1", "PBS_NUM_PPN": "3"}, "pbs", 3),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b 8", "HOSTNAME": "b.site"}, "lsf", 8),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4"}, "lsf", 4),
        ({"LSB_JOBID": "1", "LSB_DJOB_NUMPROC": "6"}, "lsf", 6),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b 8", "HOSTNAME": "c"}, "lsf", 256),
    ],
)
def test_other_batch_systems(environ: dict[str, str], source: str, cpus: int) -> None:
    found = inventory.take(environ, BIG)
    assert (found.source, found.cpus) == (source, cpus)


def test_more_than_the_machine_has_is_not_believed() -> None:
    small = Machine(2, 1000, 0)
    found = inventory.take({"SLURM_CPUS_ON_NODE": "64", "SLURM_MEM_PER_NODE": "9000"}, small)
    assert (found.cpus, found.memory_mb) == (2, 1000)


def test_what_is_said_on_the_command_line_wins() -> None:
    found = inventory.overridden(inventory.take({}, BIG), cpus=3, gpus=0)
    assert (found.cpus, found.memory_mb, found.gpus) == (3, 1 << 20, 0)
    assert inventory.overridden(found).gpus == 0
    assert found.fields()["gpu_count"] == 0


def lay(base: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(base)


def test_limits_of_cgroups_hold_and_the_least_of_all_above(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 1 kB\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.max": f"{1 << 30}\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
        "dev/nvidia0": "", "dev/nvidia11": "", "dev/nvidiactl": "", "dev/nvidia-uvm": "",
    }  # fmt: skip
    assert machine.look(lay(tmp_path, files)) == Machine(1, 1024, 2)


def test_old_cgroups_and_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    files = {
        "proc/self/cgroup": "4:memory:/j\n3:cpu,cpuacct:/j\n1:name=systemd:/\n",
        "sys/fs/cgroup/memory/j/memory.limit_in_bytes": f"{1 << 29}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
        "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": "-1\n",
    }
    assert machine.look(lay(tmp_path / "old", files)) == Machine(cpus, 512, 0)
    assert machine.look(str(tmp_path / "nothing")) == Machine(cpus, None, 0)


def test_outside_of_an_allocation_there_are_no_nodes() -> None:
    assert allocation({"SLURM_JOB_CPUS_PER_NODE": "4"}) is None
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST"):
        allocation({"SLURM_JOB_NODELIST": "n[1-"})
