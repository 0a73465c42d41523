"""The newest safe checkpoint of a job, from what the launchers of its nodes tell."""

import pytest

from eagle_eye.checkpoint_safety import (
    CHECKPOINT_SAFE,
    NodeSafety,
    SafeStep,
    job_safety,
    safety_attributes,
    safety_told,
)
from eagle_eye.types import Entity, Event, Kind

JOB = "team/gpt/7"


def event(node: str = "n0", *, entity: Entity | None = None, **attributes: str) -> Event:
    return Event(name=CHECKPOINT_SAFE, job=JOB, entity=entity or Entity(kind=Kind.JOB, name=JOB), time=50.0, node=node, incarnation="b", number=1, attributes=attributes)


def told(node: str, *, memory: int = 12, backup: int | None = 10, storage: int | None = None, **more: str) -> NodeSafety:
    steps = {"memory": memory, "backup": backup, "storage": storage}
    return NodeSafety(job=JOB, node=node, time=50.0, tiers={tier: SafeStep(step=step, time=step + 100.0) for tier, step in steps.items() if step is not None}, **more)


def test_what_a_launcher_tells_is_what_is_read() -> None:
    tiers = {"memory": SafeStep(step=12, time=40.5), "storage": SafeStep(failure="disk full")}
    assert safety_told(event(**safety_attributes(tiers, "n1", "switch leaf-1"))) == NodeSafety(job=JOB, node="n0", time=50.0, tiers=tiers, kept_by="n1", shared="switch leaf-1")


@pytest.mark.parametrize(("step", "time"), [("x", "y"), ("1e9", "nan"), ("9" * 400, "inf")])
def test_numbers_that_are_none_are_not_known(step: str, time: str) -> None:
    found = safety_told(event(memory_step=step, memory_time=time))
    assert found is not None
    assert found.tiers == {"memory": SafeStep()}


@pytest.mark.parametrize(
    "bad",
    [event(node=""), event(node="n" * 256), event(entity=Entity(kind=Kind.NODE, name="n0")), event(entity=Entity(kind=Kind.JOB, name="team/other/7")), event(memory_failure="x" * 401), event(shared="a\0b")],
)
def test_who_does_not_speak_of_the_own_job_and_what_is_too_long_is_not_believed(bad: Event) -> None:
    assert safety_told(bad) is None


def test_a_long_reason_is_cut_and_told() -> None:
    found = safety_told(event(**safety_attributes({"memory": SafeStep(failure="x" * 5000)}, "", "")))
    assert found is not None
    assert len(found.tiers["memory"].failure) == 400


def test_a_job_goes_on_from_the_step_of_its_node_that_is_behind_and_storage_has_all_or_nothing() -> None:
    found = job_safety([told("n0", storage=5), told("n1", memory=11, backup=9, storage=-1), told("gone", memory=1, backup=1)], ["n0", "n1"])
    assert {tier: (safe.step, safe.time) for tier, safe in found.tiers.items()} == {"memory": (11, 111.0), "backup": (9, 109.0), "storage": (5, 105.0)}


def test_a_node_that_has_told_of_none_is_named_and_nothing_is_safe() -> None:
    found = job_safety([told("n0")], ["n0", "n1"])
    assert found.tiers == {"memory": SafeStep(failure="n1 has told of none"), "backup": SafeStep(failure="n1 has told of none")}
    assert not job_safety([], ["n0"]).tiers
    assert not job_safety([told("gone")], ["n0"]).tiers


def test_a_job_of_one_node_has_no_other_one() -> None:
    assert job_safety([told("n0", backup=None)], ["n0"]).tiers.keys() == {"memory"}


def test_what_is_in_the_way_is_told_with_its_node_and_of_many_nodes_counted() -> None:
    failing = [NodeSafety(job=JOB, node=f"n{index}", time=50.0, tiers={"memory": SafeStep(step=3, time=1.0, failure="no room")}) for index in range(5)]
    assert job_safety(failing, [each.node for each in failing]).tiers["memory"].failure == "n0: no room; n1: no room; n2: no room; and 2 more"


def test_copies_in_one_failure_domain_are_told() -> None:
    assert job_safety([told("n0", kept_by="n1", shared="switch leaf-1"), told("n1", kept_by="n0")], ["n0", "n1"]).shared == ("n0 and n1 on switch leaf-1",)
