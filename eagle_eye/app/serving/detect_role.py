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
from eagle_eye.types import ConfigChange, Incident, JobSnapshot, Notice

from .leader_election import new_holder
from .process_context import ProcessContext
from .service_registry import ServiceGroup, partition_services
from .thread_group import JOIN_S, ThreadGroup

log = logging.getLogger(__name__)

ROUNDS = 8.0
"""Rounds of partition ownership within one lease."""
POLL_S = 0.1


class DetectRole:
    """Runs until `stop` is set; the partitions are assigned in a thread of its own."""

    def __init__(self, context: ProcessContext, lease_s: float, stop: threading.Event) -> None:
        self._context = context
        self._lease_s = lease_s
        self._stop = stop
        self._threads = ThreadGroup()
        self._detectors = plugin_wiring.detectors(context.config)
        """Each job gets copies of its own."""
        self._hung = HungPartitions()

    async def run(self) -> None:
        """Run until `stop` is set. Raises EagleEyeError for the first runner that failed."""
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
                ownership.round()
                self._threads.stop.wait(self._lease_s / ROUNDS)
        finally:
            ownership.close()

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
    """What outlives a thread that a detector holds."""

    def __init__(self) -> None:
        self.muted = MutedDetectors()
        self.services: dict[int, ServiceGroup] = {}
        """Partition → its services, for the worker that takes over."""


class PartitionWorker:
    """A thread that runs the detectors over one partition, with its services. The constructor starts it."""

    def __init__(self, context: ProcessContext, threads: ThreadGroup, detectors: Prototypes, hung: HungPartitions, partition: int, term: int) -> None:
        self._context = context
        self._detectors = detectors
        self._hung = hung
        self._partition = partition
        self._term = term
        self._stop = threading.Event()
        self._runner: Runner | None = None
        self._services: ServiceGroup | None = None
        self._thread = threads.start(f"runner-{partition}", self._work)

    @property
    def superseded_by(self) -> int:
        """Generation of a newer owner that was seen in the stream; 0 = none."""
        if self._left_behind:
            return self._term
        return self._runner.superseded_by if self._runner is not None else 0

    @property
    def ended(self) -> bool:
        """Whether its thread has ended, or is left behind."""
        return self._left_behind or not self._thread.is_alive()

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
            message = self._hung.muted.add(call)
            log.error("%s", message)
            self._context.notices.put(Notice(name="detector.hung", time=self._context.clock.now(), message=message))

    def stop(self) -> None:
        """Finish the frame in hand, commit it, and end; returns at once."""
        self._stop.set()
        if self._left_behind and (services := self._hung.services.pop(self._partition, None)) is not None:
            threading.Thread(target=services.stop, name=f"services-{self._partition}", daemon=True).start()

    def join(self) -> None:
        """Wait until it has ended, at most JOIN_S."""
        self._thread.join(JOIN_S)

    def _work(self) -> None:
        runners, partition = self._context.runners, self._partition
        services = self._hung.services.pop(partition, None)
        if services is None:
            services = ServiceGroup(partition_services(self._context, partition))
            services.start()
        runner = self._runner = runners[partition] = runner_of(self._context, self._detectors, partition, self._term, self._hung.muted)
        self._services = services
        try:
            runner.run(self._stop)
        except Exception:  # boundary: whatever a thread does that was left behind, its successor goes on
            if not runner.left_behind:
                raise
            log.exception("a detector that had hung has come back to partition %d", partition)
        finally:
            if not runner.left_behind:
                services.stop()
                self._context.histories.pop(partition, None)
            if runners.get(partition) is runner:
                del runners[partition]


def runner_of(context: ProcessContext, detectors: Prototypes, partition: int, term: int, muted: MutedDetectors) -> Runner:
    """The runner of a partition; `term` becomes the generation of its marks."""
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
        records=config.state / "records", config=ConfigChange(digest=config.digest, text=""),
        hung=muted, learner=BaselineLearner(lessons, directory=config.state / "baselines", clock=clock, on_notice=on_notice, hung=muted),
    )  # fmt: skip
