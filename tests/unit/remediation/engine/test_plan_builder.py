"""Who may be left out of a job, and why not."""

import msgspec
import pytest
from msgspec.structs import replace

from eagle_eye.types import Culprit, Entity, Kind
from fakes.sample_values import JOB, a_layout, an_incident
from remediation.engine.job_state import JobState
from remediation.engine.plan_builder import NoPlan, PlanRequest, exclusion, make
from remediation.policy.engine_settings import EngineSettings

NODES = ("node-a", "node-b", "node-c")


@pytest.fixture
def job() -> JobState:
    (place,) = a_layout().placements
    places = tuple(replace(place, worker=f"run1/{node}/0", node=node, rank=rank) for rank, node in enumerate(NODES))
    return JobState(name=JOB, epoch=2, layout=replace(a_layout(), placements=places, launchers=dict.fromkeys(NODES, "h:1")))


def culprit(node: str, confidence: float = 0.9) -> Culprit:
    return Culprit(entity=Entity(kind=Kind.NODE, name=node), confidence=confidence)


def test_an_incident_without_a_culprit_never_leads_to_an_exclusion(job: JobState) -> None:
    nameless = an_incident(culprits=())
    assert exclusion(nameless, job, EngineSettings()) == NoPlan("no culprit is named, and no node is evicted without one")
    wanted = PlanRequest(action="evict_node", own=False, incident=nameless, attempts=(), now=110.0)
    assert make(wanted, job, EngineSettings()) == NoPlan("no culprit is named, and no node is evicted without one")


def test_sure_culprits_alone_are_left_out(job: JobState) -> None:
    blamed = an_incident(culprits=(culprit("node-b"), culprit("node-c", confidence=0.49)))
    assert exclusion(blamed, job, EngineSettings(confidence=0.5)) == ("node-b",)
    unsure = exclusion(an_incident(culprits=(culprit("node-c", confidence=0.49),)), job, EngineSettings(confidence=0.5))
    assert isinstance(unsure, NoPlan)
    assert "confidence 0.49, 0.50 is needed" in unsure.why
    assert unsure.unsure


def test_a_confidence_that_drills_have_raised_leaves_nobody_out(job: JobState) -> None:
    raised = an_incident(culprits=(msgspec.structs.replace(culprit("node-c", confidence=0.97), score=0.45),))
    assert isinstance(exclusion(raised, job, EngineSettings(confidence=0.5)), NoPlan)


def test_a_node_outside_the_job_is_not_left_out_of_it(job: JobState) -> None:
    assert exclusion(an_incident(culprits=(culprit("node-x"),)), job, EngineSettings()) == NoPlan("no culprit is on a node of the job")


@pytest.mark.parametrize(("needed", "blamed", "left"), [(3, 1, 2), (1, 3, 0)])
def test_the_nodes_that_the_job_needs_stay(job: JobState, needed: int, blamed: int, left: int) -> None:
    job.nodes_min = needed
    refused = exclusion(an_incident(culprits=tuple(map(culprit, NODES[:blamed]))), job, EngineSettings())
    assert isinstance(refused, NoPlan)
    assert f"{left} nodes would be left; the job needs {needed}" in refused.why
