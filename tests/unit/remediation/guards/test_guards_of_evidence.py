"""Telemetry distrust, weak evidence, minimum workers, cooldown: what we know, and how much may be done."""

import pytest
from msgspec.structs import replace

from eagle_eye.types import Allow, Demand, Hold, Refuse, Telemetry
from fakes.sample_plan import JOB, NODES, NOW, done, incident, layout, plan, situation
from remediation.guards.cooldown import Cooldown
from remediation.guards.minimum_workers import MinimumWorkers
from remediation.guards.telemetry_distrust import TelemetryDistrust
from remediation.guards.weak_evidence import WeakEvidence

LEAVE = plan(exclude=("c",))

# --- telemetry distrust ----------------------------------------------------------------------------------------------


def telling(**heard_ago: float) -> dict[str, Telemetry]:
    return {name: Telemetry(node=name, heard=NOW - heard_ago.get(name, 1.0)) for name in NODES}


def test_a_node_whose_collectors_are_dead_is_not_isolated():
    verdict = TelemetryDistrust()(LEAVE, situation(telemetry=telling(c=11.0)))
    assert isinstance(verdict, Hold)
    assert "collectors of c" in verdict.reason
    assert isinstance(TelemetryDistrust()(LEAVE, situation(telemetry=telling(c=9.0))), Allow)
    assert isinstance(TelemetryDistrust()(LEAVE, situation(telemetry=telling(d=11.0))), Allow), "it is about another node"
    assert isinstance(TelemetryDistrust()(plan(action="restart_worker"), situation(telemetry=telling(c=11.0))), Allow)


@pytest.mark.parametrize(("skew_s", "word"), [(6.0, "ahead"), (-6.0, "behind")])
def test_a_clock_that_is_off_beyond_use_isolates_nobody(skew_s, word):
    verdict = TelemetryDistrust()(LEAVE, situation(telemetry={"c": Telemetry(node="c", heard=NOW, skew_s=skew_s)}))
    assert isinstance(verdict, Hold)
    assert f"the clock of c is more than 5 s {word}" in verdict.reason
    usable = situation(telemetry={"c": Telemetry(node="c", heard=NOW, skew_s=skew_s * 0.8)})
    assert isinstance(TelemetryDistrust()(LEAVE, usable), Allow)


def test_when_most_of_the_cluster_falls_silent_at_once_nobody_is_isolated():
    verdict = TelemetryDistrust()(LEAVE, situation(telemetry=telling(a=20.0, b=20.0, d=20.0)))
    assert isinstance(verdict, Hold)
    assert "more than 50% of all nodes" in verdict.reason
    assert isinstance(TelemetryDistrust()(LEAVE, situation(telemetry=telling(a=20.0, b=20.0))), Allow)


@pytest.mark.parametrize("telemetry", [{}, {"c": Telemetry(node="c")}])
def test_a_node_that_was_never_heard_is_waited_for(telemetry):
    assert isinstance(TelemetryDistrust()(LEAVE, situation(telemetry=telemetry)), Hold)


# --- weak evidence ---------------------------------------------------------------------------------------------------


def test_the_unknown_and_the_unsure_are_not_isolated():
    unknown = WeakEvidence()(LEAVE, situation(incident=incident("unknown")))
    assert isinstance(unknown, Refuse)
    unsure = WeakEvidence()(LEAVE, situation(incident=incident(confidence=0.49)))
    assert isinstance(unsure, Refuse)
    assert "0.49, 0.50 is needed" in unsure.reason
    assert isinstance(WeakEvidence()(LEAVE, situation(incident=incident(confidence=0.5))), Allow)


def test_a_confidence_that_drills_have_raised_is_no_better_evidence():
    told = incident(confidence=0.97)
    raised = replace(told, culprits=(replace(told.culprits[0], score=0.45),))
    assert isinstance(WeakEvidence()(LEAVE, situation(incident=raised)), Refuse)


def test_each_node_that_is_isolated_needs_a_culprit_of_its_own():
    verdict = WeakEvidence()(plan(exclude=("b", "c")), situation())
    assert isinstance(verdict, Refuse)
    assert "that b is to blame is 0.00" in verdict.reason


def test_one_detector_alone_must_be_surer_and_a_weak_one_is_never_enough():
    alone = ("straggler",)
    assert isinstance(WeakEvidence()(LEAVE, situation(incident=incident(confidence=0.69, detectors=alone))), Refuse)
    assert isinstance(WeakEvidence()(LEAVE, situation(incident=incident(confidence=0.7, detectors=alone))), Allow)
    weak = WeakEvidence()(LEAVE, situation(incident=incident(confidence=1.0, detectors=("isolation_forest",))))
    assert isinstance(weak, Refuse)
    assert "only isolation_forest reports it" in weak.reason
    borne_out = incident(confidence=0.9, detectors=("isolation_forest", "straggler"))
    assert isinstance(WeakEvidence()(LEAVE, situation(incident=borne_out)), Allow)


def test_findings_that_were_withdrawn_bear_nothing_out():
    parts = tuple(replace(part, active=part.detector == "isolation_forest") for part in incident().parts)
    weak = replace(parts[0], detector="isolation_forest", active=True)
    assert isinstance(WeakEvidence()(LEAVE, situation(incident=replace(incident(), parts=(weak, parts[1])))), Refuse)


def test_what_may_still_change_is_waited_for():
    verdict = WeakEvidence()(plan(action="restart_worker"), situation(settled=NOW + 2.5))
    assert isinstance(verdict, Hold)
    assert verdict.seconds == 2.5
    assert isinstance(WeakEvidence()(plan(action="restart_worker"), situation(settled=NOW)), Allow)


def test_what_isolates_nobody_needs_no_culprit():
    assert isinstance(WeakEvidence()(plan(action="roll_back"), situation(incident=incident("loss not finite", ""))), Allow)


# --- minimum workers -------------------------------------------------------------------------------------------------


def test_a_job_keeps_the_nodes_that_it_needs():
    verdict = MinimumWorkers()(LEAVE, situation(nodes_min={JOB: 4}))
    assert isinstance(verdict, Refuse)
    assert "has 3 nodes left and needs 4" in verdict.reason
    assert isinstance(MinimumWorkers()(LEAVE, situation(nodes_min={JOB: 3})), Allow)
    assert isinstance(MinimumWorkers(nodes=4)(LEAVE, situation()), Refuse)


def test_nodes_that_another_plan_is_leaving_out_are_no_longer_counted():
    going = (plan("p0", exclude=("d",)),)
    assert isinstance(MinimumWorkers()(LEAVE, situation(nodes_min={JOB: 3}, running=going)), Refuse)
    elsewhere = (plan("p0", job="t/n/other", exclude=("d",)),)
    assert isinstance(MinimumWorkers()(LEAVE, situation(nodes_min={JOB: 3}, running=elsewhere)), Allow)


def test_no_more_than_half_of_a_job_is_given_up_at_once():
    verdict = MinimumWorkers()(plan(exclude=("b", "c", "d")), situation())
    assert isinstance(verdict, Refuse)
    assert "2 of 8 workers left, at least 4" in verdict.reason
    assert isinstance(MinimumWorkers()(plan(exclude=("c", "d")), situation()), Allow)
    assert isinstance(MinimumWorkers()(plan(exclude=("b",)), situation(layouts={JOB: layout(nodes=("a", "b"))})), Allow)


def test_an_elastic_job_keeps_the_workers_that_it_needs():
    demands = {JOB: Demand(declared=dict.fromkeys(NODES, 2), workers_per_node=dict.fromkeys(NODES, 2), workers_min=7)}
    verdict = MinimumWorkers()(LEAVE, situation(demands=demands))
    assert isinstance(verdict, Refuse)
    assert "6 of 8 workers left, at least 7 must stay" in verdict.reason


def test_a_job_whose_layout_is_not_known_waits_unless_nobody_is_left_out():
    assert isinstance(MinimumWorkers()(LEAVE, situation(layouts={})), Hold)
    assert isinstance(MinimumWorkers()(plan(action="roll_back"), situation(layouts={})), Allow)


# --- cooldown --------------------------------------------------------------------------------------------------------


def test_a_job_is_left_in_peace_after_an_action_that_helped():
    before = done(plan("p0", action="roll_back", of="i0"), ago=4.0)
    verdict = Cooldown()(LEAVE, situation(**before))
    assert isinstance(verdict, Hold)
    assert verdict.seconds == 6.0
    assert isinstance(Cooldown()(LEAVE, situation(**done(plan("p0", action="roll_back", of="i0"), ago=10.0))), Allow)
    assert isinstance(Cooldown(job_s=0.0)(LEAVE, situation(**before)), Allow)


@pytest.mark.parametrize(("cause", "repair", "held"), [
    ("launcher lost", {"action": "restart_worker"}, False), ("worker killed", {"action": "restart_worker", "workers": ("r/c/0",)}, False),
    ("slow node", {"action": "restart_worker"}, True), ("ecc error", {"exclude": ("c",)}, True),
])  # fmt: skip
def test_a_job_that_stands_still_is_restarted_at_once(cause, repair, held):
    before = done(plan("p0", action="reattempt", workers=("r/c/0",), of="i0"), ago=1.0)
    verdict = Cooldown()(plan(**repair), situation(**before, incident=incident(cause=cause)))
    assert isinstance(verdict, Hold if held else Allow)


def test_a_leader_before_us_whose_clock_was_ahead_makes_no_cooldown_longer():
    assert isinstance(Cooldown()(LEAVE, situation(**done(plan("p0", action="roll_back", of="i0"), ago=-3600.0))), Allow)
    verdict = Cooldown()(LEAVE, situation(**done(plan("p0", action="roll_back", of="i0"), ago=-0.1)))
    assert isinstance(verdict, Hold)
    assert verdict.seconds == 10.0


def test_a_node_is_left_in_peace_for_longer_whichever_job_it_was_for():
    before = done(plan("p0", job="t/n/other", exclude=("c",), of="i0"), ago=40.0)
    verdict = Cooldown()(LEAVE, situation(**before))
    assert isinstance(verdict, Hold)
    assert verdict.seconds == 20.0
    assert isinstance(Cooldown()(plan(exclude=("d",)), situation(**before)), Allow)
    assert isinstance(Cooldown(node_s=0.0)(LEAVE, situation(**before)), Allow)


@pytest.mark.parametrize("before", [
    done(plan("p0", action="restart_worker", workers=("r/c/0",), of="i1"), ago=1.0),
    done(plan("p0", action="restart_worker", workers=("r/c/0",), of="i0"), ago=1.0, state="failed"),
    done(plan("p0", action="restart_worker", workers=("r/c/0",), of="i0", own=True), ago=1.0),
    done(plan("p0", action="dump", of="i0"), ago=1.0),
    done(plan("p0", action="restart_worker", job="t/n/other", of="i0"), ago=1.0),
], ids=["the same incident", "it did not help", "the job itself", "looking on", "another job"])  # fmt: skip
def test_what_begins_no_peace(before):
    assert isinstance(Cooldown()(LEAVE, situation(**before)), Allow)
