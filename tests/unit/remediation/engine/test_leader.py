"""The leader's side: whom it grants an epoch, whom it calls lost, whom it names as coordinator."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest

from eagle_eye import wire
from eagle_eye.access import Caller
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.clock import FakeClock
from eagle_eye.errors import AccessDenied, ControlError, TemporaryError
from eagle_eye.ledger import Ledger
from eagle_eye.rpc.control_messages import Body, Decision, OperatorCommand, Peer, PendingPlansQuery
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.types import Demand, Event, Layout, RankPlacement
from fakes.sample_values import JOB, a_layout
from remediation.engine.leader import LONGEST_RETURN, MISSED_LEASES, Leader

LEASE_S = 2.0
OLD_S = 2 * LEASE_S
OTHER = "tenant/other/run9"


class Engine:
    """An operator that remembers what was declared."""

    def __init__(self) -> None:
        self.declared: list[tuple[str, str, int, int]] = []
        self.demands: list[Demand | None] = []

    def declare_job(self, job: str, *, heal: str, budget_left: int, nodes_min: int = 1, demand: Demand | None = None) -> None:
        self.declared.append((job, heal, budget_left, nodes_min))
        self.demands.append(demand)

    def decide(self, decision: Decision, approved: bool) -> Body:
        return {}

    def release(self, node: str, person: str) -> Body:
        return {}

    def status(self) -> Body:
        return {"mode": "auto"}

    def order(self, order: OperatorCommand) -> Body:
        return {}

    def pending_plans(self, question: PendingPlansQuery) -> Body:
        return {}


@dataclass
class LeaderHarness:
    """A leader over a ledger, and all that it wrote."""

    ledger: Ledger
    clock: FakeClock = field(default_factory=FakeClock)
    written: list[tuple[str, Event]] = field(default_factory=list)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        self.leader = self.elect()

    def elect(self, term: int = 1) -> Leader:
        """A new leader, on what the ledger knows."""
        self.leader = Leader(
            term=term, lease_s=LEASE_S, ledger=self.ledger, operator=self.engine, write=self._write, clock=self.clock, incarnation="b"
        )
        return self.leader

    def _write(self, topic: str, key: str, value: bytes) -> None:
        assert topic == OBSERVATIONS
        event = wire.decode(value, {})
        assert isinstance(event, Event)
        assert event.job == key
        self.written.append((key, event))

    def ask(self, kind: str, body: Body, peer: Peer | None = None) -> Body:
        return asyncio.run(self.leader.request(peer or launcher("node-a"), kind, body))

    def grant(self, epoch: int, *missing: str, coordinator: str = "node-a") -> Body:
        layout = two_nodes(epoch, coordinator=coordinator)
        body = {"job": JOB, "epoch": epoch, "layout": msgspec.to_builtins(layout), "missing": list(missing)}
        return self.ask("grant", body, launcher(coordinator))

    def report(self, layout: Layout, **more: object) -> Body:
        return self.ask("layout", {"layout": msgspec.to_builtins(layout), **more}, launcher(layout.coordinator, layout.job))

    def events(self) -> list[tuple[str, str, str, str]]:
        """(name, role, node, job) of what was written."""
        return [(event.name, event.attributes["role"], event.entity.name, job) for job, event in self.written]


@pytest.fixture
def harness(ledger: Ledger) -> LeaderHarness:
    return LeaderHarness(ledger)


@pytest.fixture
def old(harness: LeaderHarness) -> LeaderHarness:
    """The leader is old enough to speak."""
    harness.clock.advance(OLD_S)
    return harness


def launcher(node: str, job: str = JOB) -> Peer:
    return Peer(role="launcher", node=node, job=job, incarnation=f"{node}-life", address=f"{node}:7000")


def agent(node: str) -> Peer:
    return Peer(role="agent", node=node, incarnation=f"{node}-agent")


def two_nodes(epoch: int, *, coordinator: str = "node-a", job: str = JOB) -> Layout:
    nodes = ("node-a", "node-b")
    places = tuple(RankPlacement(worker=f"run1/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(nodes))
    launchers = {node: f"{node}:7000" for node in nodes}
    return msgspec.structs.replace(a_layout(epoch, coordinator), job=job, launchers=launchers, placements=places)


def without_node_b(epoch: int, reason: str) -> Layout:
    whole = two_nodes(epoch)
    return msgspec.structs.replace(whole, reason=reason, launchers={"node-a": "node-a:7000"}, placements=whole.placements[:1])


# --- the voice ---------------------------------------------------------------------------------------------------------


def test_half_of_a_job_gets_no_voice_while_the_other_half_has_a_session(old: LeaderHarness) -> None:
    """The network between the two is cut, but not the one to the leader: both halves live."""
    old.leader.opened(launcher("node-b"))
    answer = old.grant(3, "node-b")
    assert not answer["granted"]
    assert answer["reason"] == "node-b still has a session to the leader"
    old.leader.lost(launcher("node-b"), "closed")
    assert old.grant(3, "node-b")["granted"]


def test_of_several_missing_one_that_lives_is_enough_to_refuse(old: LeaderHarness) -> None:
    old.leader.opened(launcher("node-c"))
    assert old.grant(3, "node-b", "node-c", "node-d")["reason"] == "node-c still has a session to the leader"


def test_a_session_of_the_nodes_agent_or_of_another_job_is_no_rival(old: LeaderHarness) -> None:
    old.leader.opened(agent("node-b"))
    old.leader.opened(launcher("node-b", OTHER))
    assert old.grant(3, "node-b")["granted"]


def test_a_young_leader_gives_its_voice_to_nobody(harness: LeaderHarness) -> None:
    """It has not heard yet who lives."""
    harness.clock.advance(OLD_S - 0.1)
    answer = harness.grant(3, "node-b")
    assert not answer["granted"]
    assert "just begun" in answer["reason"]
    harness.clock.advance(0.1)
    assert harness.grant(3, "node-b")["granted"], "the refusal before has used up nothing"


def test_an_epoch_is_granted_to_one_side_only_whoever_leads(old: LeaderHarness) -> None:
    assert old.grant(3, "node-b")["granted"]
    again = old.grant(3, "node-a", coordinator="node-b")
    assert again == {"granted": False, "reason": "epoch 3, or one that others may train under, was granted to them"}
    old.elect(term=2)
    old.clock.advance(OLD_S)
    assert not old.grant(3, "node-a", coordinator="node-b")["granted"]
    assert old.grant(3, "node-b")["granted"], "the same side may ask again: its answer was lost"
    assert old.grant(4, "node-a", coordinator="node-b")["granted"]


# --- sessions ----------------------------------------------------------------------------------------------------------


def test_a_young_leader_calls_nobody_new_or_lost(harness: LeaderHarness) -> None:
    harness.clock.advance(OLD_S - 0.1)
    harness.leader.opened(launcher("node-a"))
    harness.leader.lost(launcher("node-a"), "closed")
    assert harness.events() == []


def test_an_old_leader_tells_each_session_that_begins_or_ends(old: LeaderHarness) -> None:
    old.leader.opened(launcher("node-a"))
    old.leader.lost(launcher("node-a"), "silent for 2 s")
    assert old.events() == [("session.opened", "launcher", "node-a", JOB), ("session.lost", "launcher", "node-a", JOB)]
    opened, lost = (event for _, event in old.written)
    assert opened.number < lost.number
    assert lost.attributes["incarnation"] == "node-a-life"
    assert "silent for 2 s" in lost.message


def test_an_agent_is_told_in_every_job_on_its_node(old: LeaderHarness) -> None:
    old.leader.lost(agent("node-b"), "closed")
    old.report(two_nodes(1))
    old.report(two_nodes(1, job=OTHER))
    old.leader.lost(agent("node-b"), "closed")
    assert [job for *_, job in old.events()] == ["idle/node-b", JOB, OTHER]


def test_an_agent_that_is_seen_to_go_just_after_its_job_went_on_without_the_node_is_told_in_the_job(old: LeaderHarness) -> None:
    """Else one of the signs that the node is lost would never come."""
    old.report(two_nodes(1))
    old.report(without_node_b(2, "node lost"))
    old.clock.advance(LEASE_S)
    old.leader.lost(agent("node-b"), "closed")
    assert old.events() == [("session.lost", "agent", "node-b", JOB)]
    old.clock.advance(100 * LEASE_S)
    old.leader.opened(agent("node-b"))
    assert old.events()[1:] == [("session.opened", "agent", "node-b", JOB)], "whoever took it for lost learns that it is back"


@pytest.mark.parametrize(("reason", "leases"), [("resize", 1.0), ("node lost", MISSED_LEASES)])
def test_twin_an_agent_that_goes_long_after_or_whose_node_was_released_is_not_told_in_the_job(old: LeaderHarness, reason: str, leases: float) -> None:
    old.report(two_nodes(1))
    old.report(without_node_b(2, reason))
    old.clock.advance(leases * LEASE_S)
    old.leader.lost(agent("node-b"), "closed")
    assert old.events() == [("session.lost", "agent", "node-b", "idle/node-b")]


def test_twin_a_node_that_takes_part_again_is_told_as_any_other(old: LeaderHarness) -> None:
    old.report(two_nodes(1))
    old.report(without_node_b(2, "node lost"))
    old.report(two_nodes(3))
    old.report(without_node_b(4, "resize"))
    old.leader.lost(agent("node-b"), "closed")
    assert old.events() == [("session.lost", "agent", "node-b", "idle/node-b")]


# --- after a change of leaders -----------------------------------------------------------------------------------------


def test_who_does_not_come_back_to_a_new_leader_is_lost_once_it_is_old_enough(harness: LeaderHarness) -> None:
    harness.report(two_nodes(1))
    new = harness.elect(term=2)
    new.opened(launcher("node-a"))
    new.opened(agent("node-a"))
    new.opened(agent("node-b"))
    harness.clock.advance(OLD_S - 0.1)
    new.settle()
    assert harness.events() == []
    harness.clock.advance(0.1)
    new.settle()
    new.settle()
    assert harness.events() == [("session.lost", "launcher", "node-b", JOB)], "said once"


def test_who_goes_while_the_leader_is_young_is_lost_unless_it_comes_back(harness: LeaderHarness) -> None:
    harness.report(two_nodes(1))
    new = harness.elect(term=2)
    for node in ("node-a", "node-b"):
        new.opened(launcher(node))
        new.opened(agent(node))
        new.lost(agent(node), "closed")
    new.opened(agent("node-a"))
    assert harness.events() == []
    harness.clock.advance(OLD_S)
    new.settle()
    new.settle()
    assert harness.events() == [("session.lost", "agent", "node-b", JOB)], "said once"


def test_who_went_while_the_leader_was_young_is_told_in_the_job_that_went_on_without_it_meanwhile(harness: LeaderHarness) -> None:
    harness.report(two_nodes(1))
    new = harness.elect(term=2)
    new.lost(agent("node-b"), "closed")
    harness.report(without_node_b(2, "node lost"))
    harness.clock.advance(MISSED_LEASES * OLD_S)
    new.settle()
    assert ("session.lost", "agent", "node-b", JOB) in harness.events()


def test_as_long_as_others_come_back_nobody_is_late_but_not_for_ever(harness: LeaderHarness) -> None:
    harness.report(two_nodes(1))
    new = harness.elect(term=2)
    for number in range(int(LONGEST_RETURN) * 2 - 1):
        harness.clock.advance(OLD_S / 4)
        new.opened(agent(f"node-{number}"))
        new.settle()
        assert not [event for event in harness.events() if event[0] == "session.lost"]
    harness.clock.advance(OLD_S / 4)
    new.opened(agent("the-last"))
    new.settle()
    assert ("session.lost", "launcher", "node-b", JOB) in harness.events()


def test_only_jobs_of_the_leader_before_can_fail_to_come_back(harness: LeaderHarness) -> None:
    harness.report(two_nodes(1))  # its first layout comes to this very leader
    harness.clock.advance(OLD_S)
    harness.leader.settle()
    assert harness.events() == []


# --- who coordinates ---------------------------------------------------------------------------------------------------


def test_a_coordinator_is_named_while_it_has_a_session(harness: LeaderHarness) -> None:
    asked = {"job": JOB}
    assert harness.ask("coordinator_of", asked) == {}
    harness.report(two_nodes(4), heal="restart:3", budget_left=2, nodes_min=2)
    assert harness.engine.declared == [(JOB, "restart:3", 2, 2)]
    assert harness.ask("coordinator_of", asked) == {"epoch": 4}, "known, but not connected"
    with pytest.raises(TemporaryError, match="node-a has no session"):
        harness.leader.coordinator(JOB)
    harness.leader.opened(launcher("node-a"))
    assert harness.ask("coordinator_of", asked) == {"address": "node-a:7000", "node": "node-a", "epoch": 4}
    assert harness.leader.coordinator(JOB) == launcher("node-a")
    harness.leader.lost(launcher("node-a"), "closed")
    assert harness.ask("coordinator_of", asked) == {"epoch": 4}


def test_whoever_was_elected_since_the_last_epoch_is_the_one_that_is_commanded(harness: LeaderHarness) -> None:
    """Its coordinator is gone, and the next one may begin no epoch by itself: only a command could save the job."""
    for node in ("node-a", "node-b"):
        harness.leader.opened(launcher(node))
    harness.ask("layout", {"layout": a_layout(5), "heal": "none"})
    assert harness.leader.coordinator(JOB).node == "node-a"
    harness.leader.lost(launcher("node-a"), "it was killed")
    with pytest.raises(TemporaryError, match="on node-a has no session now"):
        harness.leader.coordinator(JOB)
    harness.ask("layout", {"layout": a_layout(5), "heal": "none"}, launcher("node-b"))
    assert harness.leader.coordinator(JOB).node == "node-b"
    assert harness.ask("coordinator_of", {"job": JOB}, launcher("node-a"))["node"] == "node-b"
    harness.elect(2).opened(launcher("node-b"))
    assert harness.leader.coordinator(JOB).node == "node-b", "the next leader knows it, too"


def test_a_cordon_binds_every_job_but_the_one_that_it_was_made_for(harness: LeaderHarness) -> None:
    tenant, name, _ = JOB.split("/")

    def cordon_of(node: str, job: str) -> Body:
        return harness.ask("cordon_of", {"node": node, "job": job}, launcher(node, job))

    harness.ledger.cordon("node-a", JOB, "plan1", 100.0, "ecc error on GPU 5")
    told = {"reason": "ecc error on GPU 5", "since": 100.0}
    assert cordon_of("node-a", f"{tenant}/{name}/next") == {"job": JOB, **told}
    assert cordon_of("node-a", "other/gpt/1") == {"job": "a job of another tenant", **told}
    assert cordon_of("node-a", JOB) == {}, "its launcher waits for the release"
    assert cordon_of("node-b", "other/gpt/1") == {}
    harness.ledger.release("node-a", "ada", 200.0)
    assert cordon_of("node-a", f"{tenant}/{name}/next") == {}


def test_nobody_asks_for_the_cordon_of_another_node_or_job(harness: LeaderHarness) -> None:
    harness.ledger.cordon("node-a", JOB, "plan1", 100.0, "ecc error on GPU 5")
    for asked in ({"node": "node-a", "job": f"{JOB}2"}, {"node": "node-a", "job": "spy/gpt/1"}, {"node": "spy", "job": JOB}):
        with pytest.raises(AccessDenied, match="may not ask what keeps"):
            harness.ask("cordon_of", asked, launcher("spy", "spy/gpt/1"))


def test_a_job_of_a_tenant_that_may_not_run_on_a_node_keeps_nobody_out_of_it(harness: LeaderHarness) -> None:
    """Whoever coordinates a job may name any node in its layout, and accuse it."""
    harness.ledger.cordon("node-a", "team-x/gpt/1", "plan1", 100.0, "ecc error on GPU 5")
    asked = {"node": "node-a", "job": "team-b/gpt/1"}

    def cordoned(*tenants: str) -> bool:
        caller = Caller(certificate=Identity(kind=CertificateKind.NODE, name="node-a", tenants=tenants))
        return bool(harness.ask("cordon_of", asked, msgspec.structs.replace(launcher("node-a", "team-b/gpt/1"), caller=caller)))

    assert not cordoned("team-b")
    assert cordoned("team-b", "team-x"), "it may have run there"
    assert cordoned()


def test_an_elastic_job_says_what_it_asks_for_and_another_does_not(harness: LeaderHarness) -> None:
    asked = {"declared": {"node-a": 3}, "workers_per_node": {"node-a": 2}, "weight": 2.5, "workers_min": 2}
    harness.report(two_nodes(4), heal="in-place", budget_left=100, **asked)
    harness.report(two_nodes(5), heal="restart:3", budget_left=3)
    demand = Demand(declared={"node-a": 3}, workers_per_node={"node-a": 2}, weight=2.5, workers_min=2)
    assert harness.engine.demands == [demand, None]
    with pytest.raises(ControlError, match="asks for workers in words"):
        harness.report(two_nodes(6), workers_per_node={"node-a": "many"})


def test_a_command_for_a_job_that_nobody_reported_can_wait(harness: LeaderHarness) -> None:
    with pytest.raises(TemporaryError, match="no coordinator"):
        harness.leader.coordinator(JOB)


def test_a_layout_older_than_the_known_one_changes_nothing(harness: LeaderHarness) -> None:
    harness.report(two_nodes(4, coordinator="node-b"))
    with pytest.raises(ControlError, match=r"is at epoch 4; the launcher on node-a .* reports the older 3"):
        harness.report(two_nodes(3))
    facts = harness.leader.facts(JOB)
    assert facts is not None
    assert (facts.layout.epoch, facts.layout.coordinator) == (4, "node-b")
    assert harness.ledger.jobs()[JOB] == facts
    assert len(harness.engine.declared) == 1


def test_an_unknown_request_is_refused_by_name(harness: LeaderHarness) -> None:
    with pytest.raises(ControlError, match="'dance'"):
        harness.ask("dance", {})


def test_the_status_names_term_and_sessions(harness: LeaderHarness) -> None:
    harness.leader.opened(agent("node-a"))
    assert asyncio.run(harness.leader.status()) == {"mode": "auto", "term": 1, "sessions": ["agent on node-a"]}
