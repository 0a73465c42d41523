"""What NCCL's RAS says of ranks: evidence beside a hang, information alone, an accusation never."""

from dataclasses import replace

import msgspec
import numpy as np

from detectors.nccl_ranks import NcclRanks
from eagle_eye.frames import Frame
from eagle_eye.types import Event, Severity
from fakes.diagnosis_chain import LAYOUT, Chain, verdicts
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker
from fakes.synthetic_frames import BEGAN, job_frames

NOW = BEGAN + 6.0
SILENT = worker("node-1", 0)


def outliers(time: float = NOW, communicator: str = "0x9e", **more: str) -> Event:
    told = {"communicator": communicator, "size": "4", "numbered_by": "job", "unresponsive": "2", "lagging": "", "lagging_count": "", "epoch": "1"}
    words = f"NCCL RAS: communicator {communicator} of 4 ranks: rank 2 not answering"
    return msgspec.structs.replace(event("nccl.outlier_ranks", job(), time, **(told | more)), message=words)


def cut(*events: Event, time: float = NOW) -> Frame:
    return cut_frame(time, *events, layout=LAYOUT)


def agree(time: float, communicator: str = "0x9e") -> Event:
    return event("nccl.ranks_agree", job(), time, communicator=communicator, epoch="1")


def test_fault_ranks_that_do_not_answer_are_claimed_of_the_job_with_their_workers_names() -> None:
    began, ended = claims_of(NcclRanks(), [cut(outliers()), cut(agree(NOW + 9), time=NOW + 9)])
    assert (began.kind, began.entity, began.active) == ("nccl.outlier_ranks", job(), True)
    assert began.evidence[0].text == f"NCCL RAS: communicator 0x9e of 4 ranks: rank 2 not answering ({SILENT.name})"
    assert (ended.active, ended.evidence[-1].text) == (False, "over: the ranks agree again")


def test_ranks_of_the_communicator_alone_are_given_no_workers_name() -> None:
    [claim] = claims_of(NcclRanks(), [cut(outliers(numbered_by="communicator"))])
    assert claim.evidence[0].text.endswith("not answering")


def test_twin_what_was_said_of_an_epoch_that_is_over_is_no_claim() -> None:
    begun = event("epoch.started", job(), NOW, epoch=2, reason="death")
    assert claims_of(NcclRanks(), [cut(begun), cut(outliers())]) == []
    assert [claim.active for claim in claims_of(NcclRanks(), [cut(outliers()), cut(begun)])] == [True, False]


def test_of_many_communicators_those_with_ranks_that_do_not_answer_come_first_and_the_last_ends_the_claim() -> None:
    lagging = [outliers(communicator=f"0x{number}", unresponsive="", lagging="1", lagging_count=str(9 - number)) for number in range(6)]
    *_, claim = claims_of(NcclRanks(), [cut(*lagging, outliers())])
    assert [line.text.split()[3] for line in claim.evidence] == ["0x9e", "0x5", "0x4", "0x3"]
    claims = claims_of(NcclRanks(), [cut(outliers(), outliers(communicator="0x1")), cut(agree(NOW)), cut(agree(NOW, "0x1"))])
    assert [claim.active for claim in claims][-1:] == [False]
    assert sum(not claim.active for claim in claims) == 1


def test_what_nobody_ends_is_forgotten() -> None:
    detector = NcclRanks(withdraw_after_s=100.0)
    tick = replace(cut(), tick=True)
    claims = claims_of(detector, [cut(outliers()), replace(tick, time=NOW + 99), replace(tick, time=NOW + 101)])
    assert [claim.active for claim in claims] == [True, False]


def test_a_flood_of_communicators_is_bounded() -> None:
    claims = claims_of(NcclRanks(), [cut(*(outliers(communicator=f"{number}") for number in range(5000)))])
    assert len(claims) <= 64
    assert max(len(claim.evidence) for claim in claims) <= 4


def test_beside_a_hang_it_is_evidence_of_its_incident_whose_culprit_stays() -> None:
    hang = event("stall", SILENT, NOW, step=12, marks=2, step_marks=2, phase="forward", age_s=1.2, state="T", epoch=1, activity="stopped")
    chain = Chain().feed(*job_frames(2, 2, 6, np.random.default_rng(0)), cut(hang), cut(outliers(NOW + 15), time=NOW + 15))
    incident = chain.latest[-1]
    assert (incident.cause, [each.entity for each in incident.culprits], incident.severity) == ("worker stopped", [SILENT], Severity.SEV3)
    assert any("NCCL RAS" in line.text for line in incident.evidence)
    assert len(chain.latest) == 1


def test_alone_it_informs_and_accuses_nobody() -> None:
    chain = Chain().feed(cut(outliers()))
    assert verdicts(chain.latest) == [("nccl outlier ranks", [], Severity.INFO, True)]
