"""The operator's calls on a control server: authorization, then the handler."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote

import msgspec

from eagle_eye.access import Authorization, Caller, Person, Role
from eagle_eye.access.caller import local_caller, speaks_for_itself
from eagle_eye.errors import AccessDenied, ControlError, EagleEyeError

from . import control_pb2_grpc as stubs
from . import protobuf_codec as wire
from .control_messages import (
    Body,
    ControlMessage,
    ControlResult,
    Decision,
    Failure,
    OperatorCommand,
    PendingPlansQuery,
    ReleaseNodeCommand,
    SilenceCommand,
)

log = logging.getLogger(__name__)

METADATA = "authorization"
"""Of the call's metadata; its value is `Bearer TOKEN`."""


@runtime_checkable
class DecisionHandler(Protocol):
    """A handler that also answers the operator; one without is no leader and says so."""

    async def decide(self, decision: Decision, approved: bool) -> Body: ...
    async def release(self, release: ReleaseNodeCommand) -> Body: ...
    async def status(self) -> Body: ...
    async def pending_plans(self, question: PendingPlansQuery) -> Body: ...
    async def order(self, order: OperatorCommand) -> Body: ...


DecisionCall = Callable[[DecisionHandler, Any], Awaitable[Body]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One unary call. `read`: from the wire."""

    role: Role
    read: Callable[[Any], ControlMessage | None]
    ask: DecisionCall


QUESTIONS: dict[str, Question] = {
    "status": Question(role=Role.VIEWER, read=lambda _: None, ask=lambda handler, _: handler.status()),
    "pending_plans": Question(role=Role.VIEWER, read=wire.decode_pending_plans_query, ask=lambda handler, question: handler.pending_plans(question)),
    "approve": Question(role=Role.OPERATOR, read=wire.decode_decision, ask=lambda handler, word: handler.decide(word, True)),
    "refuse": Question(role=Role.OPERATOR, read=wire.decode_decision, ask=lambda handler, word: handler.decide(word, False)),
    "release": Question(role=Role.OPERATOR, read=wire.decode_release, ask=lambda handler, release: handler.release(release)),
    **{
        name: Question(role=Role.OPERATOR, read=wire.decode_operator_command, ask=lambda handler, order: handler.order(order))
        for name in ("silence", "maintain", "close a breaker", "note")
    },
}


class OperatorService(stubs.ControlServicer):
    """The unary calls. Errors travel in the answer, so that the caller reads our message and not gRPC's."""

    def __init__(self, handler: object, address: str, authorization: Authorization) -> None:
        self._asked_of = handler
        self._asked_at = address
        self._authorization = authorization
        self.port = 0
        """Where it listens, once it does."""

    async def Approve(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("approve", request, context)

    async def Refuse(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("refuse", request, context)

    async def Release(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("release", request, context)

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("status", request, context)

    async def PendingPlans(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("pending_plans", request, context)

    async def Silence(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("silence", request, context)

    async def Maintain(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("maintain", request, context)

    async def CloseBreaker(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("close a breaker", request, context)

    async def Note(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return await self._answer_to("note", request, context)

    async def _answer_to(self, what: str, request: Any, context: Any) -> Any:
        try:
            return wire.encode_response(ControlResult(body=await self._ask(what, request, context)))
        except AccessDenied as error:
            log.warning("%s was refused: %s", context.peer(), error)
            return wire.encode_response(ControlResult(failure=Failure.of(error)))
        except EagleEyeError as error:
            return wire.encode_response(ControlResult(failure=Failure.of(error)))
        except Exception as error:  # the operator must get an answer whatever the handler does
            log.exception("%s failed", what)
            failure = Failure(kind="control", error=f"{what} failed: {type(error).__name__}: {error}; see the server's log")
            return wire.encode_response(ControlResult(failure=failure))

    async def _ask(self, what: str, request: Any, context: Any) -> Body:
        if not isinstance(self._asked_of, DecisionHandler):
            raise ControlError(f"{self._asked_at} is no leader and cannot {what}; ask the address of `eagle-eye server`")
        question = QUESTIONS[what]
        message = question.read(request)
        metadata = context.invocation_metadata()
        caller = await asyncio.to_thread(caller_of, context.peer(), self.port, metadata)
        person = self._authorization.admit(question.role, what, token=token_in(metadata), claimed=getattr(message, "person", ""), caller=caller)
        body = await question.ask(self._asked_of, _sent_by(person, message))
        return _seen_by(person, body) if what == "status" else body


def caller_of(peer: str, server_port: int, metadata: Any) -> Caller:
    """What a call's connection proves without TLS. `peer`: gRPC's name of the other end, such as ipv4:127.0.0.1:40122 or ipv6:%5B::1%5D:40122.

    Reads the kernel's table of connections: not in the event loop.
    """
    family, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    if family == "unix":
        return Caller(local=True)
    if not port.isdigit() or not speaks_for_itself(host.strip("[]"), (key for key, _ in metadata or ())):
        return Caller()
    return local_caller(host.strip("[]"), int(port), server_port)


def token_in(metadata: Any) -> str:
    """The token of a call; '' if it has none."""
    for key, value in metadata or ():
        scheme, _, token = str(value).partition(" ")
        if key == METADATA and scheme.lower() == "bearer":
            return token.strip()
    return ""


def _sent_by(person: Person, message: ControlMessage | None) -> ControlMessage | None:
    """The message with this person as its sender, whichever name it claimed. Raises AccessDenied for a job of another tenant."""
    if message is None:
        return None
    if person.tenant and not _within(person, message):
        raise AccessDenied(f"the token of {person.name} counts for the jobs of {person.tenant} alone, and this goes beyond them")
    known = {"person": person.name, "tenant": person.tenant}
    changes = {name: value for name, value in known.items() if name in message.__struct_fields__}
    return msgspec.structs.replace(message, **changes)


def _within(person: Person, message: ControlMessage) -> bool:
    if isinstance(message, SilenceCommand):
        return not message.id and message.job.startswith(f"{person.tenant}/")
    return "tenant" in message.__struct_fields__  # then the handler looks at the job


def _seen_by(person: Person, status: Body) -> Body:
    """What a tenant's own people see: the incidents of its jobs and their plans, nothing of the others."""
    if not person.tenant:
        return status
    incidents = [incident for incident in status.get("incidents", ()) if person.sees(str(incident["job"]))]
    plans = {incident["plan"] for incident in incidents}
    return {"incidents": incidents, "waiting": [plan for plan in status.get("waiting", ()) if plan in plans]}
