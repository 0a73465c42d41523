"""What `lead` runs: it stands by, leads while the lease is its own, and stands by again.

One thread drives the engine, each action has one of its own; the control channel lives in the event loop.
"""

import asyncio
import logging
import os
import secrets
import socket
import threading
from functools import partial
from queue import Empty

import msgspec

from eagle_eye.access import Gate
from eagle_eye.access.credentials import Credentials
from eagle_eye.app import parts
from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Holder, Ledger
from eagle_eye.ledger.opening import SERVER_PATIENCE_S, open_ledger
from eagle_eye.rpc.server import ControlServer
from eagle_eye.stream import OBSERVATIONS, OUTCOMES
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Notice, Pulse
from remediation.actions.notify import Notify
from remediation.engine import Engine
from remediation.leader import Leader, SessionCommander

from .detecting import Inbox, runner_of
from .services import Around, Leading, Running, of_leader
from .threads import Threads

log = logging.getLogger(__name__)

LEASE = "leader"
ENGINE_PERIOD_S = 0.05
SETTLE_S = 0.1
LEASE_FACTOR = 2.0
"""The lease in the ledger lasts so many session leases: a leader outlives a short pause of its machine."""


class Seat:
    """The lease of the leader: ours for one term, or another's."""

    def __init__(self, ledger: Ledger, lease_s: float, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._holder = Holder(host=socket.gethostname(), pid=os.getpid(), boot=secrets.token_hex(6))
        """Of one term: who loses the lease comes back as somebody else, under a new term."""
        self.lease_s = lease_s
        self.term = 0
        self._until = 0.0
        """Monotonic time until which the lease is ours for sure."""

    @property
    def ours(self) -> bool:
        """Asked before every step of an action: a leader whose lease may have run out does nothing."""
        return self._clock.monotonic() < self._until

    def take(self) -> bool:
        """Take it if it is free. Raises LedgerError."""
        asked = self._clock.monotonic()
        term = self._ledger.acquire(LEASE, self._holder, self.lease_s, self._clock.now())
        if term is not None:
            self.term, self._until = term, asked + self.lease_s
        return term is not None

    def renew(self) -> bool:
        """False once another has it. Raises LedgerError; then it stays ours until it runs out."""
        asked = self._clock.monotonic()
        renewed = self._ledger.renew(LEASE, self._holder, self.term, self.lease_s, self._clock.now())
        self._until = asked + self.lease_s if renewed else 0.0
        return renewed

    def resign(self) -> None:
        """Give it up, so that the next one need not wait; a ledger that is away lets it run out."""
        self._until = 0.0
        try:
            self._ledger.resign(LEASE, self._holder, self._clock.now())
        except EagleEyeError as error:
            log.warning("the lease could not be given up: %s", error)

    @property
    def holder(self) -> str:
        """Who has it, in words."""
        return str(self._ledger.holder_of(LEASE))


class Lead:
    """The leader's side of a process, or a standby's."""

    def __init__(self, around: Around, listen: str, stop: threading.Event) -> None:
        self._around = around
        self._listen = listen
        self._stop = stop
        self._lease_s = around.config.server.lease_s * LEASE_FACTOR

    async def run(self) -> None:
        """Until told to stop. Raises what ended a term other than the loss of the lease."""
        while not self._stop.is_set():
            seat = Seat(self._around.ledger, self._lease_s, self._around.clock)
            if await self._stand_by(seat):
                try:
                    await self._lead(seat)
                finally:
                    seat.resign()

    async def _stand_by(self, seat: Seat) -> bool:
        """True once the lease is ours, False when told to stop before."""
        named = ""
        while not self._stop.is_set():
            try:
                if seat.take():
                    return True
                reason = f"{seat.holder} leads on this ledger; taking over when it ends"
            except EagleEyeError as error:
                reason = str(error)
            if reason != named:
                named = reason
                log.warning("standing by: %s", reason)
            await asyncio.sleep(seat.lease_s / 8)
        return False

    async def _lead(self, seat: Seat) -> None:
        ledger = open_ledger(self._around.config, patience_s=SERVER_PATIENCE_S)
        ledger.write_as(LEASE, seat.term)
        term = Term(self._around, self._listen, seat, ledger)
        try:
            await term.run(self._stop)
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
        self._writer = SpooledWriter(around.stream, config.state / "spool", clock=clock, name="leader", on_notice=ledger.save_notice)
        commander = SessionCommander(asyncio.get_running_loop())
        actions = parts.actions(config, {"commander": commander, "ledger": ledger, "clock": clock})
        self._engine = Engine(
            ledger=ledger, actions=actions, guards=parts.guards(config), clock=clock, policy=parts.policy(config), leads=lambda: seat.ours,
            publish=lambda job, outcome: self._writer.write(OUTCOMES, job, msgspec.json.encode(outcome), keep=True),
        )  # fmt: skip
        self._engine.resume()
        self._leader = Leader(
            term=seat.term, lease_s=config.server.lease_s, ledger=ledger, operator=self._engine,
            write=lambda topic, key, value: self._writer.write(topic, key, value, keep=True), clock=clock, boot=around.boot,
        )  # fmt: skip
        self._control = control_server(around, self._leader, listen, seat.term)
        commander.bind(self._leader, self._control.command)
        notify = actions.get("notify")
        self._leading = Leading(
            term=seat.term, ledger=ledger, engine=self._engine, leader=self._leader, writer=self._writer,
            notify=notify if isinstance(notify, Notify) else None
        )

    async def run(self, stop: threading.Event) -> None:
        """Lead until told to stop, or until the lease is lost. Raises EagleEyeError for what failed."""
        around, threads = self._around, self._threads
        services = Running(of_leader(around, self._leading))
        try:
            await self._control.start()
            await services.start()
            self._begin()
            keeper = asyncio.create_task(self._keep())
            while not (stop.is_set() or threads.stop.is_set()):
                self._leader.settle()
                await asyncio.sleep(SETTLE_S)
            keeper.cancel()
        finally:
            around.leading = None
            await self._control.stop()
            await services.stop()
            await threads.join()
            around.runners.clear()
            self._writer.close()
        if threads.failed is not None:
            raise EagleEyeError(f"the server had to stop: {threads.failed}") from threads.failed

    def _begin(self) -> None:
        around, term, inbox = self._around, self._seat.term, Inbox()
        for partition in range(around.stream.partitions(OBSERVATIONS)):
            runner = around.runners[partition] = runner_of(around, partition, term, inbox, self._ledger.save_findings)
            self._threads.start("runner", partial(runner.run, self._threads.stop))
        self._threads.start("engine", lambda: drive(self._engine, inbox, self._threads.stop))
        around.leading = self._leading
        log.info("leading in term %d, control channel on %s", term, self._listen)
        self._ledger.save_notice(Notice(name="leader.began", time=around.clock.now(), message=f"{socket.gethostname()} leads in term {term}"))

    async def _keep(self) -> None:
        """Renew the lease. A ledger that does not answer may come back; once the lease has run out, or another has it, the term is over."""
        seat = self._seat
        while True:
            await asyncio.sleep(seat.lease_s / 4)
            try:
                if not await asyncio.to_thread(seat.renew):
                    log.warning("another server has taken over from term %d: standing by", seat.term)
            except EagleEyeError as error:
                log.warning("the lease could not be renewed: %s", error)
            if not seat.ours:
                self._threads.stop.set()
                return


def control_server(around: Around, leader: Leader, listen: str, term: int) -> ControlServer:
    """The control channel, on the address and with the rhythm of the configuration. Raises ControlError."""
    server = around.config.server
    return ControlServer(
        leader, listen, term=term, beat_s=server.lease_s / 4, lease_s=server.lease_s, clock=around.clock, insecure=server.insecure,
        credentials=Credentials.of(around.config.access, around.clock), gate=Gate.of(around.config, listen, around.clock),
    )  # fmt: skip


def drive(engine: Engine, inbox: Inbox, stop: threading.Event) -> None:
    """The engine's loop: whatever the runner hands over at once, and its own clock about twenty times a second."""
    while not stop.is_set():
        try:
            item = inbox.get(timeout=ENGINE_PERIOD_S)
            while True:
                for told in item:
                    if isinstance(told, Pulse):
                        engine.follow(told)
                    else:
                        engine.consider([told])
                item = inbox.get_nowait()
        except Empty:
            pass
        engine.tick()
