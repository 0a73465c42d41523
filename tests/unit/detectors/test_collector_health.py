"""Telemetry that fails is a finding, for as long as who told it is heard and the job lasts."""

import msgspec
import pytest

from detectors.collector_health import THINGS, CollectorHealth, failing_collectors
from eagle_eye.types import Claim, Event, Finding
from fakes.synthetic_events import claims_of, cut_frame, event, job, node
from fakes.synthetic_frames import JOB

NODE = node("node-0")


def test_fault_a_failing_collector_is_told_until_all_work_again() -> None:
    frames = [
        cut_frame(1.0, event("collector.failing", NODE, 1.0, collector="gpu", reason="driver hangs")),
        cut_frame(2.0, event("collector.failing", NODE, 2.0, collector="host", reason="no /proc")),
        cut_frame(3.0, event("collector.recovered", NODE, 3.0, collector="gpu")),
        cut_frame(4.0, event("collector.recovered", NODE, 4.0, collector="host")),
    ]
    claims = claims_of(CollectorHealth(), frames)
    assert [(claim.active, len(claim.evidence)) for claim in claims] == [(True, 1), (True, 2), (True, 1), (False, 2)]
    assert {claim.since for claim in claims} == {1.0}
    assert "driver hangs" in claims[0].evidence[0].text


def failing(time: float, incarnation: str = "first", collector: str = "gpu", **attributes: str) -> Event:
    told = event("collector.failing", NODE, time, collector=collector, reason="timed out", **attributes)
    return msgspec.structs.replace(told, incarnation=incarnation)


def opened(time: float, incarnation: str, role: str = "agent") -> Event:
    return event("session.opened", NODE, time, role=role, incarnation=incarnation)


def told_of(*events: Event) -> list[Claim]:
    return claims_of(CollectorHealth(), [cut_frame(each.time, each) for each in events])


def test_what_an_agent_told_is_over_when_another_one_is_there() -> None:
    """It begins with collectors that work, and never says that they are back."""
    (_, over) = told_of(failing(1.0), opened(9.0, "second"))
    assert (over.active, over.evidence[-1].text) == (False, "over: another agent has taken the place of the one that told it")
    assert [(claim.active, len(claim.evidence)) for claim in told_of(failing(1.0), failing(9.0, "second", "host"))] == [(True, 1), (True, 1)]


def test_twin_the_same_agent_whose_session_opens_again_and_a_launchers_do_not_end_it() -> None:
    assert [claim.active for claim in told_of(failing(1.0), opened(9.0, "first"), opened(10.0, "other", "launcher"))] == [True]
    of_launcher = failing(1.0, "of a launcher", f"launcher of {JOB}: the job file")
    assert [claim.active for claim in told_of(of_launcher, opened(9.0, "second"), failing(10.0, "second"))] == [True, True]
    assert [claim.active for claim in told_of(of_launcher, opened(9.0, "new", "launcher"))] == [True, False]


def test_what_an_agent_told_that_was_over_then_is_nothing_when_it_comes_late() -> None:
    assert told_of(opened(9.0, "second"), failing(5.0, "first")) == []
    assert [claim.active for claim in told_of(opened(9.0, "second"), failing(8.9, "second"))] == [True], "its first look may be before its session"
    assert [claim.active for claim in told_of(opened(9.0, "second"), failing(12.0, "third"))] == [True], "it has no session yet"


@pytest.mark.parametrize("end", ["job.finished", "job.failed"])
def test_it_ends_with_the_job_and_not_with_an_epoch(end: str) -> None:
    claims = told_of(failing(1.0), event("epoch.started", job(), 5.0, epoch=2), event(end, job(), 9.0), failing(10.0, collector="host"))
    assert [claim.active for claim in claims] == [True, False]
    assert len(told_of(event(end, job(), 9.0), event("epoch.started", job(), 10.0, epoch=3), failing(11.0))) == 1


def test_what_a_collector_leaves_out_is_told_for_each_thing_and_over_for_each() -> None:
    one, two = f"worker run/node-0/0 of {JOB}", f"worker run/node-0/1 of {JOB}"
    back = event("collector.recovered", NODE, 4.0, collector="training", about=one)
    claims = told_of(failing(1.0, collector="training", about=one), failing(2.0, collector="training", about=two), failing(3.0, collector="training"), back)
    assert [len(claim.evidence) for claim in claims] == [1, 2, 3, 2]
    finding = Finding(id="f", revision=1, detector="d", digest="d", job=JOB, entity=NODE, kind="collector.failing", score=0.9, since=1.0, time=1.0, evidence=claims[-1].evidence, active=True)
    assert [(each.name, each.worker, each.job) for each in failing_collectors(finding)] == [("training", "run/node-0/1", JOB), ("training", "", "")]


def test_of_very_many_things_some_are_named() -> None:
    claims = told_of(*(failing(1.0 + index, collector="training", about=f"worker run/node-0/{index} of {JOB}") for index in range(THINGS + 9)))
    assert len(claims[-1].evidence) == THINGS


def test_twin_a_collector_that_is_back_and_never_failed_says_nothing() -> None:
    assert claims_of(CollectorHealth(), [cut_frame(1.0, event("collector.recovered", NODE, 1.0, collector="gpu"))]) == []
