"""The agent of a node: asks the collectors, makes one batch a second for each job here, sends events at once.

It works alone: without a server, and with the stream away (then the writer spools). One thread decides when and
who; every collector has a thread of its own, so that one that hangs costs only its own numbers.
"""

import logging
import math
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import msgspec

from eagle_eye import plugins
from eagle_eye.access.credentials import node_credentials
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.factory import confirmed_by, open_stream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Batch, Event, Kind, Notice, Reading, StepReading
from eagle_eye.wire import encode

from .batch_builder import BatchBuilder
from .job_registry import JobRegistry
from .lazy_stream import LazyStream
from .leader_session import LeaderSession
from .schedule import CollectorResult, CollectorThread, HealthChange, Schedule
from .unsigned_event import unsigned_event

log = logging.getLogger(__name__)

SCHEMAS_AGAIN_S = 60.0
LONGEST_WAIT_S = 0.5
CLOSE_S = 1.0
"""Time for the last records to reach the stream, or the spool, when the agent ends."""


class RecordWriter(Protocol):
    """What the agent needs of `SpooledWriter`: it takes records at once and never raises."""

    def write(self, topic: str, key: str, value: bytes, *, keep: bool = False) -> None: ...


Inbox = SimpleQueue[CollectorResult | Notice]
"""What others tell the agent: collectors their answers, the writer how the stream does."""


class Agent:
    """One node's agent. `turn` does what is to be done now; `run` does so until it is told to stop."""

    def __init__(
        self,
        node: str,
        collectors: list[CollectorThread],
        writer: RecordWriter,
        jobs: JobRegistry,
        inbox: Inbox,
        *,
        clock: Clock,
        boot: str,
        batch_s: float = 1.0,
        idle: bool = False,
    ) -> None:
        """`boot`: a new name for each life of the agent; `idle`: report as idle while there is no job."""
        self.node, self.boot = node, boot
        self._collectors = {watched.name: watched for watched in collectors}
        self._writer, self._jobs, self._inbox, self._clock = writer, jobs, inbox, clock
        self._batch_s, self._idle = batch_s, idle
        self._gathered = BatchBuilder(jobs.job_of)
        self._second: int | None = None
        self._numbers: dict[str, int] = {}
        self._events = 0
        self._schemas_sent: dict[tuple[str, str], float] = {}
        jobs.look(clock.now())

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        for watched in self._collectors.values():
            watched.start(self._inbox)  # type: ignore[arg-type]  # it only puts answers in
        try:
            while not stop.is_set():
                self.turn()
                self._wait()
        finally:
            for watched in self._collectors.values():
                watched.close()

    def turn(self) -> None:
        """Take in what was answered, make the batch if a second has begun, ask whoever is due."""
        self._take_answers()
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        for watched in self._collectors.values():
            self._tell(watched, watched.schedule.watch(monotonic))
        second = math.floor(wall / self._batch_s)
        if second != self._second:
            first, self._second = self._second is None, second
            if not first:  # a batch of less than a second would have no numbers yet
                self._send_batches(wall)
        for watched in self._collectors.values():
            if watched.schedule.due(wall, monotonic):
                watched.schedule.asked(wall, monotonic)
                watched.ask()

    def status(self) -> dict[str, dict[str, str]]:
        """How each collector does: health, reason, and why it has nothing to read where that is so."""
        return {
            name: {
                "health": str(watched.schedule.health),
                "reason": watched.schedule.reason,
                "unavailable": getattr(watched.collector, "unavailable", ""),
            }
            for name, watched in self._collectors.items()
        }

    # --- waiting and answers

    def _wait(self) -> None:
        """Sleep until somebody answers, a collector is due or a second begins."""
        wall = self._clock.now()
        waits = [watched.schedule.next_in(wall) for watched in self._collectors.values()]
        timeout = min([self._batch_s - wall % self._batch_s, LONGEST_WAIT_S, *waits])
        try:
            first = self._inbox.get(timeout=max(timeout, 0.001))
        except Empty:
            return
        self._take(first)

    def _take_answers(self) -> None:
        while True:
            try:
                answer = self._inbox.get_nowait()
            except Empty:
                return
            self._take(answer)

    def _take(self, answer: CollectorResult | Notice) -> None:
        if isinstance(answer, Notice):
            self._noticed(answer)
            return
        watched = self._collectors[answer.name]
        self._tell(watched, watched.schedule.answered(self._clock.monotonic(), answer.error))
        for found in answer.found:
            if isinstance(found, Event):
                self._send_event(found)
            else:
                self._meet(found)
                self._gathered.add(found)

    def _meet(self, found: Reading | StepReading) -> None:
        """A collector may see a new job before the next batch looks for it; its first steps are told only once."""
        if isinstance(found, StepReading) and not all(self._jobs.job_of(worker) for worker in found.workers):
            self._jobs.look(self._clock.now())

    def _noticed(self, notice: Notice) -> None:
        """The writer has logged it; what was dropped is told to whoever reads the stream, too."""
        if notice.name in ("stream.recovered", "stream.reset"):
            self._schemas_sent.clear()  # the stream may have begun anew
        elif notice.name == "spool.dropped":
            self._send_event(unsigned_event(notice.name, Kind.NODE, self.node, notice.time, notice.message))

    def _tell(self, watched: CollectorThread, change: HealthChange | None) -> None:
        if change is None:
            return
        words = f"collector {watched.name}: {change.reason}"
        log.warning("%s: %s", change.name, words)
        now = self._clock.now()
        self._send_event(
            unsigned_event(change.name, Kind.NODE, self.node, now, words, collector=watched.name, reason=change.reason)
        )

    # --- records

    def _targets(self) -> tuple[str, ...]:
        """Jobs that this node sends to: those that run here, else the place for idle nodes, if it is idle."""
        running = self._jobs.running
        return running or ((f"idle/{self.node}",) if self._idle or self._jobs.idle else ())

    def _send_batches(self, wall: float) -> None:
        self._jobs.look(wall)
        for job in self._targets():
            blocks = self._gathered.blocks(job)
            for block in blocks:
                self._send_schema(job, block.schema_id, wall)
            number = self._numbers[job] = self._numbers.get(job, -1) + 1
            batch = Batch(node=self.node, boot=self.boot, job=job, number=number, time=wall, blocks=blocks)
            self._writer.write(OBSERVATIONS, job, encode(batch))
        self._gathered.clear()

    def _send_schema(self, job: str, schema_id: str, wall: float) -> None:
        """Before the first batch that uses it, and again after a minute: a reader may have begun in between."""
        if abs(wall - self._schemas_sent.get((job, schema_id), -math.inf)) >= SCHEMAS_AGAIN_S:
            self._schemas_sent[job, schema_id] = wall
            self._writer.write(OBSERVATIONS, job, encode(self._gathered.schemas.get(schema_id)), keep=True)

    def _send_event(self, event: Event) -> None:
        """Sign and send at once. One that concerns the node goes to every job here, each with its own number."""
        if (not event.job and not self._targets()) or (event.job and event.job not in self._jobs.running):
            self._jobs.look(self._clock.now())
        for job in (event.job,) if event.job else self._targets():
            signed = msgspec.structs.replace(event, job=job, node=self.node, boot=self.boot, number=self._events)
            self._events += 1
            self._writer.write(OBSERVATIONS, job, encode(signed), keep=True)


# --- putting one together --------------------------------------------------------------------------------------------


def run_agent(config: Config, stop: threading.Event, *, node: str = "", server: str = "") -> None:
    """Run this node's agent until `stop` is set; it ends within two seconds.

    node: default the host name. server: host:port of the leader, default `server.addresses`, else `server.listen`; the agent works without.
    Raises ConfigError or PluginError for a configuration that cannot be used.
    """
    clock = SystemClock()
    node = node or socket.gethostname()
    file_name = node.replace("/", "_")
    boot = uuid.uuid4().hex[:12]
    credentials = node_credentials(config.access, node, clock)
    inbox: Inbox = SimpleQueue()
    collectors = build_collectors(config, node, clock)
    stream = LazyStream(lambda: open_stream(config, clock))
    stream.open()
    writer = SpooledWriter(
        stream.as_stream(),
        config.state / "spool",
        clock=clock,
        name=f"agent-{file_name}",
        max_bytes=config.stream.spool_bytes,
        confirmed_by=confirmed_by(config.stream),
        on_notice=inbox.put,
    )
    session = LeaderSession(server or config.server.known_at, node, boot, os.getpid(), credentials)
    jobs = JobRegistry(config.run, config.state / "agent" / f"{file_name}.json", clock.now())
    agent = Agent(
        node, collectors, writer, jobs, inbox,
        clock=clock, boot=boot, batch_s=config.agent.batch_s, idle=config.agent.idle,
    )  # fmt: skip
    session.start()
    try:
        agent.run(stop)
    finally:
        session.close(CLOSE_S / 2)
        writer.close(CLOSE_S)
        stream.close()
        writer.close(CLOSE_S)  # what it was still handing over when the stream was closed goes to the spool


def build_collectors(config: Config, node: str, clock: Clock) -> list[CollectorThread]:
    """Every collector that is there and not switched off, and those that the configuration brings.

    Beside a collector's own fields, `interval_s` and `timeout_s` may be set for each. Raises PluginError.
    """
    poll_s = config.agent.stall_poll_s
    services = {
        "node": node, "run_dir": config.run, "clock": clock, "reading_s": config.agent.batch_s, "gap_s": 2.5 * poll_s
    }  # fmt: skip
    intervals = {"training": poll_s}
    chosen = plugins.chosen("collectors", config.collectors)
    return [_watched(name, cls, options, services, intervals) for name, cls, options in chosen]


def _watched(
    name: str, cls: type, options: dict[str, Any], services: Mapping[str, Any], intervals: Mapping[str, float]
) -> CollectorThread:
    interval = options.pop("interval_s", intervals.get(name, getattr(cls, "interval_s", 1.0)))
    timeout = options.pop("timeout_s", getattr(cls, "timeout_s", 5.0))
    return CollectorThread(name, plugins.build(cls, options, services), Schedule(interval_s=interval, timeout_s=timeout))
