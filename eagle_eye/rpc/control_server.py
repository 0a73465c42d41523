"""Server of the control channel, in the leader and in each job's coordinator."""

import asyncio
import logging
import math
import os
import resource
from collections import Counter
from typing import Any, Protocol, runtime_checkable

import grpc
import msgspec

from eagle_eye.access import Authorization, Caller, Tokens
from eagle_eye.access.addresses import is_loopback, refuse_open
from eagle_eye.access.caller import user_name
from eagle_eye.access.credentials import Credentials, identity_of, objection
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import ControlError, EagleEyeError, TemporaryError

from . import control_pb2 as pb
from . import control_pb2_grpc as stubs
from . import protobuf_codec as wire
from .connection import Connection, PauseDetector
from .control_messages import (
    SILENT,
    TERM_JUMP,
    Body,
    Command,
    ControlResult,
    Failure,
    HeartbeatSettings,
    Hello,
    Peer,
    Request,
    Welcome,
)
from .operator_service import OperatorService, caller_of

log = logging.getLogger(__name__)

HEARTBEATS_PER_S = 2000
"""How many beats a server takes per second in all: the period of each session grows with their number."""
LONGEST_NAME = 400
"""Characters, as of a `Name`."""
SESSIONS_PER_NODE = 512
"""An agent, and a launcher of each job: a node that invents jobs without end must not take the descriptors that all others need. Without certificates of each user of a node, and
of a user whom the server does not obey on all nodes together: whichever names that user invents, it takes the sessions of no other."""
COPIES, AGREEMENT, PATH_TEST = "copies", "agreement", "path test"
"""Roles of a launcher that asks another one for the place of its copies, which step all have on a second node, and to send some bytes back: each beside its session as a
launcher, which it must not replace."""
ROLES = ("agent", "launcher", COPIES, AGREEMENT, PATH_TEST)
"""Who opens sessions."""
REQUESTS_PER_SESSION = 256
"""Requests of one session that may be under way at once; more are refused and may be sent again."""
OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port in use is an error, never half of the connections
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 5000),  # of TLS, and of HTTP/2: a connection that says nothing is closed
    ("grpc.max_connection_idle_ms", 60_000),  # without a call: a session is one
)
SHARE_OF_DESCRIPTORS = 2
"""One of so many that this process may open is for connections at most: ledger, stream and spool need theirs, whoever connects."""
TOLD_EVERY_S = 60.0


def _options() -> tuple[tuple[str, int], ...]:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (*OPTIONS, ("grpc.max_allowed_incoming_connections", max(8, min(most // SHARE_OF_DESCRIPTORS, 2**31 - 1)))) if most > 0 else OPTIONS


def _is_name(text: str) -> bool:
    """Whether a log, a record and a row of a ledger can hold it."""
    return len(text) <= LONGEST_NAME and (text.isprintable() or not text)


def _counted(peer: Peer) -> tuple[str, int | None]:
    """Whose number of sessions is bounded."""
    caller = peer.caller
    return ("" if caller.local and not caller.owns_server else peer.node, caller.user)


def _displaces(peer: Peer, held: Peer) -> bool:
    """The server's owner, and root, take back what another user of the machine holds: it is theirs, and the other was only faster."""
    return peer.caller.owns_server and held.caller.local and not held.caller.owns_server


class Handler(Protocol):
    """Who is served. `opened` and `lost` come in pairs and must not block."""

    def opened(self, peer: Peer) -> None: ...
    def lost(self, peer: Peer, reason: str) -> None: ...
    async def request(self, peer: Peer, kind: str, body: Body) -> Body: ...


@runtime_checkable
class AdmissionHandler(Protocol):
    """A handler that has a say about who opens a session, and is told of everyone who was refused. Neither method may block."""

    def objection(self, peer: Peer) -> str: ...
    def refused(self, peer: Peer, why: str) -> None: ...


class _Session:
    """A connection and who is at its other end."""

    def __init__(self, peer: Peer, connection: Connection, heard: float) -> None:
        self.peer = peer
        self.connection = connection
        self.heard = heard
        self.requests = 0
        """How many of its requests are under way."""


class ControlServer(OperatorService):
    """Keeps the sessions of all peers, sends them commands, hands their requests to the handler.

    A session is lost at once when its TCP connection closes, or after a silence of `lease_s`. The time during
    which this process itself was stopped counts as nobody's silence. Requests of one session begin in their
    order but do not wait for one another; one that is under way when its session ends is done to its end.
    """

    def __init__(
        self,
        handler: Handler,
        address: str = "127.0.0.1:0",
        *,
        term: int,
        heartbeat_s: float = 0.5,
        lease_s: float = 3.0,
        clock: Clock | None = None,
        credentials: Credentials | None = None,
        authorization: Authorization | None = None,
        insecure: bool = False,
    ) -> None:
        """`term`: the leader's; 0 for a job's coordinator.

        `credentials`: with them only who shows a certificate gets in, and sessions are bound to it. `authorization`: asks
        people who they are; default: nobody has a token. ControlError for an address beyond loopback without
        credentials, unless `insecure`.
        """
        if lease_s < 2 * heartbeat_s:
            raise ControlError(f"lease_s={lease_s:g} must be at least twice heartbeat_s={heartbeat_s:g}: one late beat is no loss")
        refuse_open(address, secured=credentials is not None, insecure=insecure)
        super().__init__(handler, address, authorization or Authorization(Tokens.none(), trust_claims=is_loopback(address), everybody=insecure))
        self.term = term
        self.superseded = 0
        """The highest term above ours that an admitted peer has seen: another leader was elected after this one, or the ledger, which numbers terms, was lost."""
        self._told_terms = -math.inf
        self._handler = handler
        self._address = address
        self._insecure = insecure
        self._credentials = credentials
        self._beat_s, self._lease_s = heartbeat_s, lease_s
        self._clock = clock or SystemClock()
        self._sessions: dict[tuple[str, str, str], _Session] = {}
        self._counts: Counter[tuple[str, int | None]] = Counter()
        """(node, user) → how many sessions they have."""
        self._server: Any = None
        self._watching: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._stopping = False

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; `port` is known afterwards. ControlError if the address is taken."""
        server = grpc.aio.server(options=_options())
        stubs.add_ControlServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated
        try:
            self.port = self._bind(server)
        except RuntimeError as error:
            await server.stop(None)
            raise ControlError(
                f"cannot listen on {self._address}: it is in use or not an address of this machine; "
                "stop the other process, choose another port, or port 0 for any free one"
            ) from error
        await server.start()
        self._server = server
        self._watching = asyncio.create_task(self._watch())

    def _bind(self, server: Any) -> int:
        if self._credentials is None:
            return int(server.add_insecure_port(self._address))
        return int(server.add_secure_port(self._address, self._credentials.server()))

    async def stop(self) -> None:
        """End every session and request; the handler gets no loss reported, since no peer was lost."""
        self._stopping = True
        for task in [*self._requests, *([self._watching] if self._watching else [])]:
            task.cancel()
        for session in list(self._sessions.values()):
            session.connection.end("the server stops")
        if self._server is not None:
            await self._server.stop(0.5)

    # --- for the owner -------------------------------------------------------------------------------------------

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Who has a session now."""
        return tuple(session.peer for session in self._sessions.values())

    @property
    def heartbeat(self) -> HeartbeatSettings:
        """The period and the lease now: at most HEARTBEATS_PER_S heartbeats a second come in, whatever the cluster's size."""
        heartbeat_s = max(self._beat_s, len(self._sessions) / HEARTBEATS_PER_S)
        return HeartbeatSettings(heartbeat_s=heartbeat_s, lease_s=self._lease_s * heartbeat_s / self._beat_s)

    def peer(self, role: str, node: str, job: str = "") -> Peer | None:
        """The peer of that name, None if it has no session."""
        session = self._sessions.get((role, node, job))
        return session.peer if session else None

    async def command(self, peer: Peer, command: Command, timeout: float) -> Body:
        """Send a command and return what it led to; `timeout` in seconds.

        A peer without `incarnation` is whichever process has that name now. Raises what the peer answered: Stale,
        TemporaryError, PermanentError or ControlError; TemporaryError if it has no session or does not answer.
        """
        session = self._sessions.get(peer.key)
        if session is None:
            raise TemporaryError(f"no session to the {peer}: {command.action!r} was not sent")
        if peer.incarnation not in ("", session.peer.incarnation):
            raise ControlError(f"the {peer} was started anew: {command.action!r} was meant for the one before")
        return await session.connection.ask(
            command.action, timeout, lambda number: wire.encode_command(msgspec.structs.replace(command, id=number))
        )

    # --- sessions ------------------------------------------------------------------------------------------------

    async def Session(self, _requests: Any, context: Any) -> None:  # noqa: N802  # gRPC's name
        hello = await self._greeted(context)
        session = self._admit(hello.peer, context)
        reason = "the connection was closed"
        try:
            reason = await session.connection.live(self._read(session, context))
            context.set_code(grpc.StatusCode.ABORTED)
            context.set_details(reason)
        finally:
            self._leave(session, reason)

    async def _greeted(self, context: Any) -> Hello:
        """The hello of a new session; aborts the call if it is none, or if it has seen a later leader."""
        try:
            async with asyncio.timeout(self._lease_s):
                first = await context.read()
        except TimeoutError:
            first = None
        if not isinstance(first, pb.FromClient) or first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a session begins with a hello")
        hello = wire.decode_hello(first.hello)
        if not (hello.peer.role and hello.peer.node and hello.peer.incarnation):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a hello needs a role, a node and an incarnation")
        if hello.peer.role not in ROLES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"sessions are opened as {' or '.join(ROLES[:2])}, not as {hello.peer.role[:LONGEST_NAME]!r}")
        if not all(map(_is_name, (hello.peer.role, hello.peer.node, hello.peer.job, hello.peer.incarnation, hello.peer.address))):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a name in the hello is longer than {LONGEST_NAME} characters, or holds some that cannot be printed")
        hello = msgspec.structs.replace(hello, peer=msgspec.structs.replace(hello.peer, caller=await self._caller(context)))
        if why := self._objection(hello.peer):
            self._tell_refused(hello.peer, why)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
        if self.term and hello.term > self.term:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._fenced_by(hello))
        return hello

    def _fenced_by(self, hello: Hello) -> str:
        """Why a peer that has seen a later leader is refused. The owner reads `superseded`; it may be a term that no leader ever had, so there is a bound to it, and to what is logged."""
        message = f"the {hello.peer} has seen leader term {hello.term}, this leader has {self.term}"
        if hello.term > self.term + TERM_JUMP:
            message += ": too far above to be believed; if it is right, start its job anew"
        else:
            self.superseded = max(self.superseded, hello.term)
        if self._clock.monotonic() - self._told_terms >= TOLD_EVERY_S:
            self._told_terms = self._clock.monotonic()
            log.warning("%s", message)
        return message

    async def _caller(self, context: Any) -> Caller:
        """What the connection proves; nothing where the configuration allows everybody."""
        if self._credentials is not None:
            return Caller(certificate=identity_of(context.auth_context()))
        if self._insecure:
            return Caller()
        return await asyncio.to_thread(caller_of, context.peer(), self.port, context.invocation_metadata())

    def _objection(self, peer: Peer) -> str:
        """Why this peer may have no session; '' if it may."""
        if self._credentials is not None and (why := objection(peer.caller.certificate, peer.node, str(peer), peer.job)):
            return why
        if self._credentials is None and not (self._insecure or peer.caller.local):
            return f"the {peer} came through a proxy, or from another machine: without certificates ([access]) only this machine's processes get a session"
        held = self._sessions.get(peer.key)
        if peer.caller.local and not peer.caller.owns_server:
            if peer.role == "agent":
                return f"{peer.caller} may not take the place of the {peer}: without certificates ([access]) agents run as {user_name(os.geteuid())}, as whom this server runs, or as root"
            if held is not None and peer.caller.user != held.peer.caller.user:
                return f"{peer.caller} may not take the place of the {peer}: {held.peer.caller} holds its session"
        if held is not None and held.peer.incarnation != peer.incarnation and not _displaces(peer, held.peer):  # one that has ended has none: its connection closed with it, or its silence is longer than the lease
            where = f" (pid {held.peer.pid}{f' at {held.peer.address}' if held.peer.address else ''})" if held.peer.pid else ""
            return f"another process{where} is the {peer}, and is alive: give each machine a node name of its own (--node), and start one agent on it, and one launcher of a job"
        if held is None and self._counts[_counted(peer)] >= SESSIONS_PER_NODE:
            return f"{_counted(peer)[0] or peer.caller} has {SESSIONS_PER_NODE} sessions already: no node has so many jobs"
        return self._handler.objection(peer) if isinstance(self._handler, AdmissionHandler) else ""

    def _admit(self, peer: Peer, context: Any) -> _Session:
        session = _Session(peer, Connection(context, f"the {peer}"), self._clock.monotonic())
        before = self._sessions.get(peer.key)
        self._sessions[peer.key] = session
        self._count(peer, 1)
        session.connection.send(wire.encode_welcome(Welcome(term=self.term, heartbeat=self.heartbeat)))
        if before is not None:
            self._count(before.peer, -1)
            before.connection.end(f"another session of the {peer} took its place")
        if before is None:
            self._tell_opened(peer)
        elif before.peer.incarnation != peer.incarnation:  # another user's process; else the same one: its former connection has broken, and that is not known here yet
            self._tell_lost(before.peer, f"it was {before.peer.caller}, in the place of {peer.caller}")
            self._tell_opened(peer)
        return session

    def _count(self, peer: Peer, sessions: int) -> None:
        key = _counted(peer)
        self._counts[key] += sessions
        if not self._counts[key]:
            del self._counts[key]

    def _leave(self, session: _Session, reason: str) -> None:
        if self._sessions.get(session.peer.key) is not session:
            return  # a newer session has its place, and its listeners were notified then
        del self._sessions[session.peer.key]
        self._count(session.peer, -1)
        if not self._stopping:
            self._tell_lost(session.peer, reason)

    async def _read(self, session: _Session, context: Any) -> str:
        while True:
            up = await context.read()
            if up is grpc.aio.EOF:
                return "it closed the session"
            session.heard = self._clock.monotonic()
            self._take(session, up)

    def _take(self, session: _Session, up: Any) -> None:
        kind = up.WhichOneof("message")
        if kind == "heartbeat":
            session.connection.send(wire.server_heartbeat(self.heartbeat))
        elif kind == "ack":
            session.connection.settle(wire.decode_ack(up.ack))
        elif kind == "request":
            task = asyncio.create_task(self._answer(session, up.request))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

    async def _watch(self) -> None:
        """End the sessions whose silence is longer than the lease."""
        period, pauses = min(self._beat_s, self._lease_s / 4), PauseDetector(self._clock)
        while True:
            await asyncio.sleep(period)
            if self._credentials is not None:
                self._credentials.remind()
            now, lease_s, was_paused = self._clock.monotonic(), self.heartbeat.lease_s, pauses.was_paused(period)
            for session in list(self._sessions.values()):
                if was_paused:
                    session.heard = now
                elif now - session.heard > lease_s:
                    session.connection.end(f"{SILENT} {lease_s:g} s")

    # --- the handler, behind a boundary -----------------------------------------------------------------------

    def _tell_opened(self, peer: Peer) -> None:
        try:
            self._handler.opened(peer)
        except Exception:  # one peer's news must not end another's session
            log.exception("handling the opened session of the %s failed", peer)

    def _tell_lost(self, peer: Peer, reason: str) -> None:
        try:
            self._handler.lost(peer, reason)
        except Exception:  # one peer's news must not end another's session
            log.exception("handling the lost session of the %s failed", peer)

    def _tell_refused(self, peer: Peer, why: str) -> None:
        if not isinstance(self._handler, AdmissionHandler):
            log.warning("%s was refused: %s", peer, why)
            return
        try:
            self._handler.refused(peer, why)
        except Exception:  # to be told of it must not let it in
            log.exception("telling that the %s was refused failed: %s", peer, why)

    async def _answer(self, session: _Session, message: Any) -> None:
        session.requests += 1
        try:
            if session.requests > REQUESTS_PER_SESSION:
                failure = Failure(kind="temporary", error=f"{session.requests} requests are under way", delay_s=1.0)
                result = ControlResult(id=message.id, failure=failure)
            else:
                result = await self._asked(session.peer, message)
        finally:
            session.requests -= 1
        session.connection.send(wire.encode_reply(result))

    async def _asked(self, peer: Peer, message: Any) -> ControlResult:
        try:
            request: Request = wire.decode_request(message)
            body = await self._handler.request(peer, request.kind, request.body)
            wire.encode_body(body)  # an answer that cannot be sent is the handler's failure, and reported as such
            return ControlResult(id=message.id, body=body)
        except EagleEyeError as error:
            return ControlResult(id=message.id, failure=Failure.of(error))
        except Exception as error:  # the peer must get an answer whatever the handler does
            log.exception("request %r of the %s failed", message.kind, peer)
            failure = Failure(kind="control", error=f"{type(error).__name__} in the handler of {message.kind!r}: {error}")
            return ControlResult(id=message.id, failure=failure)
