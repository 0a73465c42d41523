import math

import pytest

from eagle_eye.app.demo.fault_verdict import FaultRecords, verdict_of
from eagle_eye.app.demo.scenario import FAULTS
from eagle_eye.app.demo.step_trace import CommittedStep, StepTrace
from eagle_eye.app.drills import GroundTruth
from eagle_eye.types import Culprit, Entity, Incident, Kind, Layout, Notice, Outcome, RankPlacement, Severity

KILL = next(fault for fault in FAULTS if fault.kind == "kill")
STREAM = next(fault for fault in FAULTS if fault.kind == "stream")
TRUTH = GroundTruth(kind="kill", time=100.0, node="a", worker="r/a/0", rank=0)


def layout(epoch, time):
    places = tuple(RankPlacement(worker=f"r/a/{slot}", node="a", rank=slot, local_rank=slot) for slot in range(2))
    return Layout(job="t/j/r", epoch=epoch, time=time, coordinator="a", launchers={"a": "x:1"}, placements=places)


def step(number, epoch, end, **changes):
    values = {"loss": 2.0, "tokens": 64.0, "seconds": 0.1, "workers": 2} | changes
    return CommittedStep(number=number, epoch=epoch, end=end, **values)


def healed_trace(**changes):
    trace = StepTrace("t/j/r")
    trace.layouts = [layout(1, 0.0), layout(2, 100.5)]
    trace.steps = [step(number, 1, 90.0 + number * 0.1) for number in range(100)]
    trace.steps += [step(95 + number, 2, 101.0 + number * 0.1, **changes) for number in range(40)]
    return trace


def incident(worker="r/a/0", cause="worker killed", time=100.03):
    culprits = (Culprit(entity=Entity(kind=Kind.WORKER, name=worker), confidence=0.9),) if worker else ()
    return Incident(id="i", revision=0, job="t/j/r", cause=cause, culprits=culprits, severity=Severity.SEV2, findings=("f",), evidence=(), since=100.0, time=time)


def evidence(*incidents, until=110.0, notices=()):
    outcome = Outcome(plan="p", incident="i", action="restart_worker", state="done", time=102.0)
    return FaultRecords(first=incidents, latest=incidents, outcomes=(outcome,), notices=notices, until=until)


REFERENCE = dict.fromkeys(range(200), 2.0)


def test_a_healed_fault_has_nothing_wrong():
    row = verdict_of(KILL, TRUTH, evidence(incident()), healed_trace(), 320.0, REFERENCE)
    assert row.wrongs == ()
    assert row.found_s == pytest.approx(0.03)
    assert row.training_s == pytest.approx(1.0)
    assert row.steps_lost == 5
    assert row.actions == ("restart_worker",)


@pytest.mark.parametrize(
    ("seen", "trace", "wrong"),
    [
        (evidence(), healed_trace(), "missed"),
        (evidence(incident("r/a/1")), healed_trace(), "blamed wrongly"),
        (evidence(incident(), incident("r/a/1", time=101.0)), healed_trace(), "blamed wrongly"),
        (evidence(incident(cause="worker stopped")), healed_trace(), "cause wrong"),
        (evidence(incident(), until=101.5), healed_trace(), "only"),
        (evidence(incident()), healed_trace(tokens=32.0), "global batch"),
        (evidence(incident()), healed_trace(seconds=0.2), "throughput"),
        (evidence(incident()), healed_trace(loss=2.01), "loss off"),
    ],
)
def test_what_is_not_right_is_said(seen, trace, wrong):
    row = verdict_of(KILL, TRUTH, seen, trace, 320.0, REFERENCE)
    assert any(wrong in each for each in row.wrongs), row.wrongs


def test_a_stopped_stream_is_right_when_it_was_noticed_and_nobody_was_blamed():
    truth = GroundTruth(kind="stream", time=100.0)
    trace = StepTrace("t/j/r")
    trace.layouts = [layout(1, 0.0)]
    trace.steps = [step(number, 1, 90.0 + number * 0.1) for number in range(200)]
    notice = Notice(name="stream.away", time=102.0, message="")
    assert verdict_of(STREAM, truth, evidence(notices=(notice,)), trace, 320.0, REFERENCE).wrongs == ()
    assert "blamed wrongly" in verdict_of(STREAM, truth, evidence(incident(), notices=(notice,)), trace, 320.0, REFERENCE).wrongs
    assert "missed" in verdict_of(STREAM, truth, evidence(), trace, 320.0, REFERENCE).wrongs


def test_a_skipped_batch_excuses_the_losses_from_then_on_and_no_earlier():
    trace = healed_trace(loss=2.01)
    skipping = layout(3, 120.0)
    trace.layouts.append(type(skipping)(**{name: getattr(skipping, name) for name in skipping.__struct_fields__} | {"skipped": (150,)}))
    assert any("loss off" in wrong for wrong in verdict_of(KILL, TRUTH, evidence(incident()), trace, 320.0, REFERENCE).wrongs)
    assert verdict_of(KILL, TRUTH, evidence(incident(), until=130.0), trace, 320.0, REFERENCE).wrongs == ()


def test_a_loss_that_is_no_number_is_not_healed():
    row = verdict_of(KILL, TRUTH, evidence(incident()), healed_trace(loss=math.nan), 320.0, REFERENCE)
    assert row.wrongs
