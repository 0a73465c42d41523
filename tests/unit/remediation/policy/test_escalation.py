"""The weakest repair that can help, and what it costs."""

import math

import pytest

from eagle_eye.types import Severity
from remediation.policy.escalation import (
    BROKEN,
    DEATH,
    ESCALATIONS,
    INFORM,
    NETWORK,
    REVERSIBLE,
    SEVERITIES,
    Attempt,
    escalation_of,
    next_level,
    same_fault,
)
from remediation.policy.slowdown_cost import Slowdown, weigh

RUNGS = ("reattempt", "restart_worker", "evict_node")
ALLOWED = {"reattempt": 3, "restart_worker": 1}


def tried(action, *, failed=False, **more) -> Attempt:
    usual = {"plan": "p", "incident": "i", "job": "j", "cause": "c", "culprits": frozenset({"w"}), "ended": 0.0}
    return Attempt(action=action, failed=failed, **{**usual, **more})


@pytest.mark.parametrize(("attempts", "next_one"), [
    ([], "reattempt"),
    ([tried("reattempt")] * 2, "reattempt"),
    ([tried("reattempt")] * 3, "restart_worker"),
    ([tried("reattempt", failed=True)], "restart_worker"),
    ([tried("restart_worker", failed=True)], "evict_node"),
    ([tried("reattempt", failed=True), tried("restart_worker")], "evict_node"),
    ([tried("reattempt", failed=True), tried("heal_in_place")], "evict_node"),
    ([tried("evict_node")], "reattempt"),
    ([tried("evict_node", failed=True)], None),
    ([tried("dump", failed=True)], "reattempt"),
])  # fmt: skip
def test_a_stronger_repair_follows_only_when_the_weaker_failed_or_is_used_up(attempts, next_one):
    assert next_level(RUNGS, attempts, ALLOWED) == next_one


def test_severities_are_those_of_the_actions_in_order():
    order = [Severity.SEV3, Severity.SEV2, Severity.SEV1]
    for escalation in ESCALATIONS.values():
        ranks = [order.index(SEVERITIES[level]) for level in escalation.levels]
        assert ranks == sorted(ranks)


@pytest.mark.parametrize("cause", ["slower worker", "slower node", "slower from the start", "slow worker off the critical path", "silent corruption"])
def test_twin_a_few_percent_stop_and_evict_nobody(cause):
    """A severity that is in no table would bring the steps of a broken network."""
    found = escalation_of(cause, Severity.SEV3)
    assert found.levels == ()
    assert found.remedy
    assert not found.cost_weighed
    assert not found.self_healed


def test_nothing_that_isolates_is_a_jobs_own():
    assert "evict_node" not in REVERSIBLE
    assert "roll_back" not in REVERSIBLE


@pytest.mark.parametrize("cause", ["exception", "worker exited", "out of memory", "storage error"])
def test_no_node_is_evicted_for_what_the_program_or_the_storage_may_have_done(cause):
    assert "evict_node" not in escalation_of(cause, Severity.SEV2).levels


def test_unknown_and_informing_causes_have_no_repair():
    assert escalation_of("unknown", Severity.SEV1) is INFORM
    for cause in ("host contended", "cpu quota", "slow communication", "slow input", "throughput lost", "unequal stages", "unequal work", "slow link"):
        assert escalation_of(cause, Severity.INFO).only_informs, "nothing is restarted and nobody evicted for it"
    assert "CPU quota" in escalation_of("cpu quota", Severity.INFO).remedy
    assert INFORM.levels == ()


def test_a_cause_in_no_table_is_treated_by_its_severity():
    assert escalation_of("a word of tomorrow", Severity.SEV1) is BROKEN
    assert escalation_of("a word of tomorrow", Severity.SEV2) is DEATH
    assert escalation_of("a word of tomorrow", Severity.SEV3) is NETWORK


def test_the_same_fault_is_the_same_cause_at_the_same_culprit():
    attempt = tried("restart_worker")
    assert attempt.same_fault("j", "c", frozenset({"w", "v"}))
    assert not attempt.same_fault("j", "c", frozenset({"v"}))
    assert not attempt.same_fault("j", "other", frozenset({"w"}))
    assert tried("roll_back", culprits=frozenset()).same_fault("j", "c", frozenset())


def test_a_slow_node_that_was_first_seen_as_its_slow_worker_is_the_same_fault():
    worker, beside, node = (frozenset({name}) for name in ("worker r/a/0", "worker r/a/1", "node a"))
    assert same_fault("slow worker", worker, "slow node", node)
    assert same_fault("slow node", node, "slow worker", worker)
    assert not same_fault("slow worker", worker, "slow node", frozenset({"node b"}))
    assert not same_fault("slow worker", worker, "slow worker", beside)
    assert not same_fault("python hang", worker, "slow node", node)


# --- costs -----------------------------------------------------------------------------------------------------------


def slow(now=0.3, without=0.5, hope=0.5) -> Slowdown:
    return Slowdown(workers=4, now=now, healthy=1.0, without=without, downtime_s=5.0, eviction_s=5.0, horizon_s=3600.0, restart_success_share=hope)


def test_costs_are_gpu_seconds_of_work_not_done():
    costs = {choice.action: choice.cost for choice in weigh(slow(), frozenset())}
    assert costs["nothing"] == pytest.approx(4 * 3600 * 0.7)
    assert costs["evict_node"] == pytest.approx(4 * 5 + 4 * 3600 * 0.5)
    assert costs["restart_worker"] == pytest.approx(4 * 5 + 0.5 * costs["evict_node"])


def test_the_cheapest_comes_first_and_what_did_not_help_is_left_out():
    assert weigh(slow(), frozenset())[0].action == "restart_worker"
    assert weigh(slow(), frozenset({"restart_worker"}))[0].action == "evict_node"
    assert weigh(slow(now=0.6), frozenset({"restart_worker"}))[0].action == "nothing"
    assert weigh(slow(now=0.999), frozenset())[0].action == "nothing"


def test_a_node_that_cannot_be_left_out_is_no_alternative():
    actions = [choice.action for choice in weigh(slow(without=math.nan), frozenset())]
    assert "evict_node" not in actions


def test_without_a_measured_throughput_nothing_is_weighed():
    assert weigh(slow(now=math.nan), frozenset()) == []


def test_a_storage_error_that_only_kept_a_checkpoint_from_being_saved_asks_for_nothing_but_room():
    unsaved = escalation_of("storage error", Severity.SEV3)
    assert unsaved.only_informs
    assert "make room" in unsaved.remedy
    assert not escalation_of("storage error", Severity.SEV2).only_informs, "a worker that died of it is started again"
    assert INFORM.only_informs
    assert not any(escalation.only_informs for escalation in (BROKEN, DEATH, NETWORK))
