"""The role `lead`: stands by until it gets the leader's lease, leads while it holds it, and stands by again.

One thread runs the engine, each action has a thread of its own; the control channel runs in the event loop.
"""

import asyncio
import logging
import socket
import threading
from functools import partial

import msgspec

from eagle_eye.access import Authorization
from eagle_eye.access.credentials import Credentials
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import Clock
from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.errors import ControlError, EagleEyeError, LedgerUnavailable, Stale, StreamError
from eagle_eye.ledger import Ledger
from eagle_eye.ledger.factory import SERVER_PATIENCE_S, open_ledger
from eagle_eye.open_file_limit import is_shortage
from eagle_eye.rpc.control_server import ControlServer
from eagle_eye.stream import OUTCOMES
from eagle_eye.stream.factory import confirmed_by
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Notice
from eagle_eye.writable_text import words_of
from remediation.actions.notify import Notify
from remediation.engine.engine import Engine
from remediation.engine.intake import TOPICS, Intake
from remediation.engine.leader import Leader, SessionCommander

from .leader_election import LEASE, LeaderLease
from .process_context import LeaderContext, ProcessContext
from .service_registry import ServiceGroup, leader_services
from .thread_group import ThreadGroup

log = logging.getLogger(__name__)

TRIES_PER_LEASE = 16
"""How often a standby tries to get the lease within the length of one."""
ENGINE_PERIOD_S = 0.05
READ_S = 0.5
"""The topics are read at least this often, also without a nudge."""
STEPS_AT_ONCE = 8
SETTLE_S = 0.1
LONGEST_PAUSE_S = 60.0
"""Between two terms that could not begin; the first pause is a lease, each further one twice as long."""
FIRST_RISE_S, LONGEST_RISE_S = 2.0, 3600.0
"""How long a term lasts at least before it is ended for a higher one that a peer has seen: twice as long each time, for a peer may invent terms."""


class LeadRole:
    """Standby and leader in turn, until `stop` is set."""

    def __init__(self, context: ProcessContext, listen: str, lease_s: float, stop: threading.Event) -> None:
        self._context = context
        self._listen = listen
        self._lease_s = lease_s
        self._stop = stop
        self._waited = False
        """This process has stood by, or led: what keeps it from leading now is no mistake of its start."""
        self._above, self._rises = 0, 0
        """The highest term that a peer has seen of a ledger that was lost, and how often one was."""

    async def run(self) -> None:
        """Run until `stop` is set. Raises the error that ended a term, unless that is the loss of the lease, a want of threads, descriptors or memory,
        or what kept a standby from taking over (its port is taken, its disk is full): detection in this process goes on, and another standby may lead."""
        told, pause_s = "", self._lease_s
        while not self._stop.is_set():
            try:
                await self._take_turn(LeaderLease(self._context.ledger, self._lease_s, self._context.clock))
            except Exception as error:
                if not (is_shortage(error) or isinstance(error, _TermNotBegun)):
                    raise
                message = f"this server cannot lead for now: {words_of(error.__cause__ if isinstance(error, _TermNotBegun) and error.__cause__ else error)}; it stands by again"
                log.warning("%s", message)
                if message != told:  # it may last for hours
                    self._context.notices.put(Notice(name="leader.failing", time=self._context.clock.now(), message=message))
                told = message
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                told, pause_s = "", self._lease_s

    async def _pause(self, seconds: float) -> None:
        until = self._context.clock.monotonic() + seconds
        while not self._stop.is_set() and self._context.clock.monotonic() < until:
            await asyncio.sleep(SETTLE_S)

    async def _take_turn(self, lease: LeaderLease) -> None:
        """Stand by, and lead once."""
        if await self._stand_by(lease):
            try:
                await self._lead(lease)
            except (Stale, LedgerUnavailable) as error:
                log.warning("term %d is over: %s", lease.term, error)
            finally:
                await asyncio.to_thread(lease.resign)

    async def _stand_by(self, lease: LeaderLease) -> bool:
        """True once this process holds the lease, False when stopped before."""
        reported = ""
        while not self._stop.is_set():
            try:
                if await asyncio.to_thread(lease.acquire, self._above):
                    return True
                reason = f"{lease.holder} leads on this ledger; taking over when it ends"
            except EagleEyeError as error:
                reason = str(error)
            self._waited = True
            if reason != reported:
                reported = reason
                log.warning("standing by: %s", reason)
            await asyncio.sleep(lease.lease_s / TRIES_PER_LEASE)
        return False

    async def _lead(self, lease: LeaderLease) -> None:
        ledger = open_ledger(self._context.config, patience_s=SERVER_PATIENCE_S)
        ledger.fence_writes(LEASE, lease.term)
        try:
            await self._lead_term(lease, ledger)
        finally:
            ledger.close()

    async def _lead_term(self, lease: LeaderLease, ledger: Ledger) -> None:
        begun = threading.Event()
        try:
            term = LeaderTerm(self._context, self._listen, lease, ledger)
            superseded = await term.run(self._stop, begun, min(FIRST_RISE_S * 2.0 ** min(self._rises, 20), LONGEST_RISE_S))
        except Stale:
            raise
        except (ControlError, OSError, StreamError) as error:
            if self._waited and not begun.is_set():
                raise _TermNotBegun(words_of(error)) from error
            raise
        finally:
            self._waited = self._waited or begun.is_set()
        if superseded:
            self._above, self._rises = max(self._above, superseded), self._rises + 1


class _TermNotBegun(EagleEyeError):
    """A standby could not take over now."""


class LeaderTerm:
    """One term of a leader: engine, control channel and services, from the lease to its loss."""

    def __init__(self, context: ProcessContext, listen: str, lease: LeaderLease, ledger: Ledger) -> None:
        self._context = context
        self._listen = listen
        self._lease = lease
        self._ledger = ledger
        self._threads = ThreadGroup()
        config, clock = context.config, context.clock
        writer = SpooledWriter(
            context.stream, config.state / "spool", clock=clock, name=f"leader-{context.incarnation}", adopts="leader*.spool", on_notice=context.notices.put,
            confirmed_by=confirmed_by(config.stream),
        )  # fmt: skip
        try:
            self._leading, self._control = self._made(writer)
        except BaseException:
            writer.close()  # the next term could not open its spool
            raise

    def _made(self, writer: SpooledWriter) -> tuple[LeaderContext, ControlServer]:
        context, lease, ledger = self._context, self._lease, self._ledger
        config, clock = context.config, context.clock
        commander = SessionCommander(asyncio.get_running_loop())
        actions = plugin_wiring.actions(config, {"commander": commander, "ledger": ledger, "clock": clock})
        engine = Engine(
            ledger=ledger, actions=actions, guards=plugin_wiring.guards(config), clock=clock, settings=plugin_wiring.policy(config), places=ConfiguredPlaces(config.topology),
            leads=lambda: lease.ours,
            publish=lambda job, outcome: writer.write(OUTCOMES, job, msgspec.json.encode(outcome), keep=True),
        )  # fmt: skip
        engine.resume()
        leader = Leader(
            term=lease.term, lease_s=config.server.lease_s, ledger=ledger, operator=engine,
            write=lambda topic, key, value: writer.write(topic, key, value, keep=True), clock=clock, incarnation=lease.incarnation,
            notify=context.notices.put,
        )  # fmt: skip
        control = control_server(context, leader, self._listen, lease.term)
        commander.bind(leader, control.command)
        notify = actions.get("notify")
        leading = LeaderContext(
            term=lease.term, ledger=ledger, engine=engine, leader=leader, writer=writer, commander=commander, notify=notify if isinstance(notify, Notify) else None
        )
        return leading, control

    async def run(self, stop: threading.Event, begun: threading.Event, rise_s: float) -> int:
        """Lead until `stop` is set, another server takes the lease over, or (after `rise_s` seconds at least) a peer has seen a higher term: launchers that have would
        obey no command of this one. Returns that term, 0 for none. `begun` is set once everything runs. Raises EagleEyeError for the first thread that failed."""
        leading, threads, superseded = self._leading, self._threads, 0
        services = ServiceGroup(leader_services(self._context, leading))
        try:
            threads.start("lease", self._keep)
            await self._control.start()
            await asyncio.to_thread(services.start)
            self._begin()
            begun.set()
            rise_at = self._context.clock.monotonic() + rise_s
            while not (stop.is_set() or threads.stop.is_set() or superseded):
                leading.leader.settle()
                await asyncio.sleep(SETTLE_S)
                superseded = self._control.superseded if self._context.clock.monotonic() >= rise_at else 0
            if superseded:
                self._tell_superseded(superseded)
        finally:
            self._context.leading = None
            await self._control.stop()
            await asyncio.to_thread(services.stop)
            await threads.join()
            leading.writer.close()
        if threads.failed is not None:
            raise EagleEyeError(f"the server had to stop: {threads.failed}") from threads.failed
        return superseded

    def _tell_superseded(self, term: int) -> None:
        message = f"a peer has seen leader term {term}, and this ledger gave term {self._lease.term}: it was lost, or is of a backup; the next term is above both"
        log.warning("%s", message)
        self._context.notices.put(Notice(name="leader.superseded", time=self._context.clock.now(), message=message))

    def _begin(self) -> None:
        context, leading, threads = self._context, self._leading, self._threads
        intake = leading.intake = Intake(context.stream, self._ledger, leading.engine, context.clock, context.notices.put)
        for topic in TOPICS:
            threads.start(topic, partial(intake.look, topic, context.nudge, threads.stop))
        threads.start("engine", partial(self._decide, intake))
        context.leading = leading
        log.info("leading in term %d, control channel on %s", leading.term, self._listen)
        context.notices.put(Notice(name="leader.elected", time=context.clock.now(), message=f"{socket.gethostname()} leads in term {leading.term}"))

    def _decide(self, intake: Intake) -> None:
        """The engine's thread. A ledger that another leader has fenced, or that is away for long, ends the term and not the process."""
        try:
            drive(self._leading.engine, intake, self._context.nudge, self._threads.stop, self._context.clock)
        except (Stale, LedgerUnavailable) as error:
            log.warning("term %d is over: %s", self._lease.term, error)
            self._threads.stop.set()

    def _keep(self) -> None:
        """Renew the lease. While the ledger does not answer the engine does nothing; the term goes on unless another server has taken over."""
        lease, reported = self._lease, False
        while not self._threads.stop.wait(lease.lease_s / 4):
            try:
                if not lease.renew():
                    log.warning("another server has taken over from term %d: standing by", lease.term)
                    self._threads.stop.set()
                reported = False
            except EagleEyeError as error:
                if not reported:
                    log.warning("the leader's lease cannot be renewed; the engine does nothing once it has run out: %s", error)
                reported = True


def control_server(context: ProcessContext, leader: Leader, listen: str, term: int) -> ControlServer:
    """The control channel, with address, lease and credentials of the configuration. Raises ControlError."""
    server = context.config.server
    return ControlServer(
        leader, listen, term=term, heartbeat_s=server.lease_s / 4, lease_s=server.lease_s, clock=context.clock, insecure=server.insecure,
        credentials=Credentials.of(context.config.access, context.clock), authorization=Authorization.of(context.config, listen, context.clock),
    )  # fmt: skip


def drive(engine: Engine, intake: Intake, nudge: threading.Event, stop: threading.Event, clock: Clock) -> None:
    """The engine's loop: reads new records at once, and calls engine.tick about twenty times a second."""
    read_at = clock.monotonic()
    while not stop.is_set():
        if nudge.wait(ENGINE_PERIOD_S) or clock.monotonic() >= read_at:
            nudge.clear()
            read_at = clock.monotonic() + READ_S
            if all(intake.step() for _ in range(STEPS_AT_ONCE)):
                nudge.set()
        engine.tick()
    intake.commit()
