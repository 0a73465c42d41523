"""What `lead` runs: it stands by, leads while the lease is its own, and stands by again.

One thread drives the engine, each action has one of its own; the control channel lives in the event loop.
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
from eagle_eye.errors import EagleEyeError, LedgerUnavailable, Stale
from eagle_eye.ledger import Ledger
from eagle_eye.ledger.factory import SERVER_PATIENCE_S, open_ledger
from eagle_eye.rpc.control_server import ControlServer
from eagle_eye.stream import OUTCOMES
from eagle_eye.stream.factory import confirmed_by
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Notice
from remediation.actions.notify import Notify
from remediation.engine.engine import Engine
from remediation.engine.intake import TOPICS, Intake
from remediation.engine.leader import Leader, SessionCommander

from .leader_lease import LEASE, Seat
from .service_registry import Around, Leading, Running, of_leader
from .thread_group import Threads

log = logging.getLogger(__name__)

LOOKS = 16
"""Of a standby at the lease, within the time of one."""
ENGINE_PERIOD_S = 0.05
READ_S = 0.5
"""So often the topics are read without having been told of news."""
STEPS_AT_ONCE = 8
SETTLE_S = 0.1


class Lead:
    """The leader's side of a process, or a standby's."""

    def __init__(self, around: Around, listen: str, lease_s: float, stop: threading.Event) -> None:
        self._around = around
        self._listen = listen
        self._lease_s = lease_s
        self._stop = stop

    async def run(self) -> None:
        """Until told to stop. Raises what ended a term other than the loss of the lease."""
        while not self._stop.is_set():
            seat = Seat(self._around.ledger, self._lease_s, self._around.clock)
            if await self._stand_by(seat):
                try:
                    await self._lead(seat)
                except (Stale, LedgerUnavailable) as error:
                    log.warning("the term %d is over: %s", seat.term, error)
                finally:
                    await asyncio.to_thread(seat.resign)

    async def _stand_by(self, seat: Seat) -> bool:
        """True once the lease is ours, False when told to stop before."""
        named = ""
        while not self._stop.is_set():
            try:
                if await asyncio.to_thread(seat.take):
                    return True
                reason = f"{seat.holder} leads on this ledger; taking over when it ends"
            except EagleEyeError as error:
                reason = str(error)
            if reason != named:
                named = reason
                log.warning("standing by: %s", reason)
            await asyncio.sleep(seat.lease_s / LOOKS)
        return False

    async def _lead(self, seat: Seat) -> None:
        ledger = open_ledger(self._around.config, patience_s=SERVER_PATIENCE_S)
        ledger.write_as(LEASE, seat.term)
        try:
            await Term(self._around, self._listen, seat, ledger).run(self._stop)
        finally:
            ledger.close()


class Term:
    """One term of a leader, from its first moment to its last."""

    def __init__(self, around: Around, listen: str, seat: Seat, ledger: Ledger) -> None:
        self._around = around
        self._listen = listen
        self._seat = seat
        self._ledger = ledger
        self._threads = Threads()
        config, clock = around.config, around.clock
        writer = SpooledWriter(
            around.stream, config.state / "spool", clock=clock, name="leader", on_notice=around.notices.put,
            confirmed_by=confirmed_by(config.stream),
        )  # fmt: skip
        commander = SessionCommander(asyncio.get_running_loop())
        actions = plugin_wiring.actions(config, {"commander": commander, "ledger": ledger, "clock": clock})
        engine = Engine(
            ledger=ledger, actions=actions, guards=plugin_wiring.guards(config), clock=clock, policy=plugin_wiring.policy(config), leads=lambda: seat.ours,
            publish=lambda job, outcome: writer.write(OUTCOMES, job, msgspec.json.encode(outcome), keep=True),
        )  # fmt: skip
        engine.resume()
        leader = Leader(
            term=seat.term, lease_s=config.server.lease_s, ledger=ledger, operator=engine,
            write=lambda topic, key, value: writer.write(topic, key, value, keep=True), clock=clock, boot=seat.boot,
        )  # fmt: skip
        self._control = control_server(around, leader, listen, seat.term)
        commander.bind(leader, self._control.command)
        notify = actions.get("notify")
        self._leading = Leading(
            term=seat.term, ledger=ledger, engine=engine, leader=leader, writer=writer, commander=commander, notify=notify if isinstance(notify, Notify) else None
        )

    async def run(self, stop: threading.Event) -> None:
        """Lead until told to stop, or until another does. Raises EagleEyeError for what failed."""
        leading, threads = self._leading, self._threads
        services = Running(of_leader(self._around, leading))
        threads.start("lease", self._keep)
        try:
            await self._control.start()
            await asyncio.to_thread(services.start)
            self._begin()
            while not (stop.is_set() or threads.stop.is_set()):
                leading.leader.settle()
                await asyncio.sleep(SETTLE_S)
        finally:
            self._around.leading = None
            await self._control.stop()
            await asyncio.to_thread(services.stop)
            await threads.join()
            leading.writer.close()
        if threads.failed is not None:
            raise EagleEyeError(f"the server had to stop: {threads.failed}") from threads.failed

    def _begin(self) -> None:
        around, leading, threads = self._around, self._leading, self._threads
        intake = Intake(around.stream, self._ledger, leading.engine, around.clock)
        for topic in TOPICS:
            threads.start(topic, partial(intake.look, topic, around.nudge, threads.stop))
        threads.start("engine", partial(self._decide, intake))
        around.leading = leading
        log.info("leading in term %d, control channel on %s", leading.term, self._listen)
        around.notices.put(Notice(name="leader.began", time=around.clock.now(), message=f"{socket.gethostname()} leads in term {leading.term}"))

    def _decide(self, intake: Intake) -> None:
        """The engine's thread. A ledger that is another leader's by now, or away for long, ends the term and not the process."""
        try:
            drive(self._leading.engine, intake, self._around.nudge, self._threads.stop, self._around.clock)
        except (Stale, LedgerUnavailable) as error:
            log.warning("the term %d is over: %s", self._seat.term, error)
            self._threads.stop.set()

    def _keep(self) -> None:
        """Renew the lease. While the ledger does not answer nothing is done; the term goes on unless another has taken over meanwhile."""
        seat, told = self._seat, False
        while not self._threads.stop.wait(seat.lease_s / 4):
            try:
                if not seat.renew():
                    log.warning("another server has taken over from term %d: standing by", seat.term)
                    self._threads.stop.set()
                told = False
            except EagleEyeError as error:
                if not told:
                    log.warning("the lease cannot be renewed, and nothing is done once it has run out: %s", error)
                told = True


def control_server(around: Around, leader: Leader, listen: str, term: int) -> ControlServer:
    """The control channel, on the address and with the rhythm of the configuration. Raises ControlError."""
    server = around.config.server
    return ControlServer(
        leader, listen, term=term, heartbeat_s=server.lease_s / 4, lease_s=server.lease_s, clock=around.clock, insecure=server.insecure,
        credentials=Credentials.of(around.config.access, around.clock), gate=Authorization.of(around.config, listen, around.clock),
    )  # fmt: skip


def drive(engine: Engine, intake: Intake, nudge: threading.Event, stop: threading.Event, clock: Clock) -> None:
    """The engine's loop: whatever is to be read at once, and its own clock about twenty times a second."""
    read_at = clock.monotonic()
    while not stop.is_set():
        if nudge.wait(ENGINE_PERIOD_S) or clock.monotonic() >= read_at:
            nudge.clear()
            read_at = clock.monotonic() + READ_S
            if all(intake.step() for _ in range(STEPS_AT_ONCE)):
                nudge.set()
        engine.tick()
    intake.commit()
