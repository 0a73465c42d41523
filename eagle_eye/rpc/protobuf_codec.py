"""Encodes the values of control_messages.py as protobuf and decodes them; bodies are JSON."""

from typing import Any, TypeVar

import msgspec

from eagle_eye.errors import UNREADABLE, ControlError
from eagle_eye.writable_text import writable

from . import control_pb2 as pb
from .control_messages import (
    AnswerDelay,
    Body,
    BreakerCommand,
    Command,
    ControlMessage,
    ControlResult,
    Decision,
    Failure,
    HeartbeatSettings,
    Hello,
    MaintenanceCommand,
    NoteCommand,
    OperatorCommand,
    Peer,
    PendingPlansQuery,
    ReleaseNodeCommand,
    Request,
    SilenceCommand,
    Welcome,
)

ORDERS: dict[str, type[OperatorCommand]] = {kind.__name__: kind for kind in (SilenceCommand, MaintenanceCommand, BreakerCommand, NoteCommand)}
"""Name of the message → what it means."""
_Checked = TypeVar("_Checked", bound=ControlMessage)
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Room for the stacks and flight records of a node's workers."""


def encode_body(body: Body) -> bytes:
    """JSON of a body; text that has no encoding is written with question marks. ControlError if it holds something that JSON cannot."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # such as the name of a file
        return msgspec.json.encode(writable(msgspec.to_builtins(body)))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ControlError(f"a control message cannot hold this: {error}; send plain values or nouns") from None


def decode_body(data: bytes) -> Body:
    """Body of a JSON object; nothing at all is an empty one. ControlError for anything else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any]) if data else {}
    except UNREADABLE as error:
        raise ControlError(f"a control message holds no JSON object: {error}") from None


def encode_hello(hello: Hello) -> pb.FromClient:
    """The first message of a session, for the wire."""
    peer = hello.peer
    message = pb.Hello(
        role=peer.role,
        node=peer.node,
        job=peer.job,
        incarnation=peer.incarnation,
        pid=peer.pid,
        address=peer.address,
        term=hello.term,
    )
    return pb.FromClient(hello=message)


def decode_hello(message: pb.Hello) -> Hello:
    """The first message of a session, from the wire."""
    peer = Peer(
        role=message.role, node=message.node, job=message.job, incarnation=message.incarnation, pid=message.pid, address=message.address
    )
    return Hello(peer=peer, term=message.term)


def encode_welcome(welcome: Welcome) -> pb.FromServer:
    """The answer to a hello, for the wire."""
    heartbeat = welcome.heartbeat
    return pb.FromServer(welcome=pb.Welcome(term=welcome.term, heartbeat_s=heartbeat.heartbeat_s, lease_s=heartbeat.lease_s))


def decode_welcome(message: pb.Welcome) -> Welcome:
    """The answer to a hello, from the wire. ControlError for a term or a period that is none."""
    return _checked({"term": message.term, "heartbeat": decode_heartbeat(message)}, Welcome)


def client_heartbeat() -> pb.FromClient:
    """A sign of life from below, for the wire."""
    return pb.FromClient(heartbeat=pb.Heartbeat())


def server_heartbeat(heartbeat: HeartbeatSettings) -> pb.FromServer:
    """The answer to a beat, for the wire: how often the next ones should come."""
    return pb.FromServer(heartbeat=pb.Heartbeat(heartbeat_s=heartbeat.heartbeat_s, lease_s=heartbeat.lease_s))


def decode_heartbeat(message: pb.Heartbeat | pb.Welcome) -> HeartbeatSettings:
    """The heartbeat in the answer to a beat, or to a hello. ControlError for periods that are none."""
    heartbeat = _checked({"heartbeat_s": message.heartbeat_s, "lease_s": message.lease_s}, HeartbeatSettings)
    if heartbeat.lease_s < heartbeat.heartbeat_s:
        raise ControlError(f"heartbeats every {heartbeat.heartbeat_s:g} s are too late for a lease of {heartbeat.lease_s:g} s")
    return heartbeat


def encode_command(command: Command) -> pb.FromServer:
    """A command for the wire; ControlError if its arguments are no JSON."""
    message = pb.Command(
        id=command.id,
        leader_term=command.leader_term,
        job=command.job,
        epoch=command.epoch,
        plan=command.plan,
        step=command.step,
        action=command.action,
        arguments=encode_body(command.arguments),
    )
    return pb.FromServer(command=message)


def decode_command(message: pb.Command) -> Command:
    """A command from the wire; ControlError if its arguments are no JSON object, or its term is none."""
    given = {name: getattr(message, name) for name in ("id", "leader_term", "job", "epoch", "plan", "step", "action")}
    return _checked(given | {"arguments": decode_body(message.arguments)}, Command)


def encode_request(request: Request) -> pb.FromClient:
    """A request for the wire; ControlError if its body is no JSON."""
    return pb.FromClient(request=pb.Request(id=request.id, kind=request.kind, body=encode_body(request.body)))


def decode_request(message: pb.Request) -> Request:
    """A request from the wire; ControlError if its body is no JSON object."""
    return Request(id=message.id, kind=message.kind, body=decode_body(message.body))


def encode_ack(result: ControlResult) -> pb.FromClient:
    """What became of a command, for the wire."""
    return pb.FromClient(ack=pb.Ack(id=result.id, detail=encode_body(result.body), **_verdict(result.failure)))


def encode_reply(result: ControlResult) -> pb.FromServer:
    """What became of a request, for the wire."""
    return pb.FromServer(reply=pb.Reply(id=result.id, body=encode_body(result.body), **_verdict(result.failure)))


def encode_response(result: ControlResult) -> pb.Response:
    """What became of a unary call, for the wire."""
    return pb.Response(body=encode_body(result.body), **_verdict(result.failure))


def decode_ack(message: pb.Ack) -> ControlResult:
    """What became of a command, from the wire."""
    return _result(message.id, message, message.detail)


def decode_reply(message: pb.Reply) -> ControlResult:
    """What became of a request, from the wire."""
    return _result(message.id, message, message.body)


def decode_response(message: pb.Response) -> ControlResult:
    """What became of a unary call, from the wire."""
    return _result(0, message, message.body)


def encode_decision(decision: Decision) -> pb.Decision:
    """An operator's decision for the wire."""
    fields = msgspec.structs.asdict(decision)
    return pb.Decision(**{name: value for name, value in fields.items() if name != "tenant"})


def decode_decision(message: pb.Decision) -> Decision:
    """An operator's decision from the wire. ControlError for a period that is none."""
    return _checked({name: getattr(message, name) for name in ("plan", "digest", "person", "valid_s", "note")}, Decision)


def encode_pending_plans_query(question: PendingPlansQuery) -> pb.PendingPlansQuery:
    """What waits, for the wire."""
    return pb.PendingPlansQuery(plan=question.plan)


def decode_pending_plans_query(message: pb.PendingPlansQuery) -> PendingPlansQuery:
    """What waits, from the wire."""
    return PendingPlansQuery(plan=message.plan)


def encode_release(release: ReleaseNodeCommand) -> pb.ReleaseNodeCommand:
    """The release of a node for the wire."""
    return pb.ReleaseNodeCommand(node=release.node, person=release.person)


def decode_release(message: pb.ReleaseNodeCommand) -> ReleaseNodeCommand:
    """The release of a node from the wire."""
    return ReleaseNodeCommand(node=message.node, person=message.person)


def encode_operator_command(order: OperatorCommand) -> Any:
    """An order for the wire: the message of the same name, field by field."""
    return getattr(pb, type(order).__name__)(**msgspec.structs.asdict(order))


def decode_operator_command(message: Any) -> OperatorCommand:
    """An order from the wire. ControlError for a period that is none."""
    kind = ORDERS[type(message).__name__]
    given = {name: getattr(message, name) for name in kind.__struct_fields__}
    return _checked({name: value if isinstance(value, str | bool | float) else tuple(value) for name, value in given.items()}, kind)


def _checked(given: dict[str, Any], kind: type[_Checked]) -> _Checked:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ControlError(f"{kind.__name__} holds a value that cannot be: {error}") from None


def _verdict(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {"ok": True}
    return {"ok": False, "error": failure.error, "kind": failure.kind, "delay_s": failure.delay_s}


def _result(number: int, message: Any, data: bytes) -> ControlResult:
    if message.ok:
        return ControlResult(id=number, body=decode_body(data))
    return ControlResult(id=number, failure=Failure(kind=message.kind, error=message.error, delay_s=_delay(message.delay_s)))


def _delay(seconds: float) -> float:
    """ControlError for one that is none."""
    try:
        return msgspec.convert(seconds, AnswerDelay)
    except msgspec.ValidationError as error:
        raise ControlError(f"a delay of {seconds:g} s cannot be: {error}") from None
