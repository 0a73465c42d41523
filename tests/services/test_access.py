"""Mutual TLS and roles over real gRPC: who gets in, who does not, and the error that each of them gets."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from eagle_eye.access import Authorization, Role, Tokens
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.credentials import Credentials
from eagle_eye.access.tokens import VARIABLE, add_person, remove_person
from eagle_eye.app.server_client import ask
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.errors import AccessDenied, ControlError
from eagle_eye.rpc import control_pb2 as pb
from eagle_eye.rpc import control_pb2_grpc as stubs
from eagle_eye.rpc.control_client import ControlClient, call
from eagle_eye.rpc.control_messages import (
    Command,
    ConnectionState,
    Decision,
    NoteCommand,
    Peer,
    PendingPlansQuery,
    ReleaseNodeCommand,
    SilenceCommand,
)
from fakes.control_channel import JOB, LAUNCHER, Hands, Leader, RecordingHandler, at, joined, run, served, until
from fakes.tls_credentials import CredentialIssuer, credential_issuer

SERVER, NODE, CLIENT = CertificateKind.SERVER, CertificateKind.NODE, CertificateKind.CLIENT
AGENT = Peer(role="agent", node="node-a", incarnation="first")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> CredentialIssuer:
    return credential_issuer(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def head(ours: CredentialIssuer) -> Credentials:
    return ours.credentials("head", SERVER)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> CredentialIssuer:
    return credential_issuer(tmp_path_factory.mktemp("foreign"))


async def refused(address: str, credentials: Credentials | None, peer: Peer = AGENT) -> str:
    """The error of a client that does not get in."""
    states: list[ConnectionState] = []
    client = ControlClient(address, peer, on_state=states.append, credentials=credentials)
    await client.start()
    try:
        await until(lambda: states)
    finally:
        await client.stop()
    assert not any(state.connected for state in states)
    return states[0].reason


# --- sessions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", [AGENT, LAUNCHER], ids=["agent", "launcher"])
def test_a_node_opens_sessions_as_itself_and_obeys(ours, head, peer):
    async def test() -> None:
        hands = Hands()
        async with served(RecordingHandler(), credentials=head) as server, joined(at(server), hands, peer=peer, credentials=ours.credentials("node-a", NODE)) as client:
            assert (await client.request("hello", {}))["from"] == "node-a"
            await server.command(peer, Command(action="restart", job=JOB), 5.0)
            assert hands.done == ["restart"]

    run(test())


def test_nobody_opens_a_session_as_another(ours, head):
    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler, credentials=head) as server:
            assert "certificate of node node-b may not speak as the agent on node-a" in await refused(at(server), ours.credentials("node-b", NODE))
            assert "certificate of client ada may not speak" in await refused(at(server), ours.credentials("ada", CLIENT))
            assert handler.received == []

    run(test())


@dataclass(frozen=True)
class Strange:
    """What an authority of one's own may write into a certificate: any URIs."""

    uris: tuple[str, ...]
    name: str = "node-a"
    kind: CertificateKind = NODE
    tenants: tuple[str, ...] = ()


STRANGE = [
    (), ("eagle-eye://node/*",), ("eagle-eye://node/node-?",), ("eagle-eye://node/node-a.",), ("eagle-eye://node/NODE-A",), ("EAGLE-EYE://node/node-a",), ("eagle-eye://Node/node-a",),
    ("eagle-eye://node/node%2Da",), ("eagle-eye://node/node-a\0.evil",), ("eagle-eye://node/node-b", "eagle-eye://node/node-a"), ("eagle-eye://node/node-a", "eagle-eye://node/node-b"),
    ("eagle-eye://server/head", "eagle-eye://node/node-a"), ("eagle-eye://node/node-a", "Eagle-Eye://tenant/team-x"), ("eagle-eye://node/node-a", "eagle-eye://tenants/team-x"),
    ("eagle-eye://node/node-a", "eagle-eye:tenant/team-x"),
]  # fmt: skip


@pytest.mark.parametrize("uris", STRANGE)
def test_a_certificate_whose_owner_or_limit_cannot_be_told_opens_nothing(ours, head, uris):
    """Of several owners the first counted, and a limit to a tenant in other letters was none."""
    identity: Any = Strange(uris)
    made = ours.authority.issue(identity, (), now=ours.clock.now(), days=1.0, out=ours.folder / "strange")
    credentials = Credentials(authority=ours.authority.certificate, certificate=made.certificate, key=made.key, clock=SystemClock())

    async def test() -> None:
        handler = RecordingHandler()
        async with served(handler, credentials=head) as server:
            for peer in (AGENT, LAUNCHER):
                assert "certificate" in await refused(at(server), credentials, peer)
            assert handler.received == []

    run(test())


def test_twin_an_authority_of_ones_own_may_write_further_uris(ours, head):
    identity: Any = Strange(("spiffe://corp/node-a", "eagle-eye://node/node-a", "https://corp.example/node-a", "eagle-eye://tenant/tenant"))
    made = ours.authority.issue(identity, (), now=ours.clock.now(), days=1.0, out=ours.folder / "strange")
    credentials = Credentials(authority=ours.authority.certificate, certificate=made.certificate, key=made.key, clock=SystemClock())

    async def test() -> None:
        async with served(RecordingHandler(), credentials=head) as server, joined(at(server), peer=LAUNCHER, credentials=credentials) as client:
            assert client.connected

    run(test())


def test_who_has_a_wrong_certificate_is_told_what_is_wrong(ours, head, foreign):
    async def test() -> None:
        handler = RecordingHandler()
        expired = ours.credentials("node-a", NODE, made_days_ago=30, days=10)
        another = foreign.credentials("node-a", NODE)
        mixed = Credentials(authority=ours.authority.certificate, certificate=another.certificate, key=another.key, clock=SystemClock())
        async with served(handler, credentials=head) as server:
            assert "its clock says that it has expired" in await refused(at(server), expired)
            assert "was not signed by our authority" in await refused(at(server), another)
            assert "was not signed by" in await refused(at(server), mixed)
            assert "speaks TLS and we have no certificate" in await refused(at(server), None)
            assert handler.received == []

    run(test())


def test_an_expired_certificate_does_not_even_leave_its_machine(ours, head):
    async def test() -> None:
        access = ours.issue("node-a", NODE, made_days_ago=30, days=10)
        async with served(RecordingHandler(), credentials=head) as server:
            assert "expired on" in await refused(at(server), Credentials.of(access))

    run(test())


def test_a_server_whose_own_certificate_is_wrong_is_not_believed(ours, foreign):
    async def test() -> None:
        mine = ours.credentials("node-a", NODE)
        async with served(RecordingHandler(), credentials=ours.credentials("old", SERVER, made_days_ago=30, days=10)) as server:
            assert "shows has expired" in await refused(at(server), mine)
        async with served(RecordingHandler(), credentials=foreign.credentials("head", SERVER)) as server:
            assert "was not signed by our authority" in await refused(at(server), mine)
        async with served(RecordingHandler()) as server:
            assert "speaks no TLS" in await refused(at(server), mine)

    run(test())


def test_without_a_certificate_the_server_hangs_up_whatever_the_client_says(head, ours):
    async def test() -> None:
        async with served(Leader(), credentials=head) as server:
            trusting = grpc.ssl_channel_credentials(ours.authority.certificate.read_bytes())
            async with grpc.aio.secure_channel(at(server), trusting) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await stubs.ControlStub(channel).Status(pb.StatusRequest(), timeout=5)
            async with grpc.aio.insecure_channel(at(server)) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await stubs.ControlStub(channel).Status(pb.StatusRequest(), timeout=5)

    run(test())


def test_renewed_certificates_are_used_by_new_connections(tmp_path, ours):
    """The server's first certificate is of another authority: nobody gets in until it is renewed, and it is not restarted."""

    async def test() -> None:
        authority = credential_issuer(tmp_path / "third")
        access = authority.issue("head", SERVER)
        credentials = Credentials.of(access)
        async with served(RecordingHandler(), credentials=credentials) as server:
            assert "was not signed" in await refused(at(server), ours.credentials("node-a", NODE))
            issued = ours.issue("renewed", SERVER)
            for old, new in zip(msgspec.structs.astuple(access)[:3], msgspec.structs.astuple(issued)[:3], strict=True):
                Path(old).write_bytes(Path(new).read_bytes())
            async with joined(at(server), peer=AGENT, credentials=ours.credentials("node-a", NODE)) as client:
                assert client.connected

    run(test())


# --- people ----------------------------------------------------------------------------------------------------------


class People:
    """A leader under TLS with a authorization, and people with tokens."""

    def __init__(self, folder: Path, head: Credentials, card: Credentials) -> None:
        self.path = folder / "tokens" / "tokens.toml"
        clock = SystemClock()
        self.tokens = {role: add_person(self.path, f"a-{role}", role, now=clock.now()) for role in Role}
        self.tokens["old"] = add_person(self.path, "an-old-one", Role.ADMIN, now=clock.now() - 60, expires=clock.now() - 30)
        self.tokens["team"] = add_person(self.path, "a-tenant", Role.OPERATOR, now=clock.now(), tenant="team")
        self.settings = {"credentials": head, "authorization": Authorization(Tokens(self.path, clock), trust_claims=False)}
        self.card = card

    async def ask(self, server, what, message=None, *, who="", token="", card=True):
        shown = token or self.tokens.get(who, "")
        return await asyncio.to_thread(call, at(server), what, message, credentials=self.card if card else None, token=shown)


@pytest.fixture
def people(tmp_path: Path, ours: CredentialIssuer, head: Credentials) -> People:
    return People(tmp_path, head, ours.credentials("desk", CLIENT))


WORD = Decision(plan="p1", person="", digest="d")


def test_a_viewer_looks_and_an_operator_decides(people):
    async def test() -> None:
        async with served(Leader(), **people.settings) as server:
            assert await people.ask(server, "status", who=Role.VIEWER) == {"mode": "observe"}
            assert (await people.ask(server, "pending_plans", PendingPlansQuery(plan="p1"), who=Role.VIEWER))["plan"] == "p1"
            with pytest.raises(AccessDenied, match="a-viewer has the role viewer: approve needs the role operator"):
                await people.ask(server, "approve", WORD, who=Role.VIEWER)
            answer = await people.ask(server, "approve", WORD, who=Role.OPERATOR)
            assert answer == {"plan": "p1", "person": "a-operator", "approved": True}
            assert (await people.ask(server, "refuse", WORD, who=Role.ADMIN))["person"] == "a-admin"

    run(test())


@pytest.mark.parametrize(("what", "message"), [
    ("approve", WORD), ("refuse", WORD), ("release", ReleaseNodeCommand(node="n", person="")), ("silence", SilenceCommand(person="", job="team/*", seconds=1)),
    ("note", NoteCommand(incident="i", person="", text="t")),
])  # fmt: skip
def test_nothing_is_decided_without_a_good_token(people, what, message):
    async def test() -> None:
        async with served(Leader(), **people.settings) as server:
            with pytest.raises(AccessDenied, match="the request has no token"):
                await people.ask(server, what, message)
            with pytest.raises(AccessDenied, match="not known here"):
                await people.ask(server, what, message, token="eet_guessed")
            with pytest.raises(AccessDenied, match="the token of an-old-one expired"):
                await people.ask(server, what, message, who="old")
            with pytest.raises(ControlError, match="speaks TLS and we have no certificate"):
                await people.ask(server, what, message, who=Role.ADMIN, card=False)

    run(test())


def test_a_command_speaks_as_its_token_says_or_by_the_login(monkeypatch):
    async def said(config: Config, person: str = "") -> str:
        answer = await asyncio.to_thread(ask, config, "", "note", NoteCommand(incident="i", person=person, text="t"))
        return str(answer["person"])

    async def test() -> None:
        monkeypatch.setenv("LOGNAME", "login")
        async with served(Leader()) as server:
            config = Config(server=ServerConfig(listen=at(server)))
            assert [await said(config), await said(config, "ada")] == ["login", "ada"]
            monkeypatch.setenv(VARIABLE, "eet_of_another_cluster")
            with pytest.raises(AccessDenied, match="--as"):
                await said(config)

    run(test())


def test_nobody_speaks_as_another(people):
    async def test() -> None:
        async with served(Leader(), **people.settings) as server:
            with pytest.raises(AccessDenied, match="not to bob"):
                await people.ask(server, "approve", msgspec.structs.replace(WORD, person="bob"), who=Role.OPERATOR)

    run(test())


def test_a_token_that_was_taken_away_counts_no_more(people):
    async def test() -> None:
        async with served(Leader(), **people.settings) as server:
            await people.ask(server, "approve", WORD, who=Role.OPERATOR)
            remove_person(people.path, "a-operator")
            with pytest.raises(AccessDenied, match="not known here"):
                await people.ask(server, "approve", WORD, who=Role.OPERATOR)

    run(test())


def test_a_tenant_s_token_reaches_no_further_than_its_jobs(people):
    class Shared(Leader):
        async def status(self):
            incidents = [{"id": "i1", "job": "team/gpt/1", "plan": "p1"}, {"id": "i2", "job": "other/gpt/1", "plan": "p2"}]
            return {"incidents": incidents, "waiting": ["p1", "p2"], "sessions": ["agent on n"], "cordoned": ["n"]}

    async def test() -> None:
        async with served(Shared(), **people.settings) as server:
            assert await people.ask(server, "status", who="team") == {"incidents": [{"id": "i1", "job": "team/gpt/1", "plan": "p1"}], "waiting": ["p1"]}
            assert (await people.ask(server, "approve", WORD, who="team"))["tenant"] == "team"
            assert (await people.ask(server, "silence", SilenceCommand(person="", job="team/gpt", seconds=1), who="team"))["person"] == "a-tenant"
            for what, message in (("release", ReleaseNodeCommand(node="n", person="")), ("silence", SilenceCommand(person="", job="*", seconds=1))):
                with pytest.raises(AccessDenied, match="jobs of team alone"):
                    await people.ask(server, what, message, who="team")

    run(test())


def test_a_certificate_alone_reads_where_there_are_no_tokens(ours, head, tmp_path):
    async def test() -> None:
        authorization = Authorization(Tokens(tmp_path / "none.toml", SystemClock()), trust_claims=False)
        card = ours.credentials("ada", CLIENT)
        async with served(Leader(), credentials=head, authorization=authorization) as server:
            assert await asyncio.to_thread(call, at(server), "status", credentials=card) == {"mode": "observe"}
            with pytest.raises(AccessDenied, match="token add NAME --role operator"):
                await asyncio.to_thread(call, at(server), "approve", msgspec.structs.replace(WORD, person="ada"), credentials=card)

    run(test())


def test_on_loopback_without_tokens_a_name_is_believed_and_must_be_said():
    async def test() -> None:
        async with served(Leader()) as server:
            with pytest.raises(AccessDenied, match="give your name with --as"):
                await asyncio.to_thread(call, at(server), "approve", WORD)
            assert (await asyncio.to_thread(call, at(server), "approve", msgspec.structs.replace(WORD, person="ada")))["person"] == "ada"

    run(test())
