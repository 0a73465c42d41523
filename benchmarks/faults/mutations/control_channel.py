"""The control channel: mutated protobuf messages and bodies, through the codec and to a leader's server over loopback."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from eagle_eye.errors import ControlError
from eagle_eye.rpc import control_pb2 as pb
from eagle_eye.rpc import protobuf_codec as codec
from eagle_eye.rpc.control_server import ControlServer
from remediation.engine.leader import Leader

from .detection import Logged
from .held_plan import HeldPlan
from .mutation import FLOATS, Mutation
from .sample_findings import tree_of
from .sample_job import JOB, NODES, SampleJob
from .target import Fault, Tally, Target

ANSWER_S = 5.0
SERVICE = "/eagle_eye.v1.Control/"
OVER_WIRE = 0.3
"""Share of the records that go over the socket; each of the others is decoded as either end does."""
OUTSIDE = 500
"""Records after which the server is asked for its status."""
UNARY: dict[str, Any] = {
    "Approve": pb.Decision(plan="incident-held", digest="d", person="ada", valid_s=60.0, note="n"),
    "Refuse": pb.Decision(plan="x", digest="d", person="ada"),
    "Release": pb.ReleaseNodeCommand(node="node-b", person="ada"),
    "PendingPlans": pb.PendingPlansQuery(plan="incident-held"),
    "Silence": pb.SilenceCommand(person="ada", job="team/*", node="*", cause="node lost", seconds=60.0, reason="r", ahead=True),
    "Maintain": pb.MaintenanceCommand(person="ada", nodes=["node-a"], jobs=["team/*"], begins_in_s=1.0, seconds=60.0, reason="r", ahead=True),
    "CloseBreaker": pb.BreakerCommand(id="b", person="ada"),
    "Note": pb.NoteCommand(incident="incident-held", person="ada", text="t"),
    "Status": pb.StatusRequest(),
}
DECODERS: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = (
    (pb.Hello, codec.decode_hello), (pb.Welcome, codec.decode_welcome), (pb.Heartbeat, codec.decode_heartbeat), (pb.Command, codec.decode_command),
    (pb.Request, codec.decode_request), (pb.Ack, codec.decode_ack), (pb.Reply, codec.decode_reply), (pb.Response, codec.decode_response), (pb.Decision, codec.decode_decision),
    (pb.SilenceCommand, codec.decode_operator_command), (pb.MaintenanceCommand, codec.decode_operator_command), (pb.NoteCommand, codec.decode_operator_command),
)  # fmt: skip


class Channel:
    """A leader's server in a thread, and a raw client."""

    def __init__(self, folder: Path, logged: Logged) -> None:
        self._held, self._logged = HeldPlan(folder), logged
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="control", daemon=True)
        self._thread.start()
        leader = Leader(
            term=3, lease_s=2.0, ledger=self._held.ledger, operator=self._held.engine, write=lambda *_: None, clock=self._held.clock, incarnation="i",
        )  # fmt: skip
        self._server = self._await(self._serve(leader))
        self._wire: Any = grpc.insecure_channel(f"127.0.0.1:{self._server.port}")
        self._numbers = itertools.count(1)
        self._taken = self._refused = self._told = 0

    def take(self, random: Random) -> None:
        self._taken += 1
        mutation = Mutation(random)
        if random.random() > OVER_WIRE:
            self._decode(mutation)
        elif random.random() < 0.5:
            self._call(mutation)
        else:
            self._talk(mutation)
        if self._logged.faults:
            faults, self._logged.faults = self._logged.faults, []
            raise Fault("\n".join(faults))
        if self._taken % OUTSIDE == 0 and not pb.Response.FromString(self._ask("Status", b"")).ok:
            raise Fault("the server does not tell its status any more")

    def tally(self) -> Tally:
        return Tally(self._refused, self._told)

    def close(self) -> None:
        self._wire.close()
        self._await(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._held.close()

    # --- one record ----------------------------------------------------------------------------------------------

    def _decode(self, mutation: Mutation) -> None:
        kind, decode = mutation.random.choice(DECODERS)
        message = kind()
        try:
            message.ParseFromString(self._mutated(_filled(kind, mutation), mutation))
            decode(message)
        except DecodeError:  # gRPC ends the call before it is ours
            return
        except ControlError as error:
            self._refuse(str(error))

    def _call(self, mutation: Mutation) -> None:
        """One call of an operator's command."""
        name = mutation.random.choice(list(UNARY))
        message = type(UNARY[name])()
        message.CopyFrom(UNARY[name])
        _change(message, mutation)
        try:
            answer = self._ask(name, self._mutated(message.SerializeToString(), mutation))
        except grpc.RpcError as error:
            self._refuse(error.details() or error.code().name)
            return
        response = pb.Response.FromString(answer)
        if not response.ok:
            self._refuse(response.error)

    def _talk(self, mutation: Mutation) -> None:
        """A session with a request in it, and what comes after."""
        random = mutation.random
        hello = pb.Hello(role="launcher", node=random.choice(NODES), job=JOB, incarnation=str(self._taken), pid=7, address="127.0.0.1:7000", term=1)
        if random.random() < 0.3:
            _change(hello, mutation)
        kind, tree = self._body(random)
        request = pb.Request(id=next(self._numbers), kind=kind, body=mutation.encoded(tree, "json"))
        messages = [pb.FromClient(hello=hello), pb.FromClient(request=request)]
        if random.random() < 0.3:
            ack = pb.Ack(id=random.randrange(3), ok=random.random() < 0.5, kind="temporary", delay_s=random.choice(FLOATS), detail=mutation.encoded({"a": 1}, "json"))
            messages.insert(random.randrange(3), pb.FromClient(ack=ack))
        data = [message.SerializeToString() for message in messages]
        if random.random() < 0.2:
            place = random.randrange(len(data))
            data[place] = self._mutated(data[place], mutation)
        self._session(data)

    def _session(self, data: list[bytes]) -> None:
        done = threading.Event()

        def sent() -> Iterator[bytes]:
            yield from data
            done.wait(ANSWER_S)

        session = self._wire.stream_stream(f"{SERVICE}Session", request_serializer=None, response_deserializer=None)(sent(), timeout=ANSWER_S)
        try:
            for answer in session:
                reply = pb.FromServer.FromString(answer)
                if reply.WhichOneof("message") == "reply":
                    if not reply.reply.ok:
                        self._refuse(reply.reply.error)
                    break
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Fault(f"no answer within {ANSWER_S:g} s") from None
            self._refuse(error.details() or error.code().name)
        finally:
            done.set()
            session.cancel()

    def _body(self, random: Random) -> tuple[str, Any]:
        layout = tree_of(SampleJob().layout(self._held.clock.now(), epoch=random.randrange(1, 50)))
        demand = {"declared": {"node-a": 2}, "workers_per_node": {"node-a": 2}, "weight": 1.0, "workers_min": 1}
        bodies = {
            "coordinator_of": {"job": JOB}, "present": {"node": "node-b"}, "cordon_of": {"node": "node-b", "job": JOB},
            "layout": {"layout": layout, "heal": "restart:3", "budget_left": 2, "nodes_min": 1, **demand}, "grant": {"layout": layout, "epoch": 3, "missing": ["node-b"]}, "odd": {},
        }  # fmt: skip
        kind = random.choice(list(bodies))
        return kind, bodies[kind]

    # --- the two ends --------------------------------------------------------------------------------------------

    @staticmethod
    def _mutated(data: bytes, mutation: Mutation) -> bytes:
        return mutation.data(data) if mutation.random.random() < 0.15 else data

    def _refuse(self, why: str) -> None:
        self._refused += 1
        self._told += bool(why)

    def _ask(self, name: str, data: bytes) -> bytes:
        call = self._wire.unary_unary(SERVICE + name, request_serializer=None, response_deserializer=None)
        answer: bytes = call(data, timeout=ANSWER_S)
        return answer

    @staticmethod
    async def _serve(leader: Leader) -> ControlServer:
        server = ControlServer(leader, "127.0.0.1:0", term=3, heartbeat_s=0.5, lease_s=2.0)
        await server.start()
        return server

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


def _filled(kind: type[Any], mutation: Mutation) -> bytes:
    """A message of that kind with odd values in all of its fields."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        _set(message, field, mutation)
    data: bytes = message.SerializeToString()
    return data


def _change(message: Any, mutation: Mutation) -> None:
    """Odd values in one or two of its fields."""
    fields = list(message.DESCRIPTOR.fields)
    for field in mutation.random.sample(fields, min(len(fields), mutation.random.choice((0, 1, 1, 2)))):
        _set(message, field, mutation)


def _set(message: Any, field: Any, mutation: Mutation) -> None:
    random = mutation.random
    kind = field.type
    if kind == field.TYPE_BYTES:
        value: Any = mutation.encoded({"epoch": 1, "nodes": ["a"], "x": {"y": 2.0}}, "json")
    elif kind == field.TYPE_STRING:
        value = mutation.text()
    elif kind == field.TYPE_DOUBLE:
        value = random.choice(FLOATS)
    elif kind == field.TYPE_BOOL:
        value = random.random() < 0.5
    else:
        value = random.choice((0, 1, 2**31, 2**53, 2**63 - 1))
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        getattr(message, field.name).extend([value] * random.choice((0, 1, 3)))
    else:
        setattr(message, field.name, value)


@contextmanager
def channel(folder: Path) -> Iterator[Channel]:
    """On a free port of loopback."""
    logged = Logged()
    logging.getLogger().addHandler(logged)
    subject = Channel(folder, logged)
    try:
        yield subject
    finally:
        subject.close()
        logging.getLogger().removeHandler(logged)


TARGET = Target("grpc", "control messages through the codec, and to a leader's server over a socket", channel)
