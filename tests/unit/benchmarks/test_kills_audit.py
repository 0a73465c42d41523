"""What the benchmark of kills accepts of a ledger and a stream, and what not."""

import dataclasses

import msgspec
import pytest

from benchmarks.faults.kills.audit import Books, violations_of
from benchmarks.faults.kills.moment import PARTS, Moment, drawn
from eagle_eye.app.drills import GroundTruth
from eagle_eye.ledger import IncidentRecord
from eagle_eye.types import Culprit, Entity, IncidentState, Kind, Outcome, Progress, Severity
from fakes.sample_values import an_incident
from fakes.synthetic_events import event, job

STRUCK = GroundTruth(kind="kill", time=100.0, node="node-a", worker="run-1/node-a/1", rank=1)


def moment(part: str = "server", node: str = "node-b") -> Moment:
    return Moment(seed=1, job="plain, heals itself", fault="kill", rank=1, part=part, node=node, after_s=1.0, away_s=1.0)


def told(name: str = "run-1/node-a/1", state: IncidentState = IncidentState.HEALED, number: int = 1, **changes: object) -> IncidentRecord:
    kind = Kind.WORKER if "/" in name else Kind.NODE
    culprits = (Culprit(entity=Entity(kind=kind, name=name), confidence=0.9),) if name else ()
    return IncidentRecord(incident=an_incident(id=f"i{number}", culprits=culprits, **changes), state=state, opened=101.0, changed=105.0)


def outcome(state: str = "done", **changes: object) -> Outcome:
    return msgspec.structs.replace(Outcome(plan="p1", incident="i1", action="restart_worker", state="done", time=104.0), state=state, **changes)


GOOD = Books(
    struck=STRUCK, incidents=[told()], outcomes=[outcome()], plans={}, progress={"p1": [Progress(step="restart", state="done", time=103.0)]},
    epochs=[event("epoch.started", job(), 102.0, epoch=2, reason="command", plan="p1")],
)  # fmt: skip
AGAIN = event("epoch.started", job(), 103.0, epoch=3, reason="command", plan="p1")


def test_a_fault_that_is_told_once_and_healed_once_is_right() -> None:
    assert violations_of(GOOD, moment()) == []
    notice = outcome(plan="p2", action="notify")
    assert violations_of(dataclasses.replace(GOOD, outcomes=[outcome(), notice, msgspec.structs.replace(notice, plan="p3")]), moment()) == []


@pytest.mark.parametrize(("changes", "said"), [
    ({"incidents": []}, "incident lost"),
    ({"incidents": [told("run-1/node-b/0")]}, "incident lost"),
    ({"incidents": [told(), told(number=2)]}, "one fault, 2 incidents"),
    ({"incidents": [told(), told("", number=2, cause="network error", severity=Severity.SEV3)]}, "told beside the fault: network error"),
    ({"incidents": [told(state=IncidentState.HEALING)]}, "incident healing"),
    ({"outcomes": [outcome("intended")]}, "outcome left open"),
    ({"outcomes": [outcome("intended", action="notify")]}, "outcome left open"),
    ({"outcomes": [outcome(), outcome(plan="p2")]}, "was done 2 times for incident i1"),
    ({"progress": {"p1": [*GOOD.progress["p1"], *GOOD.progress["p1"]]}}, "step restart of plan p1 was done 2 times"),
    ({"epochs": [*GOOD.epochs, AGAIN]}, "2 epochs for one plan"),
])  # fmt: skip
def test_what_is_lost_open_or_done_twice_is_found(changes: dict[str, object], said: str) -> None:
    assert any(said in violation for violation in violations_of(dataclasses.replace(GOOD, **changes), moment()))


def test_a_launcher_that_was_killed_may_be_told_beside_the_fault_but_once() -> None:
    lost = told("node-b", number=2, cause="launcher lost")
    books = dataclasses.replace(GOOD, incidents=[told(), lost])
    assert violations_of(books, moment("launcher")) == []
    assert violations_of(books, moment("server")) == ["told beside the fault: launcher lost (node-b)"]
    twice = dataclasses.replace(GOOD, incidents=[told(), lost, told("run-1/node-b/0", number=3)])
    assert any("one lost launcher, 2 incidents" in violation for violation in violations_of(twice, moment("launcher")))


def test_a_fault_on_the_node_of_the_launcher_that_was_killed_may_be_told_as_that() -> None:
    books = dataclasses.replace(GOOD, incidents=[told("node-a", cause="launcher lost")])
    assert violations_of(books, moment("launcher", "node-a")) == []


def test_a_seed_draws_the_same_moment_and_27_draw_all_kinds() -> None:
    assert drawn(7) == drawn(7)
    moments = [drawn(seed) for seed in range(27)]
    assert {(each.part, each.fault, each.job) for each in moments} == {(part, fault, kind) for part in PARTS for fault in ("kill", "exception", "stop") for kind in {m.job for m in moments}}
