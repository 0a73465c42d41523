"""Attempts under mutual TLS: certificates of another authority, node, tenant or person, and claims about another's job."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.attempt import Answer, Kind, line_with
from benchmarks.faults.server_process import (
    JOB,
    NODES,
    ServerProcess,
    agent,
    launcher,
    refused_request,
    report,
)
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Body, Peer
from tests.fakes.tls_credentials import credential_issuer

LEAP = 2**31


class SecuredJob(NamedTuple):
    """A server under TLS that knows one job, and the session of its coordinator."""

    server: ServerProcess
    coordinator: ControlClient


@asynccontextmanager
async def secured_job(folder: Path) -> AsyncIterator[SecuredJob]:
    """A job of the tenant team-a on two nodes."""
    server = ServerProcess(folder, secured=True)
    try:
        await server.started()
        async with server.session(launcher(NODES[0]), server.credentials(NODES[0], "team-a")) as coordinator:
            await coordinator.request("layout", report(5, *NODES))
            yield SecuredJob(server, coordinator)
    finally:
        server.cluster.stop()


async def _no_session(job: SecuredJob, peer: Peer, name: str, *tenants: str, kind: CertificateKind = CertificateKind.NODE, words: str) -> Answer:
    why = await job.server.refusal(peer, job.server.credentials(name, *tenants, kind=kind))
    return Answer(bool(why), await job.server.notice(words))


async def _no_claim(job: SecuredJob, peer: Peer, kind: str, body: Body, *tenants: str, words: str) -> Answer:
    """On an open session of a node that is no part of the job."""
    async with job.server.session(peer, job.server.credentials(peer.node, *tenants)) as client:
        why = await refused_request(client, kind, body)
    return Answer(bool(why) and _unchanged(job), await job.server.notice(words))


def _unchanged(job: SecuredJob) -> bool:
    layout = job.server.layout()
    return layout is not None and (layout.epoch, layout.coordinator) == (5, NODES[0])


async def _another_authority(job: SecuredJob) -> Answer:
    foreign = credential_issuer(job.server.folder / "foreign").credentials(NODES[0], CertificateKind.NODE)
    why = await job.server.refusal(agent(NODES[0]), foreign)
    return Answer(bool(why), line_with(why, "was not signed by our authority"))


async def _another_node(job: SecuredJob) -> Answer:
    return await _no_session(job, agent(NODES[0]), "node-x", words=f"may not speak as the agent on {NODES[0]}")


async def _person(job: SecuredJob) -> Answer:
    return await _no_session(job, launcher("ada"), "ada", kind=CertificateKind.CLIENT, words="client ada may not speak")


async def _another_tenant(job: SecuredJob) -> Answer:
    return await _no_session(job, launcher("node-t"), "node-t", "team-b", words="node node-t (of team-b) may not speak for")


async def _stranger(job: SecuredJob) -> Answer:
    return await _no_claim(job, launcher("node-x"), "layout", report(6, "node-x"), words="no layout of it has named node-x")


async def _agent(job: SecuredJob) -> Answer:
    return await _no_claim(job, agent("node-y"), "layout", report(LEAP, "node-y"), "team-b", words="the agent on node-y was refused")


async def _own_job_as_pretext(job: SecuredJob) -> Answer:
    own = launcher("node-z", "team-b/gpt/run1")
    return await _no_claim(job, own, "layout", report(6, "node-z"), "team-b", words="the launcher on node-z of team-b/gpt/run1 was refused")


async def _grant(job: SecuredJob) -> Answer:
    body = report(6, "node-g") | {"job": JOB, "epoch": 6, "missing": [NODES[1]]}
    return await _no_claim(job, launcher("node-g"), "grant", body, words="no layout of it has named node-g")


async def _leap(job: SecuredJob) -> Answer:
    why = await refused_request(job.coordinator, "layout", report(LEAP, *NODES))
    return Answer(bool(why) and _unchanged(job), await job.server.notice(f"epoch {LEAP} of {JOB} is not believed"))


async def _coordinator_of_another(job: SecuredJob) -> Answer:
    own = launcher("node-q", "team-b/gpt/run1")
    return await _no_claim(job, own, "coordinator_of", {"job": JOB}, "team-b", words="may not ask for the coordinator")


KIND = Kind(
    "certificates",
    secured_job,
    {
        "a certificate of another authority opens a session": _another_authority,
        "a node's certificate opens the session of another node": _another_node,
        "a person's certificate opens a launcher's session": _person,
        "another tenant's node opens a session of the job": _another_tenant,
        "a node that never took part reports the job's next epoch": _stranger,
        "another tenant's agent reports epoch 2³¹ of the job": _agent,
        "a launcher of one job reports an epoch of another": _own_job_as_pretext,
        "a node that never took part asks for half of the job": _grant,
        "the owner's own epoch leaps to 2³¹": _leap,
        "another tenant's launcher asks where the job's coordinator listens": _coordinator_of_another,
    },
)
