"""The server: one leader at a time, which detects, diagnoses, decides and commands.

Three threads beside the event loop of the control channel: the runner reads the stream, the engine decides, and
each action runs in one of its own.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

import msgspec

from detectors.diagnosis import Diagnosis
from detectors.learning import Learning, learners
from detectors.runner import Runner
from eagle_eye.app import parts
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import EagleEyeError
from eagle_eye.frames import Frame
from eagle_eye.ledger import Holder, Ledger
from eagle_eye.rpc.server import ControlServer
from eagle_eye.stream import OBSERVATIONS, OUTCOMES, Stream
from eagle_eye.stream.opening import open_stream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import ConfigChange, Incident, Notice
from remediation.actions.notify import Notify
from remediation.engine import Engine
from remediation.leader import Leader, SessionCommander
from remediation.outbox import Outbox, outbox_of

log = logging.getLogger(__name__)

LEASE = "leader"
ENGINE_PERIOD_S = 0.05
SETTLE_S = 0.1
JOIN_S = 5.0
"""How long each thread may take to end."""
LEASE_FACTOR = 2.0
"""The lease in the ledger lasts so many session leases: a leader outlives a short pause of its machine."""


def serve(config: Config, listen: str = "") -> None:
    """Run until Ctrl-C, SIGTERM or the loss of the lease. Raises an EagleEyeError for what cannot be started."""
    parts.log_to_stderr()
    parts.check(config, "the configuration")
    asyncio.run(Server(config, listen or config.server.listen, SystemClock()).run())


class Server:
    """One process of the server."""

    def __init__(self, config: Config, listen: str, clock: Clock) -> None:
        self._config = config
        self._listen = listen
        self._clock = clock
        self._holder = Holder(host=socket.gethostname(), pid=os.getpid(), boot=secrets.token_hex(6))
        self._lease_s = config.server.lease_s * LEASE_FACTOR
        self._stop = threading.Event()
        self._leads_until = 0.0
        """Monotonic time until which the lease is ours for sure."""
        self._failed: BaseException | None = None

    async def run(self) -> None:
        """Wait for the lease, lead, give it back."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        parts.make_directories(self._config)
        ledger = Ledger.open(self._config.state / "ledger.sqlite")
        try:
            term = await self._stand_by(ledger)
            if term is not None:
                await self._lead(ledger, term)
        finally:
            ledger.resign(LEASE, self._holder, self._clock.now())
            ledger.close()
        if self._failed is not None:
            raise EagleEyeError(f"the server had to stop: {self._failed}") from self._failed

    # --- the lease -----------------------------------------------------------------------------------------------------

    async def _stand_by(self, ledger: Ledger) -> int | None:
        """The term, once the lease is ours; None if we are told to stop before."""
        named = ""
        while not self._stop.is_set():
            term = ledger.acquire(LEASE, self._holder, self._lease_s, self._clock.now())
            if term is not None:
                ledger.write_as(LEASE, term)
                return term
            holder = str(ledger.holder_of(LEASE))
            if holder != named:
                named = holder
                log.warning("standing by: %s leads on this ledger; taking over when it ends", holder)
            await asyncio.sleep(self._lease_s / 8)
        return None

    async def _keep_lease(self, ledger: Ledger, term: int) -> None:
        """Renew it until told to stop. A ledger that does not answer may come back; once the lease has run out, or another has it, stop."""
        while not self._stop.is_set():
            await asyncio.sleep(self._lease_s / 4)
            asked = self._clock.monotonic()
            try:
                if not await asyncio.to_thread(ledger.renew, LEASE, self._holder, term, self._lease_s, self._clock.now()):
                    self._leads_until = 0.0
                    self._fail(EagleEyeError(f"another server has taken over from term {term}"))
                    return
                self._leads_until = asked + self._lease_s
            except EagleEyeError as error:
                log.warning("the lease could not be renewed: %s", error)
                if not self._leads():
                    self._fail(EagleEyeError(f"the lease of term {term} ran out: {error}"))

    def _leads(self) -> bool:
        """Asked before every step of an action: a leader whose lease may have run out does nothing."""
        return self._clock.monotonic() < self._leads_until

    # --- leading -------------------------------------------------------------------------------------------------------

    async def _lead(self, ledger: Ledger, term: int) -> None:
        self._leads_until = self._clock.monotonic() + self._lease_s
        stream = open_stream(self._config, self._clock)
        writer = SpooledWriter(stream, self._config.state / "spool", clock=self._clock, name="leader", on_notice=ledger.save_notice)
        commander = SessionCommander(asyncio.get_running_loop())
        engine, outbox = self._engine(ledger, commander, writer)
        engine.resume()
        leader = Leader(
            term=term, lease_s=self._config.server.lease_s, ledger=ledger, operator=engine,
            write=lambda topic, key, value: writer.write(topic, key, value, keep=True), clock=self._clock, boot=self._holder.boot,
        )  # fmt: skip
        control = ControlServer(
            leader, self._listen, term=term, beat_s=self._config.server.lease_s / 4, lease_s=self._config.server.lease_s,
            clock=self._clock, insecure=self._config.server.insecure,
        )  # fmt: skip
        commander.bind(leader, control.command)
        inbox: Inbox = SimpleQueue()
        runners = [self._runner(stream, partition, ledger, inbox, term) for partition in range(stream.partitions(OBSERVATIONS))]
        await control.start()
        log.info("leading in term %d, control channel on %s", term, self._listen)
        ledger.save_notice(Notice(name="leader.began", time=self._clock.now(), message=f"{self._holder.host} leads in term {term}"))
        threads = [self._thread("runner", partial(runner.run, self._stop)) for runner in runners]
        threads.append(self._thread("engine", lambda: drive(engine, inbox, self._stop)))
        if outbox is not None:
            outbox.start()
        keeper = asyncio.create_task(self._keep_lease(ledger, term))
        try:
            while not self._stop.is_set():
                leader.settle()
                await asyncio.sleep(SETTLE_S)
        finally:
            keeper.cancel()
            await control.stop()
            if outbox is not None:
                await asyncio.to_thread(outbox.stop)
            for thread in threads:
                await asyncio.to_thread(thread.join, JOIN_S)
            writer.close()
            stream.close()

    def _engine(self, ledger: Ledger, commander: SessionCommander, writer: SpooledWriter) -> tuple[Engine, Outbox | None]:
        """What decides, and what sends its letters (None where `notify` is switched off)."""
        actions = parts.actions(self._config, {"commander": commander, "ledger": ledger, "clock": self._clock})
        engine = Engine(
            ledger=ledger, actions=actions, guards=parts.guards(self._config), clock=self._clock,
            policy=parts.policy(self._config), leads=self._leads,
            publish=lambda job, outcome: writer.write(OUTCOMES, job, msgspec.json.encode(outcome), keep=True),
        )  # fmt: skip
        notify = actions.get("notify")
        return engine, outbox_of(notify, ledger, self._clock) if isinstance(notify, Notify) else None

    def _runner(self, stream: Stream, partition: int, ledger: Ledger, inbox: "Inbox", term: int) -> Runner:
        found = parts.detectors(self._config)
        lessons = learners(name for name, _ in found)
        return Runner(
            stream, partition, found, Diagnosis(), clock=self._clock, generation=term, on_frame=inbox.put, on_incidents=inbox.put,
            on_findings=ledger.save_findings, on_notice=ledger.save_notice, records=self._config.state / "records",
            learning=Learning(lessons, directory=self._config.state / "baselines", clock=self._clock, on_notice=ledger.save_notice),
            config=ConfigChange(digest=self._config.digest, text=""),
        )  # fmt: skip

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # boundary: a thread that dies in silence would leave a leader that does nothing
                log.exception("the %s failed", name)
                self._fail(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._stop.set()


Inbox = SimpleQueue[Frame | Sequence[Incident]]
"""What the runner hands to the engine, in order."""


def drive(engine: Engine, inbox: Inbox, stop: threading.Event) -> None:
    """The engine's loop: whatever the runner hands over at once, and its own clock about twenty times a second."""
    while not stop.is_set():
        try:
            item = inbox.get(timeout=ENGINE_PERIOD_S)
            while True:
                if isinstance(item, Frame):
                    engine.follow(item)
                else:
                    engine.consider(item)
                item = inbox.get_nowait()
        except Empty:
            pass
        engine.tick()
