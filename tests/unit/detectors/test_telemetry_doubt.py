"""What rests on doubtful telemetry counts less: the culprit's score and confidence fall, a line says why, and nothing else changes."""

import msgspec
import pytest

from detectors.collector_health import CollectorHealth
from detectors.diagnosis import Diagnosis
from eagle_eye.topology import with_layout
from eagle_eye.types import Entity, Evidence, Finding, Incident, Kind, Topology
from fakes.synthetic_events import claims_of, cut_frame, event, node, worker
from fakes.synthetic_frames import BEGAN, JOB, layout_of

TOPOLOGY = with_layout(Topology(), layout_of(3, 2, gpus=True))
A, C = worker("node-0", 0), worker("node-1", 0)
FAILS = "collector process on node-1 fails: timed out"


def finding(kind: str, entity: Entity, text: str, metric: str = "", *, since: float = BEGAN, status: str = "", score: float = 0.9) -> Finding:
    line = Evidence(text=text, event=f"{kind}-{entity.name}", metric=metric, status=status)
    return Finding(
        id=f"{kind}-{entity.name}", revision=1, detector=kind, digest="d", job=JOB, entity=entity, kind=kind, score=score, since=since, time=since, evidence=(line,), active=True,
    )  # fmt: skip


def slow(who: Entity = C) -> Finding:
    return finding("worker.slow", who, f"worker {who.name} computes 1.6 times as long", "compute_s")


def failing(where: str = "node-1", collector: str = "process") -> Finding:
    return finding("collector.failing", node(where), f"collector {collector} on {where} fails: timed out")


def stuck(kind: Kind, name: str, metric: str) -> Finding:
    entity = Entity(kind=kind, name=name)
    return finding(f"{kind}.reading_stuck", entity, f"{entity}: its {metric} has been 40 in 30 readings in succession", metric)


def accusing(*findings: Finding) -> Incident:
    (incident,) = [each for each in Diagnosis().diagnose((), list(findings), TOPOLOGY) if each.culprits]
    return incident


def doubts(incident: Incident) -> list[str]:
    return [line.text for line in incident.evidence if line.text.startswith("in doubt: ")]


@pytest.mark.parametrize("doubt", [failing(), failing(collector="training"), stuck(Kind.NODE, "node-1", "cpu_percent"), stuck(Kind.JOB, JOB, "cpu_percent"), stuck(Kind.NODE, "node-1", "compute_s")])
def test_a_slow_worker_counts_half_where_its_readings_are_missing_or_stuck(doubt: Finding) -> None:
    sure, doubted = accusing(slow()), accusing(slow(), doubt)
    (before,), (after,) = sure.culprits, doubted.culprits
    assert (after.entity, after.score) == (C, round(before.score / 2, 3))
    assert after.confidence == pytest.approx(before.confidence / 2, abs=0.001)
    assert doubts(doubted) == [f"in doubt: {doubt.evidence[0].text}: what rests on it counts half"]
    assert (doubted.cause, doubted.severity, doubts(sure)) == (sure.cause, sure.severity, [])


@pytest.mark.parametrize("doubt", [failing("node-0"), failing(collector="fabric"), stuck(Kind.NODE, "node-1", "power_watts"), stuck(Kind.GPU, "GPU-node-1/1", "compute_s"), finding("telemetry.late", node("node-1"), "late")])
def test_twin_doubt_of_another_node_or_of_what_it_does_not_rest_on_changes_nothing(doubt: Finding) -> None:
    sure, beside = accusing(slow()), accusing(slow(), doubt)
    assert (beside.culprits, beside.evidence) == (sure.culprits, sure.evidence)


def left_out(thing: str) -> Finding:
    """As the chain writes it: of one worker, or one job, that the collector cannot read."""
    told = event("collector.failing", node("node-1"), BEGAN, collector="training", about=thing, reason="its ring is of another version")
    (claim,) = claims_of(CollectorHealth(), [cut_frame(BEGAN, told)])
    return msgspec.structs.replace(failing(), evidence=claim.evidence)


@pytest.mark.parametrize("thing", [f"worker {C.name} of {JOB}", f"job {JOB}"])
def test_a_worker_that_is_left_out_counts_half(thing: str) -> None:
    (culprit,), doubted = accusing(slow(), left_out(thing)).culprits, accusing(slow(), left_out(thing))
    assert culprit.score == round(accusing(slow()).culprits[0].score / 2, 3)
    assert doubts(doubted) == [f"in doubt: collector training on node-1 fails: {thing}: its ring is of another version: what rests on it counts half"]


@pytest.mark.parametrize("thing", [f"worker run/node-1/1 of {JOB}", f"worker {C.name} of other/job/run", "worker r2/node-1/0 of other/job/r2", "job other/job/r2"])
def test_twin_another_worker_or_job_that_is_left_out_shields_nobody(thing: str) -> None:
    for doubt in (left_out(thing), finding("collector.failing", node("node-1"), f"collector training on node-1 fails: {thing} is left out by the collector training, the others are not: no")):
        sure, beside = accusing(slow()), accusing(slow(), doubt)
        assert (beside.culprits, doubts(beside)) == (sure.culprits, [])


def test_a_node_is_not_in_doubt_for_one_worker_and_the_line_that_counts_is_told() -> None:
    busy = finding("host.contended", node("node-1"), "other processes run there", "cpu_percent")
    assert accusing(slow(), busy).culprits[0].score == accusing(slow(), busy, left_out(f"worker run/node-1/1 of {JOB}")).culprits[0].score
    both = msgspec.structs.replace(failing(), evidence=(*left_out(f"worker run/node-1/1 of {JOB}").evidence, *failing().evidence))
    assert doubts(accusing(slow(), both)) == [f"in doubt: {FAILS}: what rests on it counts half"]


@pytest.mark.parametrize(
    "sure",
    [
        finding("worker.exited", C, "worker run/node-1/0 was killed", status="killed", score=1.0),
        finding("worker.exception", C, "worker run/node-1/0 raised ValueError: no", status="other software error", score=1.0),
        finding("launcher.lost", node("node-1"), "the session of the launcher on node-1 is gone"),
        finding("gpu.lost", Entity(kind=Kind.GPU, name="GPU-node-1/0"), "gone", score=1.0),
    ],
)
def test_twin_a_death_a_launchers_word_and_a_drivers_keep_their_score(sure: Finding) -> None:
    before = accusing(sure)
    for doubt in (*(failing(collector=each) for each in ("training", "process", "gpu")), finding("telemetry.late", node("node-1"), "late"), stuck(Kind.NODE, "node-1", "cpu_percent")):
        after = accusing(sure, doubt)
        assert min(each.score for each in after.culprits) >= before.culprits[0].score
        assert doubts(after) == []


def test_late_telemetry_takes_from_a_stall() -> None:
    stalled = finding("worker.stalled", C, "worker run/node-1/0 stands in forward")
    late = finding("telemetry.late", node("node-1"), "node-1 has sent no telemetry of the last 10 s")
    assert accusing(stalled, late).culprits[0].score == round(accusing(stalled).culprits[0].score / 2, 3)


def death(who: Entity, status: str = "killed") -> Finding:
    return finding("worker.exited", who, f"worker {who.name} was ended by SIGTERM", status=status, score=1.0)


def test_all_workers_of_a_node_that_were_killed_and_nobody_said_why_may_be_a_preemption() -> None:
    whole, one = accusing(death(C), death(worker("node-1", 1))), accusing(death(C))
    (node_accused,), (worker_accused,) = whole.culprits, one.culprits
    assert (whole.cause, node_accused.entity, node_accused.score) == ("worker killed", node("node-1"), worker_accused.score)
    assert node_accused.confidence == pytest.approx(worker_accused.confidence / 2, abs=0.001)
    assert "a preemption" in whole.evidence[0].text
    assert any("preempted" in rival.cause for rival in whole.rivals)
    assert "a preemption" not in " ".join(line.text for line in one.evidence)


def test_twin_what_was_told_or_is_no_signal_from_outside_keeps_its_confidence() -> None:
    said = finding("kernel.error", node("node-1"), "the kernel ended a process for want of memory", since=BEGAN + 0.1)
    for findings in ((death(C), death(worker("node-1", 1)), said), (death(C, "out of memory"), death(worker("node-1", 1), "out of memory")), (death(A), death(C))):
        incident = accusing(*findings)
        assert min(each.confidence for each in incident.culprits) > 0.9
        assert "a preemption" not in incident.evidence[0].text


def test_timers_that_are_doubtful_take_from_what_they_say_of_their_own_worker_alone() -> None:
    doubtful = finding("timers.doubtful", C, f"the timers of worker {C.name} add up to 1.5 s in a step of 1.2 s")
    assert accusing(slow(), doubtful).culprits[0].score == round(accusing(slow()).culprits[0].score / 2, 3)
    assert accusing(slow(A), doubtful).culprits == accusing(slow(A)).culprits
    killed = finding("worker.exited", C, f"worker {C.name} was killed", status="killed", score=1.0)
    assert accusing(killed, doubtful).culprits[0].score >= accusing(killed).culprits[0].score
    (alone,) = Diagnosis().diagnose((), [doubtful], TOPOLOGY)
    assert (alone.cause, alone.culprits) == ("doubtful timers", ())


def test_of_two_slow_workers_the_one_with_sound_telemetry_keeps_its_score() -> None:
    scores = {culprit.entity: culprit.score for culprit in accusing(slow(A), slow(C), failing()).culprits}
    assert scores == {A: 0.9, C: 0.45}


def test_two_doubts_are_no_more_than_one() -> None:
    assert accusing(slow(), failing(), stuck(Kind.NODE, "node-1", "cpu_percent")).culprits[0].score == accusing(slow(), failing()).culprits[0].score


@pytest.mark.parametrize(("apart_s", "left"), [(1.0, 0.7), (30.0, 1.0)])
def test_a_clock_that_is_off_takes_from_who_was_first_of_two_alike_and_from_nobody_else(apart_s: float, left: float) -> None:
    skewed = finding("clock.skewed", node("node-2"), "the clock of node-2 is 40 s ahead of the server's")
    first = finding("worker.exited", C, "exit code 1", status="exited abnormally", score=1.0)
    second = finding("worker.exited", worker("node-2", 0), "exit code 1", since=BEGAN + apart_s, status="exited abnormally", score=1.0)
    sure, doubted = accusing(first, second), accusing(first, second, skewed)
    assert doubted.culprits[0].score == pytest.approx(left * sure.culprits[0].score)
    assert accusing(first, skewed).culprits[0].score == accusing(first).culprits[0].score


def test_doubt_that_comes_later_revises_the_incident_and_its_end_gives_the_score_back() -> None:
    opened = {each.id: each for each in Diagnosis().diagnose((), [slow()], TOPOLOGY)}

    def then(*findings: Finding) -> list[Incident]:
        told = list(Diagnosis().diagnose(tuple(opened.values()), list(findings), TOPOLOGY))
        opened.update({each.id: each for each in told})
        return [each for each in told if each.culprits]

    (doubted,) = then(failing())
    assert (doubted.revision, doubted.culprits[0].score, len(doubts(doubted))) == (2, 0.405, 1)
    (sure,) = then(msgspec.structs.replace(failing(), revision=2, active=False))
    assert (sure.revision, sure.culprits[0].score, doubts(sure)) == (3, 0.81, [])
    assert then(failing("node-0")) == [], "of another node: no news"


def test_an_incident_that_shares_its_fault_with_another_job_keeps_its_doubt() -> None:
    other = f"{JOB.rpartition('/')[0]}-2/other"
    both = [finding("link.errors", Entity(kind=Kind.LINK, name="node-1/mlx5_0:1"), "errors"), failing(collector="fabric")]
    beside = msgspec.structs.replace(both[0], id="of the other", job=other)
    opened = tuple(Diagnosis().diagnose((), both, TOPOLOGY))
    told = {each.job: each for each in Diagnosis().diagnose(opened, [beside], TOPOLOGY)}
    assert set(told[JOB].victims) == {JOB, other}
    assert len(doubts(told[JOB])) == 1
    assert doubts(told[other]) == [], "its own telemetry is sound as far as it is known"


def test_the_collector_that_fails_is_read_from_what_its_detector_writes() -> None:
    told = [event("collector.failing", node("node-1"), BEGAN, collector=name, reason="timed out") for name in ("fabric", "process")]
    claim = claims_of(CollectorHealth(), [cut_frame(BEGAN, *told)])[-1]
    written = msgspec.structs.replace(failing(), evidence=claim.evidence)
    assert claim.evidence[1].text == FAILS
    assert accusing(slow(), written).culprits[0].score == accusing(slow(), failing()).culprits[0].score
