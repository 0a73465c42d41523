"""The agent of a node: runs the collectors, writes one batch a second for each job on the node, and events at once.

It needs no server, and works while the stream is unavailable (the writer spools then). One thread schedules; every
collector has a thread of its own, so that a hung one costs only its own readings.
"""

import logging
import math
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, Protocol

import msgspec

from collectors.worker.procfs import resident_bytes
from eagle_eye import plugins
from eagle_eye.access.credentials import node_credentials
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.factory import confirmed_by, open_stream
from eagle_eye.stream.spool import SpooledWriter, SpoolStatus
from eagle_eye.types import Batch, Event, Kind, Notice, Reading, StepReading
from eagle_eye.wire import encode
from eagle_eye.writable_text import words_of

from .agent_budget import AgentBudget, AgentUse, children_s, processor_s
from .batch_builder import BatchBuilder
from .job_registry import JobRegistry
from .lazy_stream import LazyStream
from .leader_session import LeaderSession
from .schedule import CollectorResult, CollectorThread, HealthChange, Schedule, ScheduleOptions
from .unsigned_event import unsigned_event

log = logging.getLogger(__name__)

SCHEMAS_AGAIN_S = 60.0
WAIT_MAX_S = 0.5
PAUSE_S = 0.1
"""After a round that failed."""
EVENT_AGE_S = 10.0
"""An event is from the moment at which its collector began to look: one that seems older, or from the future, has its time from elsewhere or from before the clock was set."""
CONFIRM_S = 120.0
"""It writes each second, so there is always something to confirm: two requests in so long are 167 a second of 10,000 agents in all."""
CLOSE_S = 1.0
"""Seconds for the last records to reach the stream or the spool when the agent ends."""


class RecordWriter(Protocol):
    """What the agent needs of `SpooledWriter`: `write` returns at once and never raises."""

    def write(self, topic: str, key: str, value: bytes, *, keep: bool = False) -> None: ...


Inbox = Queue[CollectorResult | Notice]
"""Results of the collectors, and notices of the writer about the stream. No SimpleQueue: its `get` waits for ever where a signal comes as the time-out ends (CPython 3.11)."""


class Agent:
    """One node's agent. `run_once` does what is due now; `run` repeats it until it is stopped."""

    def __init__(
        self,
        node: str,
        collectors: list[CollectorThread],
        writer: RecordWriter,
        jobs: JobRegistry,
        inbox: Inbox,
        *,
        clock: Clock,
        incarnation: str,
        batch_s: float = 1.0,
        idle: bool = False,
        budget: AgentBudget | None = None,
    ) -> None:
        """`incarnation`: random id of this agent process; `idle`: also write batches while the node has no job; `budget`: None = none is kept."""
        self.node, self.incarnation = node, incarnation
        self._collectors = {collector.name: collector for collector in collectors}
        self._writer, self._jobs, self._inbox, self._clock = writer, jobs, inbox, clock
        self._batch_s, self._idle = batch_s, idle
        self._budget = budget
        self._processor_s = {name: 0.0 for name, each in self._collectors.items() if not getattr(each.collector, "urgent", False)}
        self._children_s = children_s()
        """Of children whose collector is known."""
        self._batch_builder = BatchBuilder(jobs.job_of)
        self._second: int | None = None
        self._failing = False
        """The round before this one failed."""
        self._numbers: dict[str, int] = {}
        self._events = 0
        self._schemas_sent: dict[tuple[str, str], float] = {}
        jobs.refresh(clock.now())

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        for collector in self._collectors.values():
            collector.start(self._inbox.put)
        try:
            while not stop.is_set():
                self._round(stop)
        finally:
            for collector in self._collectors.values():
                collector.close()

    def _round(self, stop: threading.Event) -> None:
        """Whatever fails in one costs the batch of this second: without the agent the whole node would be silent."""
        try:
            self.run_once()
            self._wait()
        except Exception as error:  # boundary: of the agent's one thread
            if not self._failing:
                log.exception("a round of the agent failed; more of the same are not logged")
            self._tell_round("collector.failing", words_of(error))
            self._batch_builder.clear()
            stop.wait(PAUSE_S)
        else:
            self._tell_round("collector.recovered", "it works again")

    def _tell_round(self, name: str, reason: str) -> None:
        """Once, as of a collector that is called `agent`."""
        failing = name == "collector.failing"
        if failing == self._failing:
            return
        self._failing = failing
        with suppress(Exception):  # it was logged
            self._send_event(unsigned_event(name, Kind.NODE, self.node, self._clock.now(), f"the agent itself: {reason}", collector="agent", reason=reason))

    def run_once(self) -> None:
        """Take finished results, write the batches if a second has begun, start the collectors that are due."""
        self._take_results()
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        for collector in self._collectors.values():
            self._report_health(collector, collector.check_timeout(monotonic))
        second = math.floor(wall / self._batch_s)
        if second != self._second:
            first, self._second = self._second is None, second
            if not first:  # a batch of less than a second would have no numbers yet
                self._send_batches(wall, monotonic)
            self._keep_budget(monotonic)
        for collector in self._collectors.values():
            if collector.schedule.due(wall, monotonic):
                collector.schedule.started(wall, monotonic)
                collector.request()

    def status(self) -> dict[str, dict[str, str]]:
        """Collector name → health, reason of a failure, and why it is unavailable (for example: no GPU)."""
        return {
            name: {
                "health": str(collector.schedule.health),
                "reason": collector.schedule.reason,
                "unavailable": getattr(collector.collector, "unavailable", ""),
            }
            for name, collector in self._collectors.items()
        }

    # --- waiting and results

    def _wait(self) -> None:
        """Take results as they come until a collector is due or a second begins."""
        wall = self._clock.now()
        waits = [collector.schedule.next_in(wall) for collector in self._collectors.values()]
        timeout = min([self._batch_s - wall % self._batch_s, WAIT_MAX_S, *waits])
        until = self._clock.monotonic() + max(timeout, 0.001)
        while (left := until - self._clock.monotonic()) > 0.0:
            try:
                result = self._inbox.get(timeout=left)
            except Empty:
                return
            self._take(result)
            if isinstance(result, CollectorResult) and self._is_due(result.name):
                return

    def _is_due(self, name: str) -> bool:
        """It has run beyond its next slot."""
        return self._collectors[name].schedule.due(self._clock.now(), self._clock.monotonic())

    def _take_results(self) -> None:
        while True:
            try:
                result = self._inbox.get_nowait()
            except Empty:
                return
            self._take(result)

    def _take(self, result: CollectorResult | Notice) -> None:
        if isinstance(result, Notice):
            self._take_notice(result)
            return
        collector = self._collectors[result.name]
        self._count_cost(result)
        self._report_health(collector, collector.schedule.finished(self._clock.monotonic(), result.error))
        for found in result.found:
            if isinstance(found, Event):
                self._send_event(found)
            else:
                self._find_jobs_of(found)
                self._batch_builder.add(found)

    def _count_cost(self, result: CollectorResult) -> None:
        """The kernel does not tell which thread a child was of: whoever is the first to finish behind its end has waited for it."""
        before, self._children_s = self._children_s, children_s()
        if result.name in self._processor_s:
            self._processor_s[result.name] += result.processor_s + self._children_s - before

    def _find_jobs_of(self, found: Reading | StepReading) -> None:
        """Refresh the jobs for workers of an unknown job: their first steps are returned only once."""
        if isinstance(found, StepReading) and not all(self._jobs.job_of(worker) for worker in found.workers):
            self._jobs.refresh(self._clock.now())

    def _take_notice(self, notice: Notice) -> None:
        """A notice of the writer, which has logged it; dropped records and a deleted spool are reported into the stream, too."""
        if notice.name in ("stream.recovered", "stream.reset"):
            self._schemas_sent.clear()  # the stream may have been reset
        elif notice.name in ("spool.dropped", "spool.removed"):
            self._send_event(unsigned_event(notice.name, Kind.NODE, self.node, notice.time, notice.message))

    def _report_health(self, collector: CollectorThread, change: HealthChange | None) -> None:
        if change is None:
            return
        message = f"collector {collector.name}: {change.reason}"
        log.warning("%s: %s", change.name, message)
        now = self._clock.now()
        self._send_event(
            unsigned_event(change.name, Kind.NODE, self.node, now, message, collector=collector.name, reason=change.reason)
        )

    def _keep_budget(self, monotonic: float) -> None:
        """Run collectors less often, or more often again, as the budget asks for; each change is logged and told."""
        if self._budget is None:
            return
        use = AgentUse(monotonic, processor_s(), resident_bytes(), dict(self._processor_s))
        for change in self._budget.check(use):
            log.warning("agent budget: %s", change.reason)
            if change.collector:
                self._collectors[change.collector].schedule.pace = change.pace
            event = unsigned_event("agent.budget", Kind.NODE, self.node, self._clock.now(), change.reason, collector=change.collector, pace=change.pace)
            self._send_event(event)

    # --- records

    def _target_jobs(self) -> tuple[str, ...]:
        """Jobs to write batches for: those that run here; `idle/<node>` if the node is idle."""
        running = self._jobs.running
        return running or ((f"idle/{self.node}",) if self._idle or self._jobs.idle else ())

    def _send_batches(self, wall: float, monotonic: float) -> None:
        self._jobs.refresh(wall)
        for job in self._target_jobs():
            blocks = self._batch_builder.blocks(job)
            for block in blocks:
                self._send_schema(job, block.schema_id, wall)
            number = self._numbers[job] = self._numbers.get(job, -1) + 1
            batch = Batch(node=self.node, incarnation=self.incarnation, job=job, number=number, time=wall, blocks=blocks, monotonic_s=monotonic)
            self._writer.write(OBSERVATIONS, job, encode(batch))
        self._batch_builder.clear()

    def _send_schema(self, job: str, schema_id: str, wall: float) -> None:
        """Write a schema before the first batch that uses it, and again each minute for readers that began in between."""
        if abs(wall - self._schemas_sent.get((job, schema_id), -math.inf)) >= SCHEMAS_AGAIN_S:
            self._schemas_sent[job, schema_id] = wall
            self._writer.write(OBSERVATIONS, job, encode(self._batch_builder.schemas.get(schema_id)), keep=True)

    def _send_event(self, event: Event) -> None:
        """Set node, incarnation, number and monotonic time, and write at once. An event of the node goes to every job here, each with its own number."""
        if (not event.job and not self._target_jobs()) or (event.job and event.job not in self._jobs.running):
            self._jobs.refresh(self._clock.now())
        monotonic_s = self._monotonic_of(event)
        for job in (event.job,) if event.job else self._target_jobs():
            signed = msgspec.structs.replace(
                event, job=job, node=self.node, incarnation=self.incarnation, number=self._events, monotonic_s=monotonic_s
            )
            self._events += 1
            self._writer.write(OBSERVATIONS, job, encode(signed), keep=True)

    def _monotonic_of(self, event: Event) -> float:
        """The monotonic clock at the time of an event; 0 where the wall clock does not say how long ago that was."""
        age_s = self._clock.now() - event.time
        return max(0.0, self._clock.monotonic() - age_s) if 0.0 <= age_s <= EVENT_AGE_S else 0.0


# --- wiring --------------------------------------------------------------------------------------------


def run_agent(config: Config, stop: threading.Event, *, node: str = "", server: str = "") -> None:
    """Run this node's agent until `stop` is set; returns within two seconds after that.

    node: default the host name. server: host:port of the leader, default `server.addresses`, else `server.listen`; the agent works without.
    Raises ConfigError or PluginError for a configuration that cannot be used.
    """
    clock = SystemClock()
    node = node or socket.gethostname()
    file_name = node.replace("/", "_")
    incarnation = uuid.uuid4().hex[:12]
    credentials = node_credentials(config.access, node, clock)
    inbox: Inbox = Queue()
    def spool_status() -> SpoolStatus:
        return writer.status()  # made below: a collector asks once the agent runs

    collectors = build_collectors(config, node, clock, spool_status)
    stream = LazyStream(lambda: open_stream(config, clock, node=node))
    stream.open()
    writer = SpooledWriter(
        stream.as_stream(),
        config.state / "spool",
        clock=clock,
        name=f"agent-{file_name}",
        max_bytes=config.stream.spool_bytes,
        confirmed_by=confirmed_by(config.stream),
        confirm_s=CONFIRM_S,
        on_notice=inbox.put,
    )
    session = LeaderSession(server or config.server.known_at, node, incarnation, os.getpid(), credentials)
    jobs = JobRegistry(config.run, config.state / "agent" / f"{file_name}.json", clock.now())
    agent = Agent(
        node, collectors, writer, jobs, inbox,
        clock=clock, incarnation=incarnation, batch_s=config.agent.batch_s, idle=config.agent.idle,
        budget=AgentBudget(config.agent.cpu_percent, config.agent.memory_mb),
    )  # fmt: skip
    session.start()
    try:
        agent.run(stop)
    finally:
        session.close(CLOSE_S / 2)
        writer.close(CLOSE_S)
        stream.close()
        writer.close(CLOSE_S)  # records that were in flight when the stream was closed go to the spool


def build_collectors(config: Config, node: str, clock: Clock, spool_status: Callable[[], SpoolStatus] | None = None) -> list[CollectorThread]:
    """Every collector that is available and not switched off, and those that the configuration adds. `spool_status`: of the agent's writer.

    Beside a collector's own fields, `interval_s` and `timeout_s` may be set for each. Raises PluginError.
    """
    poll_s = config.agent.stall_poll_s
    services = {
        "node": node, "run_dir": config.run, "state_dir": config.state, "clock": clock, "reading_s": config.agent.batch_s, "gap_s": 2.5 * poll_s,
        "stall": config.stall, "topology": config.topology, "spool_status": spool_status,
    }  # fmt: skip
    intervals = {"training": poll_s}
    chosen = plugins.chosen("collectors", config.collectors)
    return [_collector_thread(name, cls, options, services, intervals) for name, cls, options in chosen]


def _collector_thread(
    name: str, cls: type, options: dict[str, Any], services: Mapping[str, Any], intervals: Mapping[str, float]
) -> CollectorThread:
    given = {option.name: options.pop(option.name) for option in plugins.describe(ScheduleOptions) if option.name in options}
    chosen = plugins.configure(ScheduleOptions, given)
    schedule = Schedule(
        interval_s=chosen.get("interval_s", intervals.get(name, getattr(cls, "interval_s", 1.0))),
        timeout_s=chosen.get("timeout_s", getattr(cls, "timeout_s", 5.0)),
    )
    return CollectorThread(name, plugins.build(cls, options, services), schedule)
