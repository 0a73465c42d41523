"""A broken GPU, and a program that misuses its GPU: one incident, and who is named."""

import msgspec
import numpy as np
import pytest

from eagle_eye.topology import with_layout
from eagle_eye.types import Entity, Event, Kind, Severity, Topology
from fakes.diagnosis_chain import Chain, raised, verdicts
from fakes.synthetic_events import cut_frame, event, worker
from fakes.synthetic_frames import BEGAN, job_frames, layout_of

NOW = BEGAN + 6.0
C = worker("node-1", 0)
ILLEGAL = "CUDA error: an illegal memory access was encountered"
GPU_LAYOUT = layout_of(2, 2, gpus=True)
GPU_C = Entity(kind=Kind.GPU, name="GPU-node-1/0")
"""The one of worker C."""


def of_gpu(name: str, time: float, gpu: Entity = GPU_C, **attributes: object) -> Event:
    """As the agent of node-1 writes it."""
    return msgspec.structs.replace(event(name, gpu, time, **attributes), node="node-1")


def with_gpus(*happened: Event) -> Chain:
    """Each event in a frame of its own, in this order."""
    chain = Chain(topology=with_layout(Topology(), GPU_LAYOUT))
    frames = [cut_frame(each.time + 0.01, each, layout=GPU_LAYOUT) for each in happened]
    return chain.feed(*job_frames(2, 2, 6, np.random.default_rng(0), gpus=True), *frames)


CUDA = "CUDA error: unspecified launch failure"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_lost_gpu_its_xid_and_its_cuda_error_are_one_incident_that_names_the_gpu(order: tuple[int, ...]) -> None:
    seen = (
        of_gpu("gpu.xid", NOW + 0.4, code=79, pci="0000:65:00.0"),
        of_gpu("gpu.lost", NOW + 0.9, reason="GPU is lost", pci="0000:65:00.0"),
        raised(C, NOW, CUDA, "torch.AcceleratorError"),
    )
    chain = with_gpus(*(seen[index] for index in order))
    assert verdicts(chain.latest) == [("gpu lost", [GPU_C.name], Severity.SEV1, True)]
    text = "\n".join(line.text for line in chain.latest[0].evidence)
    assert "GPU GPU-node-1/0 (0000:65:00.0) on node-1 is gone" in text
    assert "Xid 79" in text
    assert CUDA in text


@pytest.mark.parametrize("code", [13, 31, 43])
@pytest.mark.parametrize("first", ["xid", "exception"])
def test_twin_an_xid_of_the_programs_own_doing_names_the_worker_that_raised_it(code: int, first: str) -> None:
    told = [of_gpu("gpu.xid", NOW, code=code), raised(C, NOW + 0.4, ILLEGAL, "torch.AcceleratorError")]
    chain = with_gpus(*(told if first == "xid" else reversed(told)))
    assert verdicts([each for each in chain.latest if each.active]) == [("program error on the gpu", [C.name], Severity.SEV2, True)]
    assert len(chain.latest) == 1
    assert f"Xid {code}" in "\n".join(line.text for line in chain.latest[0].evidence)


def test_twin_an_xid_of_the_program_alone_accuses_nobody() -> None:
    assert verdicts(with_gpus(of_gpu("gpu.xid", NOW, code=31)).latest) == [("gpu notice", [], Severity.INFO, True)]


def test_twin_an_advice_of_the_driver_alone_accuses_nobody() -> None:
    assert verdicts(with_gpus(of_gpu("gpu.recovery_action", NOW, action="reset")).latest) == [("gpu notice", [], Severity.INFO, True)]


def test_an_advice_of_the_driver_is_evidence_of_the_broken_gpu() -> None:
    chain = with_gpus(of_gpu("gpu.xid", NOW, code=48), of_gpu("gpu.recovery_action", NOW + 0.5, action="drain-and-reset"))
    assert verdicts(chain.latest) == [("gpu fault", [GPU_C.name], Severity.SEV1, True)]
    assert "the driver advises drain-and-reset" in "\n".join(line.text for line in chain.latest[0].evidence)


def test_twin_the_gpu_of_another_job_on_the_node_has_nothing_to_do_with_this_one() -> None:
    foreign = Entity(kind=Kind.GPU, name="GPU-of-another-job")
    seen = (of_gpu("gpu.xid", NOW, foreign, code=79), of_gpu("gpu.lost", NOW + 0.2, foreign, reason="GPU is lost"))
    chain = with_gpus(*seen, raised(C, NOW + 0.4, ILLEGAL, "torch.AcceleratorError"))
    assert verdicts(chain.latest) == [("illegal memory access", [C.name], Severity.SEV2, True)]


def test_twin_an_xid_of_the_program_on_the_gpu_of_another_worker_is_not_this_ones() -> None:
    other = Entity(kind=Kind.GPU, name="GPU-node-1/1")
    chain = with_gpus(of_gpu("gpu.xid", NOW, other, code=31), raised(C, NOW + 0.4, ILLEGAL, "torch.AcceleratorError"))
    assert verdicts(chain.accusing) == [("illegal memory access", [C.name], Severity.SEV2, True)]


@pytest.mark.parametrize("message", ["this model needs NVLink", "invalid DMA mapping", "CUDA driver error: named symbol not found"])
def test_twin_words_about_hardware_evict_nobody_without_an_xid(message: str) -> None:
    chain = with_gpus(raised(C, NOW, message, "RuntimeError"))
    assert verdicts(chain.latest) == [("exception", [C.name], Severity.SEV2, True)]


@pytest.mark.parametrize("message", ["NVLink is down", "invalid DMA mapping", "CUDA error: no CUDA-capable device is detected"])
@pytest.mark.parametrize("first", ["xid", "exception"])
@pytest.mark.parametrize("code", [74, 79])
def test_the_same_words_and_an_xid_of_that_gpu_are_proof(message: str, first: str, code: int) -> None:
    told = [of_gpu("gpu.xid", NOW, code=code), raised(C, NOW + 0.4, message, "RuntimeError")]
    chain = with_gpus(*(told if first == "xid" else reversed(told)))
    assert verdicts([each for each in chain.latest if each.active]) == [("gpu fault", [GPU_C.name], Severity.SEV1, True)]
    assert len(chain.latest) == 1
    assert message in "\n".join(line.text for line in chain.latest[0].evidence)


def test_a_lost_gpu_that_nvml_names_is_proof() -> None:
    chain = with_gpus(raised(C, NOW, "GPU is lost", "NVMLError_GpuIsLost"))
    assert verdicts(chain.latest) == [("gpu driver error", [C.name], Severity.SEV1, True)]
