"""Who allowed it: modes, guards, approvals, releases; and what a change of leaders or a slow action may do."""

import threading

import pytest

from eagle_eye.errors import ControlError, PermanentError, TemporaryError
from eagle_eye.rpc.control_messages import Decision, PendingPlansQuery
from eagle_eye.types import Entity, IncidentState, Kind, Mode, Severity
from remediation.engine.execution import in_thread
from remediation.guards import POLICY

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
NODE = Entity(kind=Kind.NODE, name="node-b")


def broken_part(world, name="i1"):
    died = world.job.die(WORKER.name)
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=died, name=name)


def waiting(world):
    return world.engine.status()["waiting"]


def decide(world, plan, *, approved=True, digest="", person="Ada"):
    """On the plan as it is shown, unless another digest is named."""
    seen = digest or world.engine.pending_plans(PendingPlansQuery(plan=plan))["plans"][0]["digest"]
    return world.engine.decide(Decision(plan=plan, person=person, digest=seen), approved)


# --- modes -----------------------------------------------------------------------------------------------------------


def test_observe_writes_the_plan_down_and_sends_nothing(make_world):
    world = make_world(Mode.OBSERVE)
    broken_part(world)
    world.run(20)
    assert world.sent == []
    plan = world.ledger.plans(incident="i1")[0]
    assert (plan.action, plan.targets[0].exclude) == ("evict_node", ("node-b",))
    assert world.ledger.outcome(plan.id) is None
    assert {kept.verdict.guard for kept in world.ledger.verdicts(plan=plan.id)} == set(POLICY)
    assert world.state() is IncidentState.CONTAINED, "the job runs again, with a broken part: that is not healed"


def test_nobody_is_isolated_before_the_incident_has_settled(make_world):
    world = make_world()
    broken_part(world)
    world.run(0.9)
    assert world.sent == []
    world.run(0.3)
    assert world.sent == ["restart"]


def test_new_causes_put_the_settling_off_but_not_for_ever(make_world):
    world = make_world(debounce_s=1.0, debounce_max_s=3.0)
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    since = world.clock.now() - 6
    for revision in range(1, 20):
        cause = "slow node" if revision % 2 else "slow worker"
        world.find(cause, NODE, revision=revision, since=since)
        if world.sent:
            break
        assert revision * 0.5 <= 4.0
        world.run(0.5)
    assert 6 <= revision <= 8


def test_recommend_waits_for_a_named_person(make_world):
    world = make_world(Mode.RECOMMEND)
    broken_part(world)
    world.run(20)
    assert world.sent == []
    [plan] = waiting(world)
    told = decide(world, plan)
    world.run(12)
    assert world.sent == ["restart"]
    assert ("evict_node", "done") in world.outcomes()
    assert world.ledger.approvals(digest=told["digest"])[0].person == "Ada"


def test_a_refusal_of_a_person_is_final(make_world):
    world = make_world(Mode.RECOMMEND)
    broken_part(world)
    world.run(10)
    decide(world, waiting(world)[0], approved=False)
    world.run(20)
    assert world.sent == []
    assert waiting(world) == []


@pytest.mark.parametrize("seconds", [2, 20], ids=["before the restart of the job is verified", "after it"])
def test_a_broken_part_whose_eviction_was_refused_is_not_told_as_healed(make_world, seconds):
    world = make_world(Mode.RECOMMEND)
    broken_part(world)
    world.run(seconds)
    decide(world, waiting(world)[0], approved=False)
    world.run(20)
    assert world.sent == []
    assert world.state() is IncidentState.CONTAINED
    assert ("restart_worker", "done") in world.outcomes(), "that the job went on is on record"


def test_an_approval_is_of_one_digest_and_asked_for_again_when_the_targets_change(make_world):
    world = make_world(Mode.RECOMMEND)
    broken_part(world)
    world.run(10)
    [first] = waiting(world)
    seen = world.ledger.plan(first)
    world.job._begin("node returned")  # another epoch: the plan that the person saw is not the one that would run
    world.run(3)
    [second] = waiting(world)
    assert second != first
    with pytest.raises(ControlError, match="has changed"):
        decide(world, second, digest=seen.digest)
    with pytest.raises(ControlError, match="waits for approval"):
        decide(world, first)
    assert world.ledger.outcome(first).state == "stale"
    decide(world, "i1")
    world.run(5)
    assert world.sent == ["restart"]


def test_the_beginning_of_an_id_names_a_plan_that_waits(make_world):
    world = make_world(Mode.RECOMMEND)
    broken_part(world)
    world.run(10)
    [plan] = waiting(world)
    assert [shown["plan"]["id"] for shown in world.engine.pending_plans(PendingPlansQuery(plan=plan[:6]))["plans"]] == [plan]
    with pytest.raises(ControlError, match="waits for approval"):
        world.engine.pending_plans(PendingPlansQuery(plan=f"{plan[:6]}x"))
    decide(world, plan[:6])
    world.run(5)
    assert world.sent == ["restart"]


def test_a_decision_names_what_was_seen_and_its_note_is_kept(make_world):
    world = make_world(Mode.RECOMMEND)
    broken_part(world)
    world.run(10)
    [plan] = waiting(world)
    with pytest.raises(ControlError, match="names the digest of the plan that was seen"):
        world.engine.decide(Decision(plan=plan, person="Ada"), True)
    [shown] = world.engine.pending_plans(PendingPlansQuery())["plans"]
    assert (shown["plan"]["id"], shown["cause"], shown["incident"]) == (plan, "ecc error", "i1")
    with pytest.raises(ControlError, match="waits for approval"):
        world.engine.decide(Decision(plan=plan, person="Eve", digest=shown["digest"], tenant="another"), True)
    assert world.engine.pending_plans(PendingPlansQuery(tenant="another")) == {"plans": []}
    world.engine.decide(Decision(plan=plan, person="Ada", digest=shown["digest"], note="talked to the team", tenant=shown["job"].split("/")[0]), True)
    assert [(note.person, note.text) for note in world.ledger.notes("i1")] == [("Ada", "talked to the team")]


def test_an_approval_runs_out(make_world):
    world = make_world(Mode.RECOMMEND)
    broken_part(world)
    world.run(10)
    [plan] = waiting(world)
    world.commander.answers["restart"] = TemporaryError("not now", delay=1.0)
    digest = world.ledger.plan(plan).digest
    world.engine.decide(Decision(plan=plan, person="Ada", digest=digest, valid_s=0.05), True)
    world.run(5)
    assert world.sent == []
    assert len(waiting(world)) == 1


def test_the_blast_radius_stops_the_third_node(make_world):
    world = make_world(nodes=("node-a", "node-b", "node-c", "node-d"))
    for number, node in enumerate(("node-b", "node-c", "node-d")):
        worker = Entity(kind=Kind.WORKER, name=f"run1/{node}/1")
        world.job.budget_left = 3
        died = world.job.die(worker.name)
        world.find("ecc error", worker, severity=Severity.SEV1, event=died, name=f"i{number}")
        world.run(12)
    assert [sent.arguments["exclude"] for sent in world.commander.sent] == [["node-b"], ["node-c"]]
    refused = [kept.verdict for kept in world.ledger.verdicts(incident="i2") if kept.verdict.guard == "blast_radius"]
    assert "allowed: 2" in refused[-1].reason


@pytest.mark.parametrize(("heal", "sent"), [("none", []), ("restart:0", ["reattempt"])])
def test_a_job_that_allows_nothing_is_not_even_continued(make_world, heal, sent):
    world = make_world(Mode.OBSERVE)
    world.engine.declare_job(world.job.name, heal=heal, budget_left=0)
    world.job.stalled = True
    world.find("worker stopped", WORKER)
    world.run(2)
    assert world.sent == sent


# --- what can go wrong -----------------------------------------------------------------------------------------------


def test_a_coordinator_that_is_not_there_yet_is_asked_again(make_world):
    world = make_world()
    restart = world.commander.answers["restart"]
    world.commander.answers["restart"] = TemporaryError("no session", delay=0.5)
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(3)
    world.commander.answers["restart"] = restart
    world.run(10)
    assert world.outcomes() == [("dump", "done"), ("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


def test_a_plan_is_tried_until_it_expires_and_then_the_next_one_follows(make_world):
    world = make_world(expires_s=5.0)
    world.commander.answers["reattempt"] = TemporaryError("no session", delay=0.5)
    world.job.stalled = True
    world.find("worker stopped", WORKER)
    world.run(20)
    assert world.outcomes() == [("reattempt", "failed"), ("restart_worker", "done")]


def test_a_refused_restart_of_its_own_becomes_a_matter_of_mode(make_world):
    world = make_world(Mode.RECOMMEND)
    world.commander.answers["restart"] = PermanentError("the job's own budget is spent")
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(5)
    [plan] = waiting(world)
    kept = world.ledger.plan(plan)
    assert (kept.action, kept.own) == ("restart_worker", False)


def test_a_refusal_beyond_that_ends_with_a_person(make_world):
    world = make_world()
    world.commander.answers["restart"] = PermanentError("too few nodes would be left")
    broken_part(world)
    world.run(10)
    assert ("evict_node", "failed") in world.outcomes()
    assert world.ledger.cordoned() == ()


def test_an_action_never_blocks_the_engine_and_one_runs_per_job_at_a_time(make_world):
    world = make_world()
    world.engine._execution._start = in_thread
    free, entered = threading.Event(), threading.Event()

    def slowly(sent):
        entered.set()
        assert free.wait(10)
        return {}

    world.commander._lock = threading.RLock()
    world.commander.answers["dump"] = slowly
    world.job.stalled = True
    world.find("python hang", WORKER)
    assert entered.wait(10)
    world.find("worker stopped", Entity(kind=Kind.WORKER, name="run1/node-a/0"), name="i2")
    world.run(3)
    assert world.engine._execution.busy(world.job.name)
    assert [plan.action for plan in world.ledger.plans(incident="i2")] == []
    free.set()
    for _ in range(200):
        world.run(0.1)
        threading.Event().wait(0.005)
        if world.state() is IncidentState.HEALED:
            break
    assert world.state() is IncidentState.HEALED


# --- a change of leaders ---------------------------------------------------------------------------------------------


def test_a_leader_without_a_lease_does_nothing_more_and_the_next_one_goes_on(make_world):
    world = make_world()
    restart = world.commander.answers["restart"]

    def lose_lease(sent):
        world.leads = False
        raise TemporaryError("no answer", delay=0.5)

    world.commander.answers["restart"] = lose_lease
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(5)
    assert world.sent == ["dump"]
    plan = world.outcome("restart_worker").plan
    world.commander.answers["restart"] = restart
    world.leads = True
    world.engine = world.new_engine()
    world.engine.resume()
    world.run(12)
    assert world.sent == ["dump", "restart"]
    assert world.commander.sent[-1].plan == plan
    assert world.outcomes() == [("dump", "done"), ("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


def test_a_new_leader_does_not_gather_the_same_evidence_again(make_world):
    world = make_world(Mode.RECOMMEND)
    world.commander.answers["restart"] = TemporaryError("no session", delay=0.5)
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(1)
    world.engine = world.new_engine()
    world.engine.resume()
    world.commander.answers["restart"] = PermanentError("the budget is spent")
    world.run(5)
    assert world.sent == ["dump"]
    assert len(waiting(world)) == 1


def test_a_command_whose_answer_was_lost_is_not_done_twice(make_world):
    world = make_world()
    restart = world.commander.answers["restart"]

    def done_but_unanswered(sent):
        restart(sent)
        world.leads = False
        raise TimeoutError("the answer was lost")

    world.commander.answers["restart"] = done_but_unanswered
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(0.3)
    assert not world.leads
    world.leads = True
    world.engine = world.new_engine()
    world.engine.resume()
    world.run(12)
    assert world.job.epoch == 2
    assert ("restart_worker", "done") in world.outcomes()
    assert world.state() is IncidentState.HEALED


def test_the_next_leader_remembers_what_was_tried(make_world):
    world = make_world()
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(12)
    world.engine = world.new_engine()
    world.engine.resume()
    world.run(1)
    world.job.stalled = True
    world.find("python hang", WORKER, name="i2")
    world.run(12)
    world.engine = world.new_engine()
    world.engine.resume()
    world.run(1)
    world.job.stalled = True
    world.find("python hang", WORKER, name="i3")
    world.run(12)
    restarts = [sent.arguments for sent in world.commander.sent if sent.action == "restart"]
    assert [sent["exclude"] for sent in restarts] == [[], [], ["node-b"]]
    assert [sent.get("swap", []) for sent in restarts] == [[], ["node-a", "node-b"], []]


def test_what_is_over_stays_over_though_diagnosis_tells_of_it_again(make_world):
    world = make_world()
    world.job.stalled = True
    found = world.find("python hang", WORKER)
    world.run(12)
    assert world.state() is IncidentState.HEALED
    world.engine = world.new_engine()
    world.engine.resume()
    world.engine.receive_incidents([found])
    world.run(5)
    assert world.sent == ["dump", "restart"]
    assert world.state() is IncidentState.HEALED


def test_a_new_leader_knows_how_many_nodes_a_job_needs(make_world):
    world = make_world()
    world.ledger.save_job(world.job.name, world.job.layout, "127.0.0.1:7001", "restart:3", 3, nodes_min=2)
    world.engine = world.new_engine()
    world.engine.resume()
    broken_part(world)
    world.run(10)
    assert world.sent == []
    assert world.state() is IncidentState.HEALED  # by the job itself, on both of its nodes


# --- releases --------------------------------------------------------------------------------------------------------


def test_a_person_releases_a_node(make_world):
    world = make_world()
    broken_part(world)
    world.run(12)
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]
    assert world.engine.release("node-b", "Ada") == {"node": "node-b", "jobs": [world.job.name]}
    world.run(3)
    assert world.sent[-1] == "release"
    assert world.job.excluded == ()
    assert world.ledger.cordoned() == ()


def test_a_node_that_nobody_leaves_out_cannot_be_released(make_world):
    with pytest.raises(ControlError, match="node 'node-x' is not cordoned"):
        make_world().engine.release("node-x", "Ada")
