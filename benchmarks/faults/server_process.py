"""A real `eagle-eye server` process for attempts, with or without TLS and tokens, and what it says of them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from eagle_eye.access import Role
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.credentials import Credentials
from eagle_eye.access.tokens import add_person
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Body, ConnectionState, Peer
from eagle_eye.types import Layout, RankPlacement
from tests.fakes.tls_credentials import CredentialIssuer, credential_issuer

JOB = "team-a/gpt/run1"
NODES = ("node-a", "node-b")
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = "127.0.0.1:{http}"

[history]
enabled = false
"""
SECURED = """
[access]
ca_file = "{certs}/ca.pem"
certificate_file = "{certs}/out/{host}.pem"
key_file = "{certs}/out/{host}.key"
"""
START_S = 60.0
ANSWER_S = 20.0


class ServerProcess:
    """The process, and the clients of those who try."""

    def __init__(self, folder: Path, *, secured: bool) -> None:
        self.folder = folder
        self.port, self.http = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.certificates: CredentialIssuer | None = credential_issuer(folder / "certs") if secured else None
        text = CONFIG.format(port=self.port, http=self.http)
        if self.certificates is not None:
            self.certificates.issue(socket.gethostname(), CertificateKind.SERVER)
            text += SECURED.format(certs=folder / "certs", host=socket.gethostname())
        file = folder / "eagle-eye.toml"
        file.write_text(text)
        self.cluster = LocalCluster(folder=folder, config_file=file, clock=SystemClock(), state_dir=folder / "state")

    def token(self, name: str, role: Role, tenant: str = "") -> str:
        """Of a new person."""
        path = self.folder / "state" / "tokens" / "tokens.toml"
        return add_person(path, name, role, now=SystemClock().now(), tenant=tenant)

    def credentials(self, name: str, *tenants: str, kind: CertificateKind = CertificateKind.NODE) -> Credentials | None:
        """A new certificate; None where the server has no TLS."""
        return self.certificates.credentials(name, kind, tenants=tenants) if self.certificates is not None else None

    async def started(self) -> None:
        """Start, and wait until it leads. Raises LaunchError, TimeoutError."""
        self.cluster.start_server()
        await until(lambda: "leading in term" in self.log(), START_S)

    def log(self) -> str:
        self.cluster.check()
        return self.cluster.tail("server", 10_000)

    def ledger(self) -> Ledger:
        """To look into; the caller closes it."""
        return Ledger.open(self.folder / "state" / "ledger.sqlite", read_only=True)

    def layout(self) -> Layout | None:
        """Of the job, as the server knows it."""
        with contextlib.closing(self.ledger()) as ledger:
            known = ledger.jobs().get(JOB)
            return known.layout if known is not None else None

    async def notice(self, words: str) -> str:
        """The notice to operators that holds these words; '' if none comes."""

        def found() -> str:
            with contextlib.closing(self.ledger()) as ledger:
                return next((notice.message for notice in ledger.notices() if words in notice.message), "")

        with contextlib.suppress(TimeoutError):
            await until(found, ANSWER_S)
        return found()

    @contextlib.asynccontextmanager
    async def session(self, peer: Peer, credentials: Credentials | None) -> AsyncIterator[ControlClient]:
        """An open session. Raises TimeoutError where none is opened."""
        client = ControlClient(self.address, peer, credentials=credentials)
        await client.start()
        try:
            await until(lambda: client.connected, ANSWER_S)
            yield client
        finally:
            await client.stop()

    async def refusal(self, peer: Peer, credentials: Credentials | None) -> str:
        """Why no session is opened; '' if one is."""
        states: list[ConnectionState] = []
        client = ControlClient(self.address, peer, on_state=states.append, credentials=credentials)
        await client.start()
        try:
            await until(lambda: states, ANSWER_S)
            return "" if states[0].connected else states[0].reason
        finally:
            await client.stop()


async def until(condition: Callable[[], object], seconds: float) -> None:
    """Wait for it. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


def launcher(node: str, job: str = JOB) -> Peer:
    """Who a launcher says that it is."""
    return Peer(role="launcher", node=node, job=job, incarnation=f"{node}-1", address=f"{node}:7000")


def agent(node: str) -> Peer:
    """Who an agent says that it is."""
    return Peer(role="agent", node=node, incarnation=f"{node}-1")


def report(epoch: int, *nodes: str, job: str = JOB) -> Body:
    """A coordinator's report of a layout."""
    places = tuple(RankPlacement(worker=f"run1/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(nodes))
    layout = Layout(
        job=job, epoch=epoch, time=SystemClock().now(), coordinator=nodes[0], launchers={node: f"{node}:7000" for node in nodes}, placements=places
    )
    return {"layout": msgspec.to_builtins(layout), "heal": "restart:3", "budget_left": 3}


async def refused_request(client: ControlClient, kind: str, body: Body) -> str:
    """Why a request was refused; '' if it was not."""
    try:
        await client.request(kind, body, ANSWER_S)
    except EagleEyeError as error:
        return str(error)
    return ""
