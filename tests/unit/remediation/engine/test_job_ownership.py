"""Whose a job is: what the leader believes of whom, and how it tells of what it refuses."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import pytest

from eagle_eye import wire
from eagle_eye.access import Caller
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.clock import FakeClock
from eagle_eye.errors import AccessDenied
from eagle_eye.ledger import JobOwner, Ledger
from eagle_eye.rpc.control_messages import Body, Peer
from eagle_eye.types import EPOCH_JUMP, Event, Layout, Notice, RankPlacement
from fakes.sample_values import JOB, a_layout
from remediation.engine.job_ownership import TOLD_AGAIN_S
from remediation.engine.leader import Leader
from unit.remediation.engine.test_leader import LEASE_S, Engine

TENANT = JOB.partition("/")[0]


@dataclass
class World:
    """A leader over a ledger, what it wrote and what it notified of."""

    ledger: Ledger
    clock: FakeClock = field(default_factory=FakeClock)
    events: list[Event] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.elect()

    def elect(self) -> None:
        """A new leader, on what the ledger knows; old enough to grant."""
        self.leader = Leader(
            term=1, lease_s=LEASE_S, ledger=self.ledger, operator=Engine(), write=self._write, clock=self.clock, incarnation="b",
            notify=self.notices.append,
        )  # fmt: skip
        self.clock.advance(2 * LEASE_S)

    def _write(self, _topic: str, _key: str, value: bytes) -> None:
        event = wire.decode(value, {})
        assert isinstance(event, Event)
        self.events.append(event)

    def ask(self, peer: Peer, kind: str, body: Mapping[str, object]) -> Body:
        return asyncio.run(self.leader.request(peer, kind, dict(body)))

    def report(self, peer: Peer, epoch: int = 1, *nodes: str, job: str = JOB) -> Body:
        return self.ask(peer, "layout", {"layout": msgspec.to_builtins(layout_of(epoch, *(nodes or (peer.node,)), job=job))})

    def refused(self, peer: Peer, epoch: int = 2, *, job: str = JOB) -> str:
        before = self.ledger.jobs(), self.ledger.job_owners()
        with pytest.raises(AccessDenied) as error:
            self.report(peer, epoch, job=job)
        assert (self.ledger.jobs(), self.ledger.job_owners()) == before, "nothing was kept"
        return str(error.value)


@pytest.fixture
def world(ledger: Ledger) -> World:
    return World(ledger)


def layout_of(epoch: int, *nodes: str, job: str = JOB) -> Layout:
    places = tuple(RankPlacement(worker=f"run1/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(nodes))
    return msgspec.structs.replace(a_layout(epoch, nodes[0]), job=job, launchers={node: f"{node}:7000" for node in nodes}, placements=places)


def certified(node: str, *tenants: str, job: str = JOB, role: str = "launcher") -> Peer:
    """A process under mutual TLS."""
    caller = Caller(certificate=Identity(kind=CertificateKind.NODE, name=node, tenants=tenants))
    return Peer(role=role, node=node, job=job, incarnation=f"{node}-life", address=f"{node}:7000", caller=caller)


def local(user: int | None, node: str = "node-a", *, job: str = JOB) -> Peer:
    """A process of this machine without TLS."""
    return Peer(role="launcher", node=node, job=job, incarnation="one", address="127.0.0.1:7000", caller=Caller(local=True, user=user))


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_another_node_does_not_take_a_job_over(world: World) -> None:
    world.report(certified("node-a"), 1, "node-a", "node-b")
    assert "belongs to node-a, node-b, and no layout of it has named node-x" in world.refused(certified("node-x"))
    assert world.leader.facts(JOB).layout.coordinator == "node-a"


def test_twin_each_node_of_a_layout_may_coordinate_the_next_epoch(world: World) -> None:
    world.report(certified("node-a"), 1, "node-a", "node-b")
    world.report(certified("node-b"), 2, "node-b")
    assert world.leader.facts(JOB).layout == layout_of(2, "node-b")
    world.report(certified("node-a"), 3, "node-a", "node-b")
    assert world.leader.facts(JOB).layout == layout_of(3, "node-a", "node-b")


def test_twin_a_spare_node_that_has_joined_may_coordinate_also_after_the_server_failed_over(world: World) -> None:
    world.report(certified("node-a"), 1, "node-a")
    world.report(certified("node-a"), 2, "node-a", "spare")
    world.elect()
    world.report(certified("spare"), 3, "spare")
    assert world.leader.facts(JOB).layout == layout_of(3, "spare")


def test_twin_a_node_that_is_to_join_has_a_session_and_finds_the_coordinator(world: World) -> None:
    world.report(certified("node-a"), 1)
    world.leader.opened(certified("node-a"))
    assert world.leader.objection(certified("spare")) == ""
    assert world.ask(certified("spare"), "coordinator_of", {"job": JOB})["node"] == "node-a"


def test_twin_a_job_that_an_older_version_wrote_belongs_to_the_nodes_of_its_layout(ledger: Ledger) -> None:
    ledger.save_job(JOB, layout_of(4, "node-a", "node-b"), "node-a:7000", "none", 0)
    world = World(ledger)
    assert "no layout of it has named node-x" in world.refused(certified("node-x"), 5)
    world.report(certified("node-b"), 5, "node-b")
    assert ledger.job_owners()[JOB] == JobOwner(nodes=("node-a", "node-b"))


def test_an_agent_reports_no_epochs_not_even_on_a_node_of_the_job(world: World) -> None:
    world.report(certified("node-a"), 1)
    assert "only the job's own launchers" in world.refused(certified("node-a", job="", role="agent"))
    assert "only the job's own launchers" in world.refused(certified("node-a", job="tenant/other/run9"))


def test_no_epoch_is_granted_to_another_node(world: World) -> None:
    world.report(certified("node-a"), 1, "node-a", "node-b")
    body = {"epoch": 2, "layout": msgspec.to_builtins(layout_of(2, "node-x")), "missing": ["node-a"], "last": 1}
    with pytest.raises(AccessDenied, match="no layout of it has named node-x"):
        world.ask(certified("node-x"), "grant", body)
    assert world.ask(certified("node-b"), "grant", body)["granted"]


def test_the_coordinator_of_another_job_is_told_to_nobody(world: World) -> None:
    world.report(certified("node-a"), 1)
    world.leader.opened(certified("node-a"))
    with pytest.raises(AccessDenied, match="may not ask for the coordinator of"):
        world.ask(certified("node-a", job="tenant/other/run9"), "coordinator_of", {"job": JOB})


# --- tenants ---------------------------------------------------------------------------------------------------------


def test_another_tenant_s_node_may_do_nothing_not_even_before_the_job_is_declared(world: World) -> None:
    assert "may not speak for" in world.refused(certified("node-x", "other"), 1)
    world.report(certified("node-a", TENANT), 1)
    assert "may not speak for" in world.refused(certified("node-a", "other"))


def test_twin_every_node_of_the_tenant_may(world: World) -> None:
    world.report(certified("node-a", TENANT, "other"), 1)
    world.report(certified("node-z", TENANT), 2)
    assert world.ledger.job_owners()[JOB] == JobOwner(nodes=("node-a", "node-z"), tenant=TENANT)


def test_twin_certificates_may_be_issued_anew_with_a_tenant_one_after_the_other(world: World) -> None:
    world.report(certified("node-a"), 1, "node-a", "node-b")
    world.report(certified("node-b", TENANT), 2, "node-a", "node-b")
    world.report(certified("node-a"), 3, "node-a")
    assert world.leader.facts(JOB).layout == layout_of(3, "node-a")


# --- users of one machine ----------------------------------------------------------------------------------------------


def test_another_local_user_gets_neither_a_session_nor_the_job(world: World) -> None:
    world.report(local(4_000_000), 1)
    assert "belongs to the user 4000000, not to the user 4000001" in world.leader.objection(local(4_000_001))
    assert "belongs to the user 4000000" in world.refused(local(4_000_001))
    assert "a user who cannot be told" in world.refused(local(None))


def test_twin_the_same_user_root_and_jobs_of_nobody(world: World) -> None:
    world.report(local(4_000_000), 1)
    world.elect()
    for user, epoch in ((4_000_000, 2), (0, 3)):
        assert world.leader.objection(local(user)) == ""
        world.report(local(user), epoch, "node-a", "node-b")
    world.report(local(None, job="tenant/other/run9"), 1, job="tenant/other/run9")
    world.report(local(None, job="tenant/other/run9"), 2, job="tenant/other/run9")


def test_twin_a_machine_that_turns_certificates_on_keeps_its_jobs(world: World) -> None:
    world.report(local(4_000_000), 1, "node-a")
    world.report(certified("node-a"), 2, "node-a")
    assert world.leader.facts(JOB).layout == layout_of(2, "node-a")


def test_twin_where_the_configuration_trusts_everybody_everybody_may(world: World) -> None:
    stranger = msgspec.structs.replace(certified("node-x"), caller=Caller())
    world.report(certified("node-a"), 1)
    world.report(stranger, 2)
    assert world.leader.facts(JOB).layout == layout_of(2, "node-x")


# --- epochs ----------------------------------------------------------------------------------------------------------


def test_a_leap_of_the_epoch_is_not_believed_of_the_owner_either(world: World) -> None:
    assert "is not believed: 0 is the highest" in world.refused(certified("node-a"), 2**31)
    world.report(certified("node-a"), 7)
    assert "is not believed: 7 is the highest" in world.refused(certified("node-a"), 2**31)
    body = {"epoch": 2**31, "layout": msgspec.to_builtins(layout_of(8, "node-a")), "missing": ["node-b"]}
    with pytest.raises(AccessDenied, match="is not believed"):
        world.ask(certified("node-a"), "grant", body)


def test_twin_a_job_that_had_many_epochs_while_there_was_no_leader(world: World) -> None:
    world.report(certified("node-a"), 7)
    world.report(certified("node-a"), 7 + EPOCH_JUMP)
    assert world.leader.facts(JOB).layout == layout_of(7 + EPOCH_JUMP, "node-a")


# --- how it is told ----------------------------------------------------------------------------------------------------


def test_a_refusal_is_told_once_an_hour_with_its_number(world: World) -> None:
    world.report(certified("node-a"), 1)
    for _ in range(20):
        world.refused(certified("node-x"))
    [notice], [event] = world.notices, world.events
    assert (notice.name, event.name, event.job, event.entity.name) == ("claim.refused", "claim.refused", JOB, "node-x")
    assert event.attributes["caller"] == "the certificate of node node-x"
    assert world.leader.ownership.refused == 20
    world.clock.advance(TOLD_AGAIN_S)
    world.refused(certified("node-x"))
    assert world.notices[1].message.endswith("(20 times)")


def test_jobs_that_nobody_has_declared_are_no_way_to_flood(world: World) -> None:
    for number in range(50):
        world.refused(certified("node-x", "other"), 1, job=f"{TENANT}/made-up/{number}")
    assert (len(world.notices), world.events) == (1, [])


def test_who_is_refused_a_session_is_told_of_too(world: World) -> None:
    world.report(certified("node-a"), 1)
    for _ in range(3):
        world.leader.refused(certified("node-x", "other"), "its certificate may not speak for it")
    assert [notice.name for notice in world.notices] == ["session.refused"]
    assert [event.job for event in world.events] == [JOB]
