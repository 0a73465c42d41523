"""Client of the control channel, in a launcher or an agent; it reconnects by itself."""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from eagle_eye.access.addresses import addresses_of
from eagle_eye.access.credentials import Credentials
from eagle_eye.access.tls_errors import explain
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import ControlError, EagleEyeError, Stale, TemporaryError
from eagle_eye.writable_text import words_of

from . import control_pb2_grpc as stubs
from . import protobuf_codec as wire
from .closed_ports import ClosedPorts
from .command_fence import CommandFence
from .connection import Connection, PauseDetector, text_of
from .control_messages import (
    SILENT,
    Body,
    Command,
    ConnectionState,
    ControlResult,
    Failure,
    HeartbeatSettings,
    Hello,
    Peer,
    Request,
    Welcome,
)
from .operator_client import call

__all__ = ["ControlClient", "call"]

log = logging.getLogger(__name__)

BESIDE = frozenset({"dump", "test_paths", "status", "witness", "rejoin", "fence", "regroup", "fork", "exclude", "dismiss", "halt_workers"})
"""Commands that may run beside another one of the same job: they change nothing, or carry an epoch that orders them."""
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
"""A server that was restarted is found within about this time."""
OPTIONS = (
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the back-off of the one before
    ("grpc.enable_http_proxy", 0),
)

OnCommand = Callable[[Command], Awaitable[Body]]
OnState = Callable[[ConnectionState], None]


async def refuse_all(command: Command) -> Body:
    """The `on_command` of a process that takes none."""
    raise ControlError(f"this process takes no commands: {command.action!r}")


def ignore_state(connection: ConnectionState) -> None:
    """The `on_state` of a process that does not care."""


class ControlClient:
    """Holds one session, for as long as it is started; connects again with a jittered back-off.

    Commands of one job are done one at a time in their order, but for those in BESIDE. A command that is under way
    when its session ends is done to its end, and its answer kept by the fence: the commander sends it again.
    """

    def __init__(
        self,
        address: str | Callable[[], str],
        peer: Peer,
        *,
        on_command: OnCommand = refuse_all,
        on_state: OnState = ignore_state,
        fence: CommandFence | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        welcome_s: float = 5.0,
        credentials: Credentials | None = None,
    ) -> None:
        """`address`: host:port, or several with commas, of which the one that leads is looked for; it may be a function
        that is asked before each try; '' means: not known now.

        `fence` is shared by all clients of a launcher. `welcome_s`: how long a try may take. `credentials`: read anew
        for each try, so that a renewed certificate counts.
        """
        self._address = address if callable(address) else lambda: address
        self._peer = peer
        self._on_command, self._on_state = on_command, on_state
        self._fence = fence or CommandFence()
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()  # noqa: S311  # jitter, not secrecy
        self._welcome_s = welcome_s
        self._credentials = credentials
        self._explained = ("", "")
        """gRPC's error of the last failed try, and its explanation."""
        self._closed_ports = ClosedPorts()
        self._connection: Connection | None = None
        self._heartbeat = HeartbeatSettings(heartbeat_s=0.5, lease_s=3.0)
        self._heard = 0.0
        self._opened = asyncio.Event()
        self._hurry = asyncio.Event()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._work: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._stopped = False

    # --- for the owner -------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.ended

    async def start(self) -> None:
        """Begin to connect; returns at once. `connected` and `on_state` report when it is."""
        self._stopped = False
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Close the session and give up what is under way."""
        self._stopped = True  # gRPC may answer a cancellation with an error of the call, which would be one more try that failed
        tasks = [*self._work, *([self._running] if self._running else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running = None

    def reconnect(self, reason: str) -> None:
        """Leave the present session and connect at once to what `address` now returns."""
        self._hurry.set()
        if self._connection is not None:
            self._connection.end(reason)

    async def request(self, kind: str, body: Body, timeout: float = 5.0) -> Body:
        """Ask the server; waits for a session if there is none. `timeout` in seconds, for both together.

        Raises what the server answered; TemporaryError if it did not in time, or the session ended meanwhile.
        """
        start = self._clock.monotonic()
        try:
            async with asyncio.timeout(timeout):
                connection = await self._present()
        except TimeoutError:
            raise TemporaryError(
                f"no session to {self._address() or 'the server'}: {kind!r} waited {timeout:g} s"
            ) from None
        left = max(timeout - (self._clock.monotonic() - start), 0.0)
        return await connection.ask(kind, left, lambda number: wire.encode_request(Request(id=number, kind=kind, body=body)))

    async def _present(self) -> Connection:
        while True:
            await self._opened.wait()
            if self._connection is not None and not self._connection.ended:
                return self._connection
            self._opened.clear()  # it has just ended; the next session sets this again

    # --- the session ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures, turn, reported = 0, 0, dict[str, str]()
        while True:
            address, opened, reason = await self._try(turn, reported if failures else {})
            if self._stopped:
                return
            failures, turn = 0 if opened else failures + 1, turn + 1
            if opened or reason != reported.get(address):  # a try that fails like the one before is no news
                reported[address] = reason
                self._report(ConnectionState(connected=False, address=address, term=self._fence.term, reason=reason))
            await self._rest(failures)

    async def _try(self, turn: int, failed: dict[str, str]) -> tuple[str, bool, str]:
        """(address, whether a session began there, why it ended). `failed`: address → why the last try there failed.

        What nobody foresaw, such as a thread that the system refuses, ends this try and never the search for a server.
        """
        address = ""
        try:
            known = addresses_of(self._address())
            address = known[turn % len(known)] if known else ""
            if address in failed and await self._closed_ports.still_closed(address):
                return address, False, failed[address]
            return address, *(await self._once(address) if address else (False, "no address is known"))
        except Exception as error:
            reason = f"a session with {address or 'the server'} cannot begin here: {words_of(error)}; it is tried again"
            if failed.get(address) != reason:  # it may last for hours
                log.exception("%s", reason)
            return address, False, reason

    async def _rest(self, failures: int) -> None:
        """Back off; `reconnect` cuts it short."""
        longest = min(FIRST_RETRY_S * 2.0 ** min(failures, 10), LONGEST_RETRY_S)
        try:
            async with asyncio.timeout(longest * self._chance.uniform(0.5, 1.0)):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    async def _once(self, address: str) -> tuple[bool, str]:
        """One session from beginning to end: whether it began, and why it ended."""
        try:
            channel = self._channel(address)
        except EagleEyeError as error:  # our own files
            return False, str(error)
        try:
            call = stubs.ControlStub(channel).Session()  # type: ignore[no-untyped-call]  # generated
            welcome = await self._greet(call)
            await asyncio.to_thread(self._fence.admit_term, welcome.term)
            return True, await self._live(address, call, welcome)
        except Stale as error:
            log.warning("%s: %s", address, error)
            return False, str(error)
        except TimeoutError:
            return False, f"{address} did not answer within {self._welcome_s:g} s"
        except (grpc.aio.AioRpcError, EagleEyeError, asyncio.InvalidStateError) as error:
            return False, await self._explain(address, text_of(error))
        finally:
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        return grpc.aio.secure_channel(address, self._credentials.channel(), options=OPTIONS)

    async def _explain(self, address: str, details: str) -> str:
        """Looked into once, not at every try that fails in the same way."""
        if self._explained[0] != details:
            self._explained = details, await asyncio.to_thread(explain, address, self._credentials, details)
        return self._explained[1]

    async def _greet(self, call: Any) -> Welcome:
        async with asyncio.timeout(self._welcome_s):
            await call.write(wire.encode_hello(Hello(peer=self._peer, term=self._fence.term)))
            first = await call.read()
        if first is grpc.aio.EOF:
            raise ControlError("the server closed the session before it began")
        if first.WhichOneof("message") != "welcome":
            raise ControlError("the server did not begin with a welcome: is it another program's port?")
        return wire.decode_welcome(first.welcome)

    async def _live(self, address: str, call: Any, welcome: Welcome) -> str:
        self._heartbeat, self._heard = welcome.heartbeat, self._clock.monotonic()
        connection = self._connection = Connection(call, f"the server at {address}")
        heartbeats = asyncio.create_task(self._send_heartbeats(connection))
        self._opened.set()
        self._report(ConnectionState(connected=True, address=address, term=welcome.term))
        try:
            return await connection.live(self._read(connection, call))
        finally:
            heartbeats.cancel()
            self._opened.clear()
            self._connection = None

    async def _read(self, connection: Connection, call: Any) -> str:
        while True:
            down = await call.read()
            if down is grpc.aio.EOF:
                return "the server closed the session"
            self._heard = self._clock.monotonic()
            self._take(connection, down)

    def _take(self, connection: Connection, down: Any) -> None:
        kind = down.WhichOneof("message")
        if kind == "heartbeat":
            self._heartbeat = wire.decode_heartbeat(down.heartbeat)
        elif kind == "reply":
            connection.settle(wire.decode_reply(down.reply))
        elif kind == "command":
            task = asyncio.create_task(self._commanded(connection, down.command))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _send_heartbeats(self, connection: Connection) -> None:
        """Send heartbeats, and end the connection when the server has been silent for longer than the lease."""
        pauses = PauseDetector(self._clock)
        while True:
            connection.send(wire.client_heartbeat())
            heartbeat = self._heartbeat
            await asyncio.sleep(heartbeat.heartbeat_s)
            if self._credentials is not None:
                self._credentials.remind()
            if pauses.was_paused(heartbeat.heartbeat_s):
                self._heard = self._clock.monotonic()
            elif self._clock.monotonic() - self._heard > heartbeat.lease_s:
                connection.end(f"the server was {SILENT} {heartbeat.lease_s:g} s")

    def _report(self, connection: ConnectionState) -> None:
        try:
            self._on_state(connection)
        except Exception:  # the owner's mistake must not end the search for a server
            log.exception("telling of the session at %s failed", connection.address)

    # --- commands ------------------------------------------------------------------------------------------------

    async def _commanded(self, connection: Connection, message: Any) -> None:
        result = await self._result(message)
        connection.send(wire.encode_ack(result))

    async def _result(self, message: Any) -> ControlResult:
        try:
            command = wire.decode_command(message)
            body = await self._done(command)
            wire.encode_body(body)  # an answer that cannot be sent is the command's failure, and reported as such
            return ControlResult(id=message.id, body=body)
        except EagleEyeError as error:
            return ControlResult(id=message.id, failure=Failure.of(error))
        except Exception as error:  # the commander must get an answer whatever the command does
            log.exception("command %r failed", message.action)
            failure = Failure(kind="control", error=f"{type(error).__name__} while doing {message.action!r}: {error}")
            return ControlResult(id=message.id, failure=failure)

    async def _done(self, command: Command) -> Body:
        if command.action in BESIDE:
            return await self._fenced(command)
        async with self._turns[command.job]:
            return await self._fenced(command)

    async def _fenced(self, command: Command) -> Body:
        """Do it once: the fence is asked before it, and gets the result before the commander does."""
        known = await asyncio.to_thread(self._fence.admit, command)
        if known is not None:
            return known
        answer = await self._on_command(command)
        await asyncio.to_thread(self._fence.record, command, answer)
        return answer
