"""Attempts of people: decisions without a token, beyond a role, and beyond a tenant."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.attempt import Answer, Kind, line_with
from benchmarks.faults.server_process import ANSWER_S, ServerProcess, until
from eagle_eye.access import Role
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.errors import AccessDenied
from eagle_eye.rpc.control_client import call
from eagle_eye.rpc.control_messages import Decision, SilenceCommand
from eagle_eye.rpc.operator_client import OperatorMessage


class People(NamedTuple):
    """A server under TLS with tokens."""

    server: ServerProcess
    viewer: str
    tenant: str
    """Token of an operator of team-b."""


@asynccontextmanager
async def people(folder: Path) -> AsyncIterator[People]:
    """A server that asks everybody for a token."""
    server = ServerProcess(folder, secured=True)
    tokens = server.token("vera", Role.VIEWER), server.token("tom", Role.OPERATOR, "team-b")
    try:
        await server.started()
        yield People(server, *tokens)
    finally:
        server.cluster.stop()


async def _asked(known: People, what: str, message: OperatorMessage, token: str, words: str) -> Answer:
    card = known.server.credentials("ada", kind=CertificateKind.CLIENT)
    try:
        await asyncio.to_thread(call, known.server.address, what, message, credentials=card, token=token)
    except AccessDenied as error:
        return Answer(True, await _logged(known, words) if words in str(error) else "")
    return Answer(False, "")


async def _logged(known: People, words: str) -> str:
    """The server's line; a thread of its own writes the log, after the answer. '' if none comes."""
    with suppress(TimeoutError):
        await until(lambda: line_with(known.server.log(), words), ANSWER_S)
    return line_with(known.server.log(), words)


async def _without_token(known: People) -> Answer:
    return await _asked(known, "approve", Decision(plan="p", person="", digest="d"), "", "the request has no token")


async def _viewer(known: People) -> Answer:
    return await _asked(known, "approve", Decision(plan="p", person="", digest="d"), known.viewer, "vera has the role viewer")


async def _beyond_tenant(known: People) -> Answer:
    return await _asked(known, "silence", SilenceCommand(person="", job="team-a/*", seconds=60.0), known.tenant, "counts for the jobs of team-b alone")


KIND = Kind(
    "people",
    people,
    {
        "a certificate without a token approves a plan": _without_token,
        "a viewer's token approves a plan": _viewer,
        "an operator of one tenant silences another's jobs": _beyond_tenant,
    },
)
