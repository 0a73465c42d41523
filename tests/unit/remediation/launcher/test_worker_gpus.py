"""Which GPU each worker has, and how the layout gets to say it."""

import asyncio

import pytest

from eagle_eye.gpu_devices import GpuDevice
from fakes.nvml import FakeNvml
from remediation.launcher.coordinator.membership import Member, rank_placements
from remediation.launcher.worker import worker_gpus
from remediation.launcher.worker.worker_gpus import find_gpus, gpus_of_workers

DEVICES = (GpuDevice(0, "GPU-a", ""), GpuDevice(1, "GPU-b", ""))


@pytest.mark.parametrize(
    ("nproc", "visible", "found"),
    [(2, None, ("GPU-a", "GPU-b")), (2, "1,0", ("GPU-b", "GPU-a")), (1, "1", ("GPU-b",)), (1, None, ("GPU-a",)), (3, None, ()), (2, "1", ()), (1, "", ())],
)
def test_the_local_rank_counts_the_gpus_that_the_workers_see(nproc: int, visible: str | None, found: tuple[str, ...]) -> None:
    """Where workers share GPUs, nobody knows who has which."""
    assert gpus_of_workers(nproc, DEVICES, visible) == found


def test_the_driver_is_asked_at_the_start() -> None:
    assert asyncio.run(find_gpus(2, None, lambda: FakeNvml(gpus=2))) == ("GPU-00000000", "GPU-00000001")


def test_a_machine_without_a_driver_or_the_library_starts_its_job_all_the_same() -> None:
    nvml = FakeNvml(gpus=2)
    nvml.absent = "NVML_ERROR_LIBRARY_NOT_FOUND"
    assert asyncio.run(find_gpus(2, None, lambda: nvml)) == ()

    def missing() -> object:
        raise ImportError("no module named pynvml")

    assert asyncio.run(find_gpus(2, None, missing)) == ()


def test_a_driver_that_hangs_keeps_no_job_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_gpus, "ANSWER_S", 0.05)
    nvml = FakeNvml(gpus=2)
    nvml.hang()
    assert asyncio.run(find_gpus(2, None, lambda: nvml)) == (), "nor from ending: the call still hangs"
    nvml.release()


def test_the_layout_names_the_gpu_of_each_rank() -> None:
    members = [Member(node="n0", address="", slots=2, gpus=("GPU-a", "GPU-b"), incarnation="x"), Member(node="n1", address="", slots=1, incarnation="y")]
    assert [place.gpu for place in rank_placements("r", members)] == ["GPU-a", "GPU-b", ""]
