"""The operator's calls: one question, one answer, no session."""

import grpc
import msgspec

from eagle_eye.errors import ControlError

from . import control_pb2 as pb
from . import control_pb2_grpc as stubs
from . import translation as wire
from .messages import Body, BreakerOrder, Decision, MaintenanceOrder, NoteOrder, Order, Release, SilenceOrder

ORDERS: dict[str, type[Order]] = {"silence": SilenceOrder, "maintain": MaintenanceOrder, "close_breaker": BreakerOrder, "note": NoteOrder}
"""Question → what goes with it."""
QUESTIONS = ("approve", "refuse", "release", "status", *ORDERS)


def call(address: str, what: str, message: Decision | Release | Order | None = None, *, timeout: float = 5.0) -> Body:
    """Ask a leader: approve and refuse take a Decision, release a Release, status nothing, the others their Order.

    Blocking, for the command line. Raises what the leader answered; ControlError if nobody answers.
    """
    words = _words(what, message)
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            stub = stubs.ControlStub(channel)  # type: ignore[no-untyped-call]  # generated
            answer = getattr(stub, what.title().replace("_", ""))(words, timeout=timeout)
        except grpc.RpcError as error:
            raise ControlError(
                f"no server answered {what!r} at {address} ({error.code().name.lower()}): is `eagle-eye server` running "
                "there? name the right address with --server"
            ) from None
    return wire.answer_of(answer).unwrap()


def _words(what: str, message: msgspec.Struct | None) -> object:
    if isinstance(message, Decision) and what in ("approve", "refuse"):
        return wire.decision_words(message)
    if isinstance(message, Release) and what == "release":
        return wire.release_words(message)
    if what in ORDERS and isinstance(message, ORDERS[what]):
        return wire.order_words(message)
    if message is None and what == "status":
        return pb.StatusRequest()
    raise ControlError(f"cannot ask {what!r} with {type(message).__name__}: one of {', '.join(QUESTIONS)}")
