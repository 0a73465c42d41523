"""Which GPUs a machine has, and which of them a program sees."""

import pytest

from eagle_eye.gpu_devices import GpuDevice, gpu_devices, visible_devices
from fakes.nvml import FakeNvml

DEVICES = (GpuDevice(0, "GPU-aa11", "0000:17:00.0"), GpuDevice(1, "", ""), GpuDevice(2, "GPU-bb22", "0000:65:00.0"))


def test_each_is_named_by_its_uuid_and_the_address_that_the_kernel_writes() -> None:
    assert gpu_devices(FakeNvml(gpus=2)) == (GpuDevice(0, "GPU-00000000", "0000:17:00.0"), GpuDevice(1, "GPU-00000001", "0000:18:00.0"))


def test_a_lost_one_keeps_its_index() -> None:
    nvml = FakeNvml(gpus=3)
    nvml.gpus[1].lost = True
    assert [(device.index, device.uuid) for device in gpu_devices(nvml)] == [(0, "GPU-00000000"), (1, ""), (2, "GPU-00000002")]


def test_without_an_address_there_is_still_a_uuid() -> None:
    nvml = FakeNvml(gpus=1)
    nvml.missing.add("nvmlDeviceGetPciInfo")
    assert gpu_devices(nvml) == (GpuDevice(0, "GPU-00000000", ""),)


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-bb,0", [2, 0]), ("0,7,2", [0]), ("", []), ("-1", []), (" 1 , 2 ", [1, 2]), ("NoDevFiles", [])],
)
def test_what_cuda_visible_devices_leaves(wanted: str | None, seen: list[int]) -> None:
    assert [device.index for device in visible_devices(DEVICES, wanted)] == seen
