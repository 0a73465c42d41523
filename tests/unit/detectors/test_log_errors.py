"""What the output of workers says."""

import numpy as np

from detectors.log_errors import LogErrors
from eagle_eye.types import Entity, Event, Severity
from fakes.diagnosis_chain import Chain, verdicts
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker
from fakes.synthetic_frames import BEGAN, job_frames

A, B = worker("node-0", 0), worker("node-1", 0)
NOW = BEGAN + 6.0


def logged(entity: Entity = A, time: float = BEGAN, name: str = "log.error", code: str = "error", **more: object) -> Event:
    return event(name, entity, time, component="cuda", code=code, rank="0", advice="look at it", **more)


def killed(entity: Entity, time: float) -> Event:
    return event("exit", entity, time, code=-9, signal="SIGKILL", epoch=1, rank=0, step=5)


def test_fault_an_error_in_the_log_is_told_with_its_remedy() -> None:
    (claim,) = claims_of(LogErrors(), [cut_frame(BEGAN, logged())])
    assert (claim.entity, claim.kind) == (A, "log.error")
    assert "(rank 0): cuda error: " in claim.evidence[0].text
    assert "remedy: look at it" in claim.evidence[0].text


def test_twin_a_traceback_or_a_warning_that_healthy_jobs_print_is_no_finding() -> None:
    assert claims_of(LogErrors(), [cut_frame(BEGAN, logged(name="log.notice", code="traceback"))]) == []


def test_the_first_lines_are_kept_and_a_cascade_adds_none() -> None:
    claims = claims_of(LogErrors(), [cut_frame(BEGAN + second, logged(time=BEGAN + second)) for second in range(10)])
    assert [len(claim.evidence) for claim in claims] == [1, 2, 3, 4]
    assert claims[-1].since == BEGAN


def test_it_is_over_with_the_epoch_and_after_a_quiet_while() -> None:
    begun = event("epoch.started", job(), BEGAN + 2, epoch=2)
    assert [claim.active for claim in claims_of(LogErrors(), [cut_frame(BEGAN, logged()), cut_frame(BEGAN + 2, begun)])] == [True, False]
    ticks = list(job_frames(1, 2, 5, np.random.default_rng(0)))
    assert [claim.active for claim in claims_of(LogErrors(withdraw_after_s=2.0), [cut_frame(BEGAN, logged()), *ticks])] == [True, False]


def test_alone_it_informs_and_names_nobody() -> None:
    chain = Chain().feed(*job_frames(2, 2, 6, np.random.default_rng(0)), cut_frame(NOW, logged(time=NOW)))
    assert verdicts(chain.latest) == [("log error", [], Severity.INFO, True)]


def test_beside_a_death_it_is_part_of_that_incident_whoever_printed_it_and_whichever_came_first() -> None:
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
        told = (killed(A, NOW), logged(A, NOW - 0.5), logged(B, NOW + 0.5, code="connection"))
        frames = [cut_frame(NOW + 1 + index / 10, told[which]) for index, which in enumerate(order)]
        chain = Chain().feed(*job_frames(2, 2, 6, np.random.default_rng(0)), *frames)
        assert verdicts(chain.latest) == [("worker killed", [A.name], Severity.SEV2, True)], order
        assert "cuda error" in "\n".join(line.text for line in chain.latest[0].evidence)


def test_a_line_of_an_epoch_that_is_over_is_no_finding_and_one_of_the_epoch_that_runs_is() -> None:
    """What peers print of a broken connection is read after a restart that took a tenth of a second: the next fault must not join it."""
    begun = cut_frame(BEGAN, event("epoch.started", job(), BEGAN, epoch=2))
    assert claims_of(LogErrors(), [begun, cut_frame(BEGAN + 0.4, logged(time=BEGAN + 0.4, epoch=1))]) == []
    assert len(claims_of(LogErrors(), [begun, cut_frame(BEGAN + 0.4, logged(time=BEGAN + 0.4, epoch=2))])) == 1
