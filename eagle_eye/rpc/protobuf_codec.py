"""Between the values of messages.py and the generated protobuf classes; the only JSON of the channel."""

from typing import Any

import msgspec

from eagle_eye.errors import ControlError

from . import control_pb2 as pb
from .control_messages import (
    Body,
    BreakerOrder,
    Command,
    Decision,
    Failure,
    Hello,
    MaintenanceOrder,
    NoteOrder,
    Order,
    Peer,
    Release,
    Request,
    Result,
    Rhythm,
    SilenceOrder,
    Waiting,
    Welcome,
)

ORDERS: dict[str, type[Order]] = {kind.__name__: kind for kind in (SilenceOrder, MaintenanceOrder, BreakerOrder, NoteOrder)}
"""Name of the message → what it stands for."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Room for the stacks and flight records of a node's workers."""


def encode(body: Body) -> bytes:
    """JSON of a body. ControlError if it holds something that JSON cannot."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ControlError(f"a control message cannot hold this: {error}; send plain values or nouns") from None


def decode(data: bytes) -> Body:
    """Body of a JSON object; nothing at all is an empty one. ControlError for anything else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any]) if data else {}
    except msgspec.MsgspecError as error:
        raise ControlError(f"a control message holds no JSON object: {error}") from None


def hello_up(hello: Hello) -> pb.Up:
    """The first word of a session, for the wire."""
    peer = hello.peer
    words = pb.Hello(
        role=peer.role,
        node=peer.node,
        job=peer.job,
        boot=peer.boot,
        pid=peer.pid,
        address=peer.address,
        term=hello.term,
    )
    return pb.Up(hello=words)


def hello_of(words: pb.Hello) -> Hello:
    """The first word of a session, from the wire."""
    peer = Peer(
        role=words.role, node=words.node, job=words.job, boot=words.boot, pid=words.pid, address=words.address
    )
    return Hello(peer=peer, term=words.term)


def welcome_down(welcome: Welcome) -> pb.Down:
    """The answer to a hello, for the wire."""
    rhythm = welcome.rhythm
    return pb.Down(welcome=pb.Welcome(term=welcome.term, beat_s=rhythm.beat_s, lease_s=rhythm.lease_s))


def welcome_of(words: pb.Welcome) -> Welcome:
    """The answer to a hello, from the wire."""
    return Welcome(term=words.term, rhythm=Rhythm(beat_s=words.beat_s, lease_s=words.lease_s))


def beat_up() -> pb.Up:
    """A sign of life from below, for the wire."""
    return pb.Up(beat=pb.Beat())


def beat_down(rhythm: Rhythm) -> pb.Down:
    """The answer to a beat, for the wire: how often the next ones should come."""
    return pb.Down(beat=pb.Beat(beat_s=rhythm.beat_s, lease_s=rhythm.lease_s))


def rhythm_of(words: pb.Beat) -> Rhythm:
    """The rhythm in the answer to a beat."""
    return Rhythm(beat_s=words.beat_s, lease_s=words.lease_s)


def command_down(command: Command) -> pb.Down:
    """A command for the wire; ControlError if its arguments are no JSON."""
    words = pb.Command(
        id=command.id,
        leader_term=command.leader_term,
        job=command.job,
        epoch=command.epoch,
        plan=command.plan,
        step=command.step,
        action=command.action,
        arguments=encode(command.arguments),
    )
    return pb.Down(command=words)


def command_of(words: pb.Command) -> Command:
    """A command from the wire; ControlError if its arguments are no JSON object."""
    return Command(
        id=words.id,
        leader_term=words.leader_term,
        job=words.job,
        epoch=words.epoch,
        plan=words.plan,
        step=words.step,
        action=words.action,
        arguments=decode(words.arguments),
    )


def request_up(request: Request) -> pb.Up:
    """A request for the wire; ControlError if its body is no JSON."""
    return pb.Up(request=pb.Request(id=request.id, kind=request.kind, body=encode(request.body)))


def request_of(words: pb.Request) -> Request:
    """A request from the wire; ControlError if its body is no JSON object."""
    return Request(id=words.id, kind=words.kind, body=decode(words.body))


def ack_up(result: Result) -> pb.Up:
    """What became of a command, for the wire."""
    return pb.Up(ack=pb.Ack(id=result.id, detail=encode(result.body), **_verdict(result.failure)))


def reply_down(result: Result) -> pb.Down:
    """What became of a request, for the wire."""
    return pb.Down(reply=pb.Reply(id=result.id, body=encode(result.body), **_verdict(result.failure)))


def answer(result: Result) -> pb.Answer:
    """What became of a unary call, for the wire."""
    return pb.Answer(body=encode(result.body), **_verdict(result.failure))


def ack_of(words: pb.Ack) -> Result:
    """What became of a command, from the wire."""
    return _result(words.id, words, words.detail)


def reply_of(words: pb.Reply) -> Result:
    """What became of a request, from the wire."""
    return _result(words.id, words, words.body)


def answer_of(words: pb.Answer) -> Result:
    """What became of a unary call, from the wire."""
    return _result(0, words, words.body)


def decision_words(decision: Decision) -> pb.Decision:
    """A person's word for the wire."""
    fields = msgspec.structs.asdict(decision)
    return pb.Decision(**{name: value for name, value in fields.items() if name != "tenant"})


def decision_of(words: pb.Decision) -> Decision:
    """A person's word from the wire."""
    return Decision(
        plan=words.plan, digest=words.digest, person=words.person, valid_s=words.valid_s, note=words.note
    )


def waiting_words(question: Waiting) -> pb.WaitingRequest:
    """What waits, for the wire."""
    return pb.WaitingRequest(plan=question.plan)


def waiting_of(words: pb.WaitingRequest) -> Waiting:
    """What waits, from the wire."""
    return Waiting(plan=words.plan)


def release_words(release: Release) -> pb.ReleaseRequest:
    """The release of a node for the wire."""
    return pb.ReleaseRequest(node=release.node, person=release.person)


def release_of(words: pb.ReleaseRequest) -> Release:
    """The release of a node from the wire."""
    return Release(node=words.node, person=words.person)


def order_words(order: Order) -> Any:
    """An order for the wire: the message of the same name, field by field."""
    return getattr(pb, type(order).__name__)(**msgspec.structs.asdict(order))


def order_of(words: Any) -> Order:
    """An order from the wire."""
    kind = ORDERS[type(words).__name__]
    given = {name: getattr(words, name) for name in kind.__struct_fields__}
    return msgspec.convert({name: value if isinstance(value, str | bool | float) else tuple(value) for name, value in given.items()}, kind)


def _verdict(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {"ok": True}
    return {"ok": False, "error": failure.error, "kind": failure.kind, "delay_s": failure.delay_s}


def _result(number: int, words: Any, data: bytes) -> Result:
    if words.ok:
        return Result(id=number, body=decode(data))
    return Result(id=number, failure=Failure(kind=words.kind, error=words.error, delay_s=words.delay_s))
