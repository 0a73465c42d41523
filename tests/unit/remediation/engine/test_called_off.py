"""Whatever is planned is called off when its reason is gone: while it waits, right before it runs, and between its commands."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from eagle_eye.errors import TemporaryError
from eagle_eye.types import Entity, IncidentState, Kind, Mode, Outcome, Severity
from fakes.synthetic_job import incident

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
NODE = Entity(kind=Kind.NODE, name="node-b")
OTHER = Entity(kind=Kind.NODE, name="node-a")


class Deferred:
    """Runs actions when the test says so: what lies between planning and acting."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, _name: str, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()


def deferring(world) -> Deferred:
    """A world whose actions wait for the test."""
    world.start = deferred = Deferred()
    world.engine = world.new_engine()
    world.engine.resume()
    world.run(8)
    return deferred


def slow_node(world, name="i1", **more):
    """A node that is worth evicting: no restart is tried first."""
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    found = world.find("slow node", NODE, since=world.clock.now() - 6, name=name, **more)
    world.run(4)
    return found


def only(world, action, name="i1") -> Outcome:
    return world.outcome(action, name)


# --- while it waits --------------------------------------------------------------------------------------------------


def came_back(world):
    """The second network error of a worker within a minute, after its restart: its node is to be evicted, once an operator agrees."""
    for name in ("i1", "i2"):
        world.find("network error", WORKER, event=world.job.die(WORKER.name), name=name)
        world.run(2)


def test_a_held_eviction_is_called_off_when_the_restart_before_it_has_healed_the_job(make_world):
    world = make_world(Mode.RECOMMEND)
    came_back(world)
    held = [plan for plan in world.ledger.plans(incident="i2") if plan.action == "evict_node"]
    assert world.engine.status()["waiting"] == [plan.id for plan in held]
    world.run(10)
    assert world.state("i2") is IncidentState.HEALED
    assert world.engine.status()["waiting"] == []
    outcome = only(world, "evict_node", "i2")
    assert outcome.state == "stale"
    assert outcome.detail.startswith("called off: its incident is healed by restart_worker: 100% of")
    world.run(30)
    assert world.sent == ["dump"]
    assert world.ledger.cordoned() == ()


def test_an_eviction_that_waits_for_its_next_attempt_is_called_off_when_the_job_is_healed(make_world):
    world = make_world()
    world.commander.answers["restart"] = TemporaryError("the coordinator has no session", delay=30.0)
    came_back(world)
    world.run(60)
    assert world.sent == ["dump"]
    assert world.state("i2") is IncidentState.HEALED
    assert only(world, "evict_node", "i2").state == "stale"


def test_a_broken_part_is_evicted_though_the_job_is_healthy_while_its_plan_waits(make_world):
    world = make_world(Mode.RECOMMEND)
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(20)
    assert len(world.engine.status()["waiting"]) == 1


def test_a_plan_that_waits_for_its_next_attempt_is_stale_when_its_incident_is_withdrawn(make_world):
    world = make_world()
    world.commander.answers["restart"] = TemporaryError("the coordinator has no session", delay=5.0)
    found = slow_node(world)
    world.find("slow node", NODE, revision=2, active=False, since=found.since)
    world.run(20)
    assert world.sent == []
    assert world.state() is IncidentState.CLOSED
    assert {state for _, state in world.outcomes()} == {"stale"}


@pytest.mark.parametrize("more", [0.0, 100.0], ids=["one more line of evidence", "twin: it came again"])
def test_a_plan_that_is_about_to_run_stays_called_off_once_its_incident_is_healed(make_world, more):
    world = make_world()
    deferred = deferring(world)
    came_back(world)
    deferred.run()  # the stacks
    world.run(0.3)
    found = world.ledger.incident("i2")[-1]
    assert world.outcome("evict_node", "i2").state == "intended"
    world.run(10)
    world.find("network error", WORKER, name="i2", revision=found.revision + 1, since=found.since + more)
    world.run(0.2)
    deferred.run()
    world.run(1)
    assert ("restart" in world.sent) is bool(more)


# --- right before it runs --------------------------------------------------------------------------------------------


def withdrawn(world, found):
    world.find("slow node", NODE, revision=2, active=False, since=found.since)


def turned_on_another_node(world, found):
    world.find("slow node", OTHER, revision=2, since=found.since)


def turned_into_something_else(world, found):
    world.find("loss not finite", NODE, revision=2, since=found.since)


def begun_anew(world, _found):
    world.job._begin("node returned")
    world.run(0.1)


def expired(world, _found):
    world.clock.advance(world.policy.expires_s)


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (withdrawn, "no finding of its incident is active any more"),
        (turned_on_another_node, "its incident is slow node on node node-a now"),
        (turned_into_something_else, "its incident is loss not finite on node node-b now"),
        (begun_anew, "tenant/gpt/run1 is at epoch 2, the plan is for epoch 1"),
        (expired, "it has expired"),
    ],
)
def test_nothing_is_sent_when_the_reason_is_gone_between_planning_and_acting(make_world, happens, why):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    deferred = deferring(world)
    found = slow_node(world)
    [plan] = world.ledger.plans(incident="i1")
    assert plan.action == "evict_node"
    happens(world, found)
    deferred.run()
    world.run(0.1)
    outcome = world.ledger.outcome(plan.id)
    assert (outcome.state, outcome.detail) == ("stale", f"called off: {why}")
    assert world.sent == []
    assert world.ledger.cordoned() == ()


def test_what_says_the_same_again_with_more_evidence_calls_nothing_off(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    deferred = deferring(world)
    found = slow_node(world)
    world.find("slow node", NODE, revision=2, since=found.since)
    deferred.run()
    world.run(0.1)
    assert world.sent == ["restart"]


def test_a_node_that_is_accused_no_more_is_not_evicted_beside_one_that_is(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False, nodes=tuple(f"node-{letter}" for letter in "abcdefghijklmnopqrst"))
    deferred = deferring(world)
    world.job.slow = lambda nodes: 20.0 if {"node-b", "node-c"} & nodes else 1.0
    world.run(15)
    found = incident(world.job, "slow node", NODE, since=world.clock.now() - 6)
    both = replace(found, culprits=(*found.culprits, replace(found.culprits[0], entity=Entity(kind=Kind.NODE, name="node-c"))))
    world.engine.receive_incidents([both])
    world.run(4)
    assert world.ledger.plans(incident="i1")[0].targets[0].exclude == ("node-b", "node-c")
    world.engine.receive_incidents([replace(found, revision=2)])
    deferred.run()
    world.run(0.1)
    assert world.sent == []
    assert "does not accuse node-c" in only(world, "evict_node").detail


def test_a_hang_that_ends_while_its_stacks_are_taken_is_followed_by_no_restart(make_world):
    world = make_world()
    deferred = deferring(world)
    world.job.stalled = True
    found = world.find("python hang", WORKER)
    world.find("python hang", WORKER, revision=2, active=False, since=found.since)
    world.job.stalled = False
    deferred.run()
    world.run(20)
    deferred.run()
    assert "restart" not in world.sent
    assert world.state() is IncidentState.CLOSED
    assert "intended" not in {state for _, state in world.outcomes()}


def test_what_began_in_the_life_of_a_job_is_recorded_when_the_job_has_ended(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    deferred = deferring(world)
    slow_node(world)
    world.job.tell("job.failed", reason="the script ended")
    world.run(0.2)
    deferred.run()
    world.run(1)
    assert world.sent == []
    assert world.outcomes() == [("evict_node", "stale")]


# --- between its commands --------------------------------------------------------------------------------------------


def test_the_cordon_of_a_node_that_is_out_by_then_is_not_called_off(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    restart = world.job._restart
    found = []

    def and_all_is_quiet(sent):
        answer = restart(sent)
        world.find("slow node", NODE, revision=2, active=False, since=found[0].since)
        return answer

    world.commander.answers["restart"] = and_all_is_quiet
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    found.append(world.find("slow node", NODE, since=world.clock.now() - 6))
    world.run(15)
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]
    assert world.outcomes() == [("evict_node", "done")]
    assert world.state() is IncidentState.HEALED


# --- the lease -------------------------------------------------------------------------------------------------------


def test_an_action_that_outlives_a_blip_of_its_lease_is_verified(make_world):
    world = make_world()
    restart = world.job._restart

    def and_the_lease_is_gone(sent):
        world.leads = False
        return restart(sent)

    world.commander.answers["restart"] = and_the_lease_is_gone
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(1)
    world.leads = True
    world.run(10)
    assert world.state() is IncidentState.HEALED
    assert world.outcomes() == [("dump", "done"), ("restart_worker", "done")]
    assert world.sent == ["dump", "restart"]


def test_an_eviction_that_outlives_a_blip_of_its_lease_cordons_the_node(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    restart = world.job._restart

    def and_the_lease_is_gone(sent):
        world.leads = False
        return restart(sent)

    world.commander.answers["restart"] = and_the_lease_is_gone
    slow_node(world)
    world.leads = True
    world.run(10)
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]
    assert world.sent == ["restart"]
    assert world.state() is IncidentState.HEALED


def test_evidence_that_outlives_a_blip_of_the_lease_is_followed_by_the_repair(make_world):
    world = make_world()
    dump = world.commander.answers["dump"]

    def and_the_lease_is_gone(sent):
        world.leads = False
        return dump(sent)

    world.commander.answers["dump"] = and_the_lease_is_gone
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.leads = True
    world.run(10)
    assert world.sent == ["dump", "restart"]
    assert world.state() is IncidentState.HEALED


def test_an_end_of_the_job_ends_its_incidents(make_world):
    world = make_world()
    world.job.stalled = True
    world.commander.answers["restart"] = lambda sent: {"epoch": 2}
    world.find("python hang", WORKER)
    world.run(1)
    world.job.tell("job.failed", reason="the script ended")
    world.run(60)
    assert world.sent == ["dump", "restart"]
    assert world.state() is IncidentState.FAILED


@pytest.mark.parametrize(("ended", "state"), [("job.finished", IncidentState.CLOSED), ("job.failed", IncidentState.FAILED)])
def test_the_end_of_a_job_ends_what_waits_for_an_operator(make_world, ended, state):
    """Nobody withdraws it any more: it stayed open for ever, and each new leader took it up again."""
    world = make_world(Mode.OBSERVE)
    slow_node(world)
    world.run(20)
    assert world.state() is IncidentState.OPEN
    world.job.tell(ended, reason="the script ended")
    world.run(1)
    assert world.state() is state
