"""Client of the operator's calls: one request, one response, no session."""

import grpc
import msgspec

from eagle_eye.access.addresses import addresses_of
from eagle_eye.access.credentials import Credentials
from eagle_eye.access.tls_errors import explain
from eagle_eye.errors import ControlError

from . import control_pb2 as pb
from . import control_pb2_grpc as stubs
from . import protobuf_codec as wire
from .control_messages import (
    Body,
    BreakerCommand,
    Decision,
    MaintenanceCommand,
    NoteCommand,
    OperatorCommand,
    PendingPlansQuery,
    ReleaseNodeCommand,
    SilenceCommand,
)
from .operator_service import METADATA

ORDERS: dict[str, type[OperatorCommand]] = {"silence": SilenceCommand, "maintain": MaintenanceCommand, "close_breaker": BreakerCommand, "note": NoteCommand}
"""Question → what goes with it."""
QUESTIONS = ("approve", "refuse", "release", "status", "pending_plans", *ORDERS)
OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
OperatorMessage = Decision | ReleaseNodeCommand | OperatorCommand | PendingPlansQuery


def call(
    address: str,
    what: str,
    message: OperatorMessage | None = None,
    *,
    timeout: float = 5.0,
    credentials: Credentials | None = None,
    token: str = "",
) -> Body:
    """Ask a leader, at one address or the first of several (with commas) where somebody answers: approve and refuse take a Decision, release a
    ReleaseNodeCommand, pending_plans a PendingPlansQuery, status nothing, the others their OperatorCommand.

    Blocking, for the command line. Raises what the leader answered; ControlError if nobody answers.
    """
    message_pb, silent = _encoded(what, message), ""
    for each in addresses_of(address):
        try:
            return _asked(each, what, message_pb, timeout, credentials, token)
        except _NoServer as error:
            silent = silent or str(error)
    raise ControlError(silent or f"there is no address to ask {what!r} at: name the server with --server")


class _NoServer(ControlError):
    """Nobody answers at this address; a leader may be at another one."""


def _asked(address: str, what: str, message_pb: object, timeout: float, credentials: Credentials | None, token: str) -> Body:
    with _channel(address, credentials) as channel:
        try:
            stub = stubs.ControlStub(channel)  # type: ignore[no-untyped-call]  # generated
            metadata = ((METADATA, f"Bearer {token}"),) if token else ()
            answer = getattr(stub, what.title().replace("_", ""))(message_pb, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            nobody = error.code() is grpc.StatusCode.UNAVAILABLE
            raise (_NoServer if nobody else ControlError)(_why_not(address, what, credentials, error)) from None
    return wire.decode_response(answer).unwrap()


def _channel(address: str, credentials: Credentials | None) -> grpc.Channel:
    if credentials is None:
        return grpc.insecure_channel(address, options=OPTIONS)
    return grpc.secure_channel(address, credentials.channel(), options=OPTIONS)


def _why_not(address: str, what: str, credentials: Credentials | None, error: grpc.RpcError) -> str:
    details = str(error.details())
    meant = explain(address, credentials, details)
    if meant != details:
        return meant
    return (
        f"no server answered {what!r} at {address} ({error.code().name.lower()}): is `eagle-eye server` running "
        "there? name the right address with --server"
    )


def _encoded(what: str, message: msgspec.Struct | None) -> object:
    if isinstance(message, Decision) and what in ("approve", "refuse"):
        return wire.encode_decision(message)
    if isinstance(message, ReleaseNodeCommand) and what == "release":
        return wire.encode_release(message)
    if what in ORDERS and isinstance(message, ORDERS[what]):
        return wire.encode_operator_command(message)
    if isinstance(message, PendingPlansQuery) and what == "pending_plans":
        return wire.encode_pending_plans_query(message)
    if message is None and what == "status":
        return pb.StatusRequest()
    raise ControlError(f"cannot ask {what!r} with {type(message).__name__}: one of {', '.join(QUESTIONS)}")
