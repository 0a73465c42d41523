"""Jobs of several tenants and users over real gRPC: who opens a session of a job, and whose report of it the leader believes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import msgspec
import pytest

from eagle_eye.access.certificates import CertificateKind
from eagle_eye.clock import SystemClock
from eagle_eye.errors import AccessDenied
from eagle_eye.ledger import Ledger
from eagle_eye.rpc import control_pb2_grpc as stubs
from eagle_eye.rpc import protobuf_codec as wire
from eagle_eye.rpc.control_client import ControlClient, call
from eagle_eye.rpc.control_messages import Decision, Hello, Peer
from eagle_eye.rpc.control_server import ControlServer
from eagle_eye.types import Layout, Notice
from fakes.control_channel import RecordingHandler, at, joined, run, served, until
from fakes.other_user import as_other_user, needs_root
from fakes.sample_values import a_layout
from fakes.tls_credentials import CredentialIssuer, credential_issuer
from remediation.engine.leader import Leader
from unit.remediation.engine.test_leader import Engine

JOB = "team-a/gpt/run1"
NODE = CertificateKind.NODE


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> CredentialIssuer:
    return credential_issuer(tmp_path_factory.mktemp("ours"))


class Deployment:
    """A leader on a ledger behind a control server."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger.open(path)
        self.notices: list[Notice] = []
        self.leader = Leader(
            term=1, lease_s=1.0, ledger=self.ledger, operator=Engine(), write=lambda *_: None, clock=SystemClock(), incarnation="b",
            notify=self.notices.append,
        )  # fmt: skip

    @asynccontextmanager
    async def serving(self, **settings: object) -> AsyncIterator[ControlServer]:
        async with served(self.leader, **settings) as server:  # type: ignore[arg-type]
            yield server
        self.ledger.close()


def launcher(node: str, job: str = JOB) -> Peer:
    return Peer(role="launcher", node=node, job=job, incarnation=f"{node}-1", address=f"{node}:7000")


def report(epoch: int, node: str) -> dict[str, object]:
    layout: Layout = msgspec.structs.replace(a_layout(epoch, node), job=JOB, launchers={node: f"{node}:7000"}, placements=())
    return {"layout": msgspec.to_builtins(layout)}


async def reason_of_refusal(address: str, peer: Peer, **settings: object) -> str:
    states: list = []
    client = ControlClient(address, peer, on_state=states.append, **settings)  # type: ignore[arg-type]
    await client.start()
    await until(lambda: len(states) > 0)
    await client.stop()
    assert not states[0].connected
    return str(states[0].reason)


def test_a_tenant_s_job_is_safe_from_other_tenants_and_nodes_and_open_to_its_own(ours: CredentialIssuer, ledger_path: Path) -> None:
    async def test() -> None:
        deployment = Deployment(ledger_path)
        head = ours.credentials("head", CertificateKind.SERVER)
        own, spare = (ours.credentials(node, NODE, tenants=("team-a",)) for node in ("node-a", "spare"))
        foreign, unlimited = ours.credentials("node-b", NODE, tenants=("team-b",)), ours.credentials("node-x", NODE)
        async with deployment.serving(credentials=head) as server:
            async with joined(at(server), peer=launcher("node-a"), credentials=own) as client:
                await client.request("layout", report(1, "node-a"))
                assert "may not speak for team-a/gpt/run1: issue it with --tenant team-a" in await reason_of_refusal(at(server), launcher("node-b"), credentials=foreign)
                async with joined(at(server), peer=launcher("node-x"), credentials=unlimited) as other:
                    with pytest.raises(AccessDenied, match="no layout of it has named node-x"):
                        await other.request("layout", report(2, "node-x"))
                async with joined(at(server), peer=Peer(role="agent", node="node-b", incarnation="1"), credentials=foreign) as agent:
                    with pytest.raises(AccessDenied, match="only the job's own launchers"):
                        await agent.request("layout", report(2**31, "node-b"))
                assert deployment.ledger.jobs()[JOB].layout.coordinator == "node-a"
                assert sorted(notice.name for notice in deployment.notices) == ["claim.refused", "claim.refused", "session.refused"]
            async with joined(at(server), peer=launcher("spare"), credentials=spare) as successor:
                await successor.request("layout", report(2, "spare"))
            assert deployment.ledger.jobs()[JOB].layout.coordinator == "spare"

    run(test())


OTHER = """
import asyncio
from eagle_eye.rpc.control_client import ControlClient, call
from eagle_eye.rpc.control_messages import Decision, Peer
"""
SESSION = """
async def main():
    states = []
    client = ControlClient(sys.argv[1], Peer(role=sys.argv[2], node="node-a", job=sys.argv[3], incarnation="evil"), on_state=states.append)
    await client.start()
    async with asyncio.timeout(20):
        while not states:
            await asyncio.sleep(0.01)
    print(states[0].connected, states[0].reason)
asyncio.run(main())
"""
DECISION = """
try:
    print(call(sys.argv[1], "approve", Decision(plan="p1", person="ada", digest="d")))
except Exception as error:
    print(type(error).__name__, error)
"""


@needs_root
def test_another_local_user_gets_no_session_of_the_job_and_takes_nobody_s_place(ledger_path: Path) -> None:
    async def test() -> None:
        deployment = Deployment(ledger_path)
        async with deployment.serving() as server:
            agent = Peer(role="agent", node="node-a", incarnation="1")
            async with joined(at(server), peer=launcher("node-a")) as client, joined(at(server), peer=agent) as held:
                await client.request("layout", report(1, "node-a"))
                for role, job, words in (("launcher", JOB, "the user root holds its session"), ("agent", "", "agents run as the user root")):
                    told = await asyncio.to_thread(as_other_user, OTHER, SESSION, at(server), role, job)
                    assert words in told.stdout, told.stderr
                assert client.connected
                assert held.connected
            told = await asyncio.to_thread(as_other_user, OTHER, SESSION, at(server), "launcher", JOB)
            assert "belongs to the user root, not to the user nobody" in told.stdout, told.stderr
            told = await asyncio.to_thread(as_other_user, OTHER, SESSION, at(server), "launcher", "nobody/gpt/1")
            assert told.stdout.startswith("True"), "twin: a job of its own"

    run(test())


@needs_root
def test_another_local_user_decides_nothing_and_who_runs_the_server_does(ledger_path: Path) -> None:
    async def test() -> None:
        async with Deployment(ledger_path).serving() as server:
            told = await asyncio.to_thread(as_other_user, OTHER, DECISION, at(server))
            assert "NotAuthenticated" in told.stdout or "AccessDenied" in told.stdout, told.stderr
            assert "approve was asked by the user nobody; without tokens this server obeys the user root" in told.stdout
            assert await asyncio.to_thread(call, at(server), "approve", Decision(plan="p1", person="ada", digest="d")) == {}

    run(test())


def test_who_comes_through_a_proxy_gets_no_session_without_a_certificate() -> None:
    """What a proxy sends beside: gRPC calls it metadata."""

    async def test() -> None:
        async with served(RecordingHandler()) as server, grpc.aio.insecure_channel(at(server)) as channel:
            session = stubs.ControlStub(channel).Session(metadata=(("x-forwarded-for", "10.0.0.9"),))
            await session.write(wire.encode_hello(Hello(peer=launcher("node-a"))))
            with pytest.raises(grpc.aio.AioRpcError, match="through a proxy"):
                await session.read()

    run(test())
