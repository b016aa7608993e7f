"""GPUs to slots: which mask counts, who gets what, and what is refused."""

from __future__ import annotations

import pytest

from fsworker.errors import Refused
from fsworker.inventory.grants import MASKS, OVERRIDE
from fsworker.protocol.records.slots import SlotTerms
from fsworker.slots import devices

pytestmark = pytest.mark.unit

CUDA, HIP, ROCR = MASKS
MIG = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2"
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


def masks(slots: int, gpus: str | None = None, per_gpu: int | None = None, **env: str) -> list[str]:
    found, parts = devices.plan(SlotTerms(gpus=gpus, per_gpu=per_gpu), slots, env)
    (variable,) = found.variables
    assert all(part.get(variable) == part.get(OVERRIDE) for part in parts)
    return [part.get(variable, "unset") for part in parts]


@pytest.mark.parametrize(
    ("slots", "gpus", "per_gpu", "env", "expected"),
    [
        (2, None, None, {}, ["unset"] * 2),
        (2, None, None, {CUDA: "4,7"}, ["4", "7"]),
        (2, None, None, {CUDA: " 4 , 7 ,-1,5"}, ["4", "7"]),
        (2, None, None, {CUDA: f"{MIG},{UUID}"}, [MIG, UUID]),
        (2, None, None, {CUDA: ""}, ["unset"] * 2),
        (2, None, None, {CUDA: "-1"}, ["unset"] * 2),
        (2, None, None, {CUDA: "NoDevFiles"}, ["unset"] * 2),
        (2, None, None, {CUDA: "0,1,2,3"}, ["0,1", "2,3"]),
        (2, None, None, {CUDA: "0,1,2"}, ["0", "1,2"]),
        (3, None, None, {CUDA: "0,1,2,3"}, ["0", "1", "2,3"]),
        (4, None, 2, {CUDA: "3,9"}, ["3", "3", "9", "9"]),
        (3, None, 2, {CUDA: "3,9"}, ["3", "3", "9"]),
        (1, None, 4, {CUDA: "3,9"}, ["3,9"]),
        (2, "2", None, {}, ["0", "1"]),
        (2, "2", None, {CUDA: "5,6,7"}, ["5", "6"]),
        (2, "1,0", None, {CUDA: "5,6,7"}, ["1", "0"]),
        (2, "0", None, {CUDA: "5,6,7"}, ["", ""]),
        (9, "0", None, {}, [""] * 9),
        (2, None, None, {OVERRIDE: "8,9", CUDA: "0"}, ["8", "9"]),
        (2, "2", None, {OVERRIDE: "8,9", CUDA: "3,4"}, ["3", "4"]),
        (2, None, None, {HIP: "0,1"}, ["0", "1"]),
        (2, None, None, {ROCR: UUID + ",1"}, [UUID, "1"]),
    ],
)
def test_each_slot_gets_its_own_part_by_position(
    slots: int, gpus: str | None, per_gpu: int | None, env: dict[str, str], expected: list[str]
) -> None:
    assert masks(slots, gpus, per_gpu, **env) == expected


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("slots", range(1, 9))
def test_all_devices_are_given_out_and_none_twice(count: int, slots: int) -> None:
    names = [f"GPU-{i}" for i in range(count)]
    if slots > count:
        with pytest.raises(Refused, match=f"--slots-per-gpu {-(-slots // count)}"):
            masks(slots, ",".join(names))
        shared = masks(slots, ",".join(names), -(-slots // count))
        assert set(shared) == set(names)
        assert max(map(shared.count, names)) <= -(-slots // count)
    else:
        assert ",".join(masks(slots, ",".join(names))) == ",".join(names)


@pytest.mark.parametrize(
    ("slots", "gpus", "env", "words"),
    [
        (1, "4", {CUDA: "0,1"}, "--gpus asks for 4 GPUs, but CUDA_VISIBLE_DEVICES has 2"),
        (1, "1", {CUDA: ""}, "asks for 1 GPUs, but CUDA_VISIBLE_DEVICES has 0"),
        (1, "0,1,0", {}, "--gpus names the GPU 0 twice"),
        (3, None, {CUDA: "0,1"}, r"3 slots do not fit on 2 GPUs \(CUDA_VISIBLE_DEVICES: 0,1\)"),
        (2, None, {OVERRIDE: "x"}, r"2 slots do not fit on 1 GPU \(FLEET_GPUS: x\)"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    slots: int, gpus: str | None, env: dict[str, str], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        devices.plan(SlotTerms(gpus=gpus), slots, env)


def test_slots_with_devices_are_spawned_unless_somebody_says_otherwise() -> None:
    some, none = devices.find("2", {}), devices.find(None, {})
    assert devices.start_method("auto", some) == "spawn"
    assert devices.start_method("auto", none) == "fork"
    assert devices.start_method("fork", some) == "fork"


def test_the_heartbeat_says_which_slot_has_what() -> None:
    found, parts = devices.plan(SlotTerms(gpus="3,1"), 2, {})
    said = devices.inventory(found, parts)
    assert said == {"gpu_count": 2, "gpus": ["3", "1"], "slot_gpus": ["3", "1"]}
    assert devices.inventory(*devices.plan(SlotTerms(), 2, {})) == {}
    assert devices.inventory(*devices.plan(SlotTerms(gpus="0"), 2, {})) == {"gpu_count": 0}
