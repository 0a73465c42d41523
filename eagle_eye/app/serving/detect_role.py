"""The role `detect`: owns a share of the stream's partitions by leases, and runs the detectors over each of them."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from functools import partial

from detectors.diagnosis import Diagnosis
from detectors.runtime.baseline_learner import BaselineLearner, learners
from detectors.runtime.evaluator import Prototypes
from detectors.runtime.hang_watch import MutedDetectors
from detectors.runtime.partition_ownership import PartitionOwnership
from detectors.runtime.runner import Runner
from eagle_eye.app import plugin_wiring
from eagle_eye.errors import EagleEyeError
from eagle_eye.frames import Frame
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.fetched_partition import FetchedPartition
from eagle_eye.types import ConfigChange, Incident, JobSnapshot, Notice
from eagle_eye.writable_text import words_of

from .fetcher_process import fetched_partition
from .leader_election import new_holder
from .process_context import ProcessContext
from .service_registry import ServiceGroup, partition_services
from .thread_group import JOIN_S, ThreadGroup

log = logging.getLogger(__name__)

ROUNDS = 8.0
"""Rounds of partition ownership within one lease."""
POLL_S = 0.1
FIRST_S, LONGEST_S = 1.0, 60.0
"""Seconds before the detection on a partition that failed begins again: doubled each time, until it has run for the longest."""
GIVEN_UP = 3
"""Failures in a row after which another server may try."""


class DetectRole:
    """Runs until `stop` is set; the partitions are assigned in a thread of its own."""

    def __init__(self, context: ProcessContext, lease_s: float, stop: threading.Event) -> None:
        self._context = context
        self._lease_s = lease_s
        self._stop = stop
        self._threads = ThreadGroup()
        self._detectors = plugin_wiring.detectors(context.config)
        """Each job gets copies of its own."""
        for problem in plugin_wiring.rule_problems(self._detectors):
            log.warning("a rule is left out: %s", problem)
            context.notices.put(Notice(name="rules.invalid", time=context.clock.now(), message=f"{problem}; this rule is left out and the others go on: eagle-eye rules check reads the file"))
        self._hung = HungPartitions()
        self._told = False
        """It was told that partitions cannot be assigned."""

    async def run(self) -> None:
        """Run until `stop` is set. A partition whose detection fails begins again by itself. Raises EagleEyeError where none can be assigned."""
        self._threads.start("partitions", self._assign)
        while not (self._stop.is_set() or self._threads.stop.is_set()):
            await asyncio.sleep(POLL_S)
        await self._threads.join()
        if self._threads.failed is not None:
            raise EagleEyeError(f"detection had to stop: {self._threads.failed}") from self._threads.failed

    def _assign(self) -> None:
        ownership = self._ownership()
        if ownership is None:
            return
        try:
            while not self._threads.stop.is_set():
                self._round(ownership)
                self._threads.stop.wait(self._lease_s / ROUNDS)
        finally:
            ownership.close()

    def _round(self, ownership: PartitionOwnership) -> None:
        try:
            ownership.round()
            self._told = False
        except Exception as error:  # boundary: no thread or no memory is left for a moment, and the partitions that are owned go on
            log.exception("the partitions could not be assigned")
            if not self._told:
                self._context.notices.put(Notice(name="detection.failing", time=self._context.clock.now(), message=f"partitions could not be assigned: {words_of(error)}; it is tried again"))
            self._told = True

    def _ownership(self) -> PartitionOwnership | None:
        """Made once the stream answers how many partitions it has; None when stopped before."""
        context, begin = self._context, partial(PartitionWorker, self._context, self._threads, self._detectors, self._hung)
        reported = ""
        while not self._threads.stop.is_set():
            try:
                count = context.stream.partitions(OBSERVATIONS)
            except EagleEyeError as error:
                if str(error) != reported:
                    log.warning("waiting for the stream: %s", error)
                reported = str(error)
                self._threads.stop.wait(1.0)
            else:
                return PartitionOwnership(context.ledger, new_holder(), begin, partitions=count, lease_s=self._lease_s, clock=context.clock)
        return None


class HungPartitions:
    """What outlives a thread that a detector holds, or that failed."""

    def __init__(self) -> None:
        self.muted = MutedDetectors()
        self.services: dict[int, ServiceGroup] = {}
        """Partition → its services, for the worker that takes over."""
        self.failures: dict[int, int] = {}
        """Partition → how often in a row its detection has failed."""


class PartitionWorker:
    """A thread that runs the detectors over one partition, with its services. The constructor starts it.

    If that cannot be, or it fails, another worker is begun above its term after a while.
    """

    def __init__(self, context: ProcessContext, threads: ThreadGroup, detectors: Prototypes, hung: HungPartitions, partition: int, term: int) -> None:
        self._context = context
        self._detectors = detectors
        self._hung = hung
        self._partition = partition
        self._term = term
        self._stop = threading.Event()
        self._runner: Runner | None = None
        self._services: ServiceGroup | None = None
        self._reads: FetchedPartition | None = None
        self._began = context.clock.monotonic()
        self._again: float | None = None
        """When another worker may begin, since this one has failed; monotonic."""
        self._thread: threading.Thread | None = None
        try:
            self._thread = threads.start(f"runner-{partition}", self._work)
        except RuntimeError as error:  # the process may have no further thread
            self._fail(error)

    @property
    def superseded_by(self) -> int:
        """Generation of a newer owner that was seen in the stream, or our own where another worker is to begin; 0 = none."""
        if self._left_behind or (self._again is not None and self._context.clock.monotonic() >= self._again):
            return self._term
        return self._runner.superseded_by if self._runner is not None else 0

    @property
    def given_up(self) -> bool:
        """It has failed, and those before it."""
        return self._again is not None and self._hung.failures.get(self._partition, 0) >= GIVEN_UP

    @property
    def ended(self) -> bool:
        """Whether its thread has ended, or is left behind."""
        return self._left_behind or self._thread is None or not self._thread.is_alive()

    @property
    def _left_behind(self) -> bool:
        return self._runner is not None and self._runner.left_behind

    def check(self) -> None:
        """Leave the thread behind where a detector does not return: who takes the partition next goes on without that."""
        runner, services = self._runner, self._services
        if runner is None or services is None or runner.left_behind:
            return
        if (call := runner.hung_in(self._context.clock.monotonic())) is not None:
            self._hung.services[self._partition] = services
            runner.leave_behind()
            if self._reads is not None:
                self._reads.close()
            message = self._hung.muted.add(call)
            log.error("%s", message)
            self._context.notices.put(Notice(name="detector.hung", time=self._context.clock.now(), message=message))

    def stop(self) -> None:
        """Finish the frame in hand, commit it, and end; returns at once."""
        self._stop.set()
        if self.given_up:
            self._hung.failures.pop(self._partition, None)  # should it come back here, it begins with the first try
        if self._left_behind and (services := self._hung.services.pop(self._partition, None)) is not None:
            threading.Thread(target=services.stop, name=f"services-{self._partition}", daemon=True).start()

    def join(self) -> None:
        """Wait until it has ended, at most JOIN_S."""
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _work(self) -> None:
        try:
            self._run()
        except Exception as error:  # boundary: what one partition does, or a thread that was left behind, must not end the server
            if self._left_behind:
                log.exception("a detector that had hung has come back to partition %d", self._partition)
            else:
                log.exception("the detection on partition %d failed", self._partition)
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        failures, now = self._hung.failures, self._context.clock.monotonic()
        if now - self._began >= LONGEST_S:
            failures.pop(self._partition, None)
        count = failures[self._partition] = failures.get(self._partition, 0) + 1
        wait_s = min(FIRST_S * 2.0 ** (count - 1), LONGEST_S)
        message = f"partition {self._partition} is not evaluated: {words_of(error)}; it begins again in {wait_s:g} s{', or on another server' if count >= GIVEN_UP else ''}"
        log.warning("%s", message)
        self._context.notices.put(Notice(name="detection.failing", time=self._context.clock.now(), message=message))
        self._again = now + wait_s

    def _run(self) -> None:
        runners, partition = self._context.runners, self._partition
        services = self._hung.services.pop(partition, None)
        if services is None:
            services = ServiceGroup(partition_services(self._context, partition))
            services.start()
        try:
            if (reads := fetched_partition(self._context, partition)) is not None:
                self._reads = self._context.reads[partition] = reads
            runner = self._runner = runners[partition] = runner_of(self._context, self._detectors, partition, self._term, self._hung.muted, self._reads)
            self._services = services
            runner.run(self._stop)
        finally:
            if self._reads is not None:
                self._reads.close()
                if self._context.reads.get(partition) is self._reads:
                    del self._context.reads[partition]
            if not self._left_behind:
                services.stop()
                self._context.histories.pop(partition, None)
            if self._runner is not None and runners.get(partition) is self._runner:
                del runners[partition]


def runner_of(context: ProcessContext, detectors: Prototypes, partition: int, term: int, muted: MutedDetectors, reads: FetchedPartition | None) -> Runner:
    """The runner of a partition; `term` becomes the generation of its marks. `reads`: through which it reads its records, where fetchers may."""
    config, clock, on_notice = context.config, context.clock, context.notices.put
    lessons = learners((name, type(detector)) for name, detector in detectors)

    def on_incidents(_incidents: Sequence[Incident]) -> None:
        context.nudge.set()

    def on_snapshots(snapshots: Sequence[JobSnapshot]) -> None:
        context.nudge.set()
        if context.metrics is not None:
            for snapshot in snapshots:
                context.metrics.observe_job(snapshot)

    def on_frame(frame: Frame) -> None:
        if context.metrics is not None:
            context.metrics.observe_events(frame.events)

    return Runner(
        context.stream, partition, detectors, Diagnosis(), clock=clock, generation=term,
        on_incidents=on_incidents, on_snapshots=on_snapshots, on_frame=on_frame, on_notice=on_notice,
        records=config.state / "records", records_bytes=config.history.records_bytes, config=ConfigChange(digest=config.digest, text=""),
        hung=muted, reads=reads, learner=BaselineLearner(lessons, directory=config.state / "baselines", clock=clock, on_notice=on_notice, hung=muted),
    )  # fmt: skip
