"""Messages of the control channel as plain frozen values; only this package knows protobuf."""

from typing import Annotated, Any, Literal

import msgspec

from eagle_eye.access.caller import Caller
from eagle_eye.errors import AccessDenied, ControlError, EagleEyeError, PermanentError, Stale, TemporaryError
from eagle_eye.types.entity import LARGEST

Body = dict[str, Any]
"""JSON: strings, numbers, lists, dicts and the nouns of eagle_eye/types/, which arrive as dicts (`msgspec.convert`)."""


def number_in(body: Body, name: str) -> int:
    """A number from 0 on; 0 where an answer has none, or something else in its place: whoever answers may be confused."""
    value = body.get(name)
    return value if type(value) is int and 0 < value <= LARGEST else 0


LONGEST_S = 10 * 365 * 86_400.0
Period = Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_S)]
"""Seconds, up to ten years; neither NaN nor infinite."""

AnswerDelay = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
"""Seconds after which to try again."""
HeartbeatPeriod = Annotated[float, msgspec.Meta(ge=0.001, le=3_600.0)]
"""Seconds: a shorter one would be a flood, a longer one a session that never ends."""
Term = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
TERM_JUMP = 1 << 20
"""A term is believed to be so far above the one that this end knows at most: no cluster has elected as many leaders meanwhile."""
HIGHEST_FIRST_TERM = 1 << 32
"""Of who knows none yet."""

ErrorKind = Literal["stale", "denied", "temporary", "permanent", "control"]


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values on the channel."""


class Peer(ControlMessage, frozen=True, kw_only=True):
    """The process at the other end of a session. `incarnation` differs from one start of it to the next."""

    role: str
    """launcher or agent."""
    node: str
    job: str = ""
    incarnation: str = ""
    """Empty in a question: whichever process it is now."""
    pid: int = 0
    address: str = ""
    """host:port of its own control channel; empty if it serves none."""
    caller: Caller = Caller()
    """Set by the server from the connection, never on the wire: what it proves about the process."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Who it is, whatever its life."""
        return (self.role, self.node, self.job)

    def __str__(self) -> str:
        of = f" of {self.job}" if self.job else ""
        return f"{self.role} on {self.node}{of}"


class Hello(ControlMessage, frozen=True, kw_only=True):
    """First message of a session, from the client."""

    peer: Peer
    term: int = 0
    """The highest leader term it has seen."""


class HeartbeatSettings(ControlMessage, frozen=True, kw_only=True):
    """Period of heartbeats, and how long a silence ends the session."""

    heartbeat_s: HeartbeatPeriod
    lease_s: HeartbeatPeriod


class Welcome(ControlMessage, frozen=True, kw_only=True):
    """First message from the server."""

    term: Term
    """0: the commander is no leader, but a job's coordinator."""
    heartbeat: HeartbeatSettings


class Command(ControlMessage, frozen=True, kw_only=True):
    """A command from the server; idempotent by (job, plan, step) if it has a plan."""

    action: str
    job: str = ""
    leader_term: Term = 0
    """0: no leader asked for it (the job heals itself)."""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] = 0
    """The job's epoch that the order was made for; 0: any."""
    plan: str = ""
    step: str = ""
    arguments: Body = {}
    id: int = 0
    """Given by the server that sends it; unique in a session."""


class Request(ControlMessage, frozen=True, kw_only=True):
    """A request from the client."""

    id: int
    kind: str
    body: Body


class Failure(ControlMessage, frozen=True, kw_only=True):
    """Why a command or a request was not done."""

    kind: ErrorKind
    error: str
    delay_s: AnswerDelay = 0.0

    @classmethod
    def of(cls, error: EagleEyeError) -> "Failure":
        """The message for one of our errors."""
        if isinstance(error, TemporaryError):
            return cls(kind="temporary", error=str(error), delay_s=error.delay)
        kinds: dict[ErrorKind, type[EagleEyeError]] = {"stale": Stale, "denied": AccessDenied, "permanent": PermanentError}
        kind: ErrorKind = next((kind for kind, known in kinds.items() if isinstance(error, known)), "control")
        return cls(kind=kind, error=str(error))

    def exception(self) -> EagleEyeError:
        """The error that this message carries; an unknown kind (of a newer version) is a ControlError."""
        if self.kind == "temporary":
            return TemporaryError(self.error, self.delay_s or 1.0)
        errors: dict[str, type[EagleEyeError]] = {"stale": Stale, "denied": AccessDenied, "permanent": PermanentError}
        return errors.get(self.kind, ControlError)(self.error)


class ControlResult(ControlMessage, frozen=True, kw_only=True):
    """What became of a command (ack) or of a request (reply)."""

    id: int = 0
    body: Body = {}
    failure: Failure | None = None

    def unwrap(self) -> Body:
        """The body, or the failure raised as the error that it stands for."""
        if self.failure is not None:
            raise self.failure.exception()
        return self.body


class Decision(ControlMessage, frozen=True, kw_only=True):
    """An operator approves or refuses a plan."""

    plan: str
    """Id of the plan or of its incident."""
    person: str
    """Empty on the way to the server: the person whom the token names."""
    digest: str = ""
    """Of the plan that the person saw; the server refuses a decision without one."""
    valid_s: Period = 0.0
    """How long the approval is valid; 0: as long as the server's configuration says."""
    note: str = ""
    tenant: str = ""
    """Set by the server from the token, never on the wire: whose jobs the person may decide about; empty: all."""


class PendingPlansQuery(ControlMessage, frozen=True, kw_only=True):
    """Asks which plans wait for approval."""

    plan: str = ""
    """Id of a plan or of its incident, or its digest; empty: all."""
    tenant: str = ""
    """Set by the server from the token, never on the wire: whose jobs may be seen; empty: all."""


class ReleaseNodeCommand(ControlMessage, frozen=True, kw_only=True):
    """An operator releases a cordoned node."""

    node: str
    person: str


class SilenceCommand(ControlMessage, frozen=True, kw_only=True):
    """An operator makes a silence, or ends the one of that id."""

    person: str
    id: str = ""
    """To end; empty: make one."""
    job: str = ""
    """Pattern of tenant/name/run, the run may be left out; empty: every job."""
    node: str = ""
    cause: str = ""
    seconds: Period = 0.0
    reason: str = ""
    ahead: bool = False
    """What it is for may not be known yet."""


class MaintenanceCommand(ControlMessage, frozen=True, kw_only=True):
    """An operator announces planned work, or ends the window of that id."""

    person: str
    id: str = ""
    """To end; empty: announce."""
    nodes: tuple[str, ...] = ()
    """Patterns."""
    jobs: tuple[str, ...] = ()
    begins_in_s: Period = 0.0
    seconds: Period = 0.0
    reason: str = ""
    ahead: bool = False
    """What it is for may not be known yet."""


class BreakerCommand(ControlMessage, frozen=True, kw_only=True):
    """An operator closes a breaker: its action may be tried on its job again."""

    id: str
    person: str


class NoteCommand(ControlMessage, frozen=True, kw_only=True):
    """An operator writes a note about an incident."""

    incident: str
    """Its id, or the beginning of it."""
    person: str
    text: str


OperatorCommand = SilenceCommand | MaintenanceCommand | BreakerCommand | NoteCommand
"""Commands of operators beside approvals and releases."""


SILENT = "silent for longer than"
"""In the reason of a session's end where nothing says that the other process has ended: nothing was heard for a lease."""


class ConnectionState(ControlMessage, frozen=True, kw_only=True):
    """What a client reports to its owner when its session begins or ends."""

    connected: bool
    address: str
    term: int = 0
    reason: str = ""
    """Why it ended or could not begin."""
