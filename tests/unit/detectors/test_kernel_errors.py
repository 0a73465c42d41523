"""What the kernel's log says of a node."""

import numpy as np
import pytest

from detectors.kernel_errors import KernelErrors
from eagle_eye.types import Entity, Event, Kind, Severity
from fakes.diagnosis_chain import Chain, verdicts
from fakes.synthetic_events import claims_of, cut_frame, event
from fakes.synthetic_frames import BEGAN, job_frames

NODE = Entity(kind=Kind.NODE, name="node-0")


def told(name: str = "kernel.error", time: float = BEGAN, **attributes: object) -> Event:
    return event(name, NODE, time, **attributes)


def broken_disk(time: float = BEGAN) -> Event:
    return told(time=time, component="disk", code="io_error", device="nvme0n1", advice="replace the disk")


def test_fault_an_error_is_told_with_its_remedy() -> None:
    (claim,) = claims_of(KernelErrors(), [cut_frame(BEGAN, broken_disk())])
    assert (claim.entity, claim.kind) == (NODE, "kernel.error")
    assert "disk io error" in claim.evidence[0].text
    assert "remedy: replace the disk" in claim.evidence[0].text


def test_an_error_at_the_address_of_a_gpu_names_it() -> None:
    (claim,) = claims_of(KernelErrors(), [cut_frame(BEGAN, told(component="pcie", code="bus_error", pci="0000:9b:00.0", gpu="GPU-1"))])
    assert "pcie bus error of GPU GPU-1: " in claim.evidence[0].text


def test_twin_a_notice_alone_is_no_finding() -> None:
    corrected = told("kernel.notice", component="memory", code="edac_corrected", device="MC0")
    assert claims_of(KernelErrors(), [cut_frame(BEGAN, corrected)]) == []


def test_the_same_message_again_changes_nothing_and_another_one_revises() -> None:
    hung = told(time=BEGAN + 2, component="cpu", code="hung_task")
    claims = claims_of(KernelErrors(), [cut_frame(BEGAN, broken_disk()), cut_frame(BEGAN + 1, broken_disk(BEGAN + 1)), cut_frame(BEGAN + 2, hung)])
    assert [len(claim.evidence) for claim in claims] == [1, 2]
    assert claims[-1].since == BEGAN


@pytest.mark.parametrize(
    ("error", "notice"),
    [
        ({"component": "network", "code": "link_down", "device": "eth2"}, {"component": "network", "code": "link_up", "device": "eth2"}),
        ({"component": "cpu", "code": "thermal", "device": "CPU3"}, {"component": "cpu", "code": "thermal_normal", "device": "CPU3"}),
        ({"component": "network", "code": "firmware", "pci": "0000:5c:00.0"}, {"component": "network", "code": "firmware_recovered", "pci": "0000:5c:00.0"}),
        ({"component": "disk", "code": "path_failed", "device": "253:3"}, {"component": "disk", "code": "path_restored", "device": "253:3"}),
        (
            {"component": "network_filesystem", "code": "not_responding", "device": "filer"},
            {"component": "network_filesystem", "code": "recovered", "device": "filer"},
        ),
    ],
)
def test_it_is_over_when_the_kernel_says_so_of_the_same_device(error: dict[str, str], notice: dict[str, str]) -> None:
    other = notice | {"device": "another"}
    frames = [
        cut_frame(BEGAN, told(**error)),
        cut_frame(BEGAN + 1, told("kernel.notice", BEGAN + 1, **other)),
        cut_frame(BEGAN + 2, told("kernel.notice", BEGAN + 2, **notice)),
    ]
    claims = claims_of(KernelErrors(), frames)
    assert [claim.active for claim in claims] == [True, False]
    assert claims[-1].evidence[-1].value == BEGAN + 2


def test_it_is_over_after_a_quiet_while() -> None:
    ticks = list(job_frames(1, 2, 5, np.random.default_rng(0)))
    claims = claims_of(KernelErrors(withdraw_after_s=2.0), [cut_frame(BEGAN, broken_disk()), *ticks])
    assert [claim.active for claim in claims] == [True, False]


def test_an_incident_of_it_informs_and_names_nobody() -> None:
    chain = Chain().feed(*job_frames(2, 2, 6, np.random.default_rng(0)), cut_frame(BEGAN + 6, broken_disk(BEGAN + 6)))
    assert verdicts(chain.latest) == [("kernel error", [], Severity.INFO, True)]


def test_who_writes_into_the_kernels_log_is_named_as_a_program() -> None:
    (claim,) = claims_of(KernelErrors(), [cut_frame(BEGAN, told(component="disk", code="io_error", written_by="a program"))])
    assert "written by a program" in claim.evidence[0].text


def test_twin_a_program_that_says_that_a_link_is_up_ends_nothing() -> None:
    down = told(component="network", code="link_down", device="eth0")
    up = {"component": "network", "code": "link_up", "device": "eth0"}
    quoted = claims_of(KernelErrors(), [cut_frame(BEGAN, down), cut_frame(BEGAN + 1, told("kernel.notice", BEGAN + 1, **up, written_by="watch"))])
    said = claims_of(KernelErrors(), [cut_frame(BEGAN, down), cut_frame(BEGAN + 1, told("kernel.notice", BEGAN + 1, **up))])
    assert ([claim.active for claim in quoted], [claim.active for claim in said]) == ([True], [True, False])
