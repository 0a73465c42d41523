"""What `detect` runs: a runner over each partition that this process owns, and its part in sharing them out."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from functools import partial

from detectors.diagnosis import Diagnosis
from detectors.runtime.baseline_learner import BaselineLearner, learners
from detectors.runtime.evaluator import Prototypes
from detectors.runtime.partition_ownership import PartitionOwnership
from detectors.runtime.runner import Runner
from eagle_eye.app import plugin_wiring
from eagle_eye.errors import EagleEyeError
from eagle_eye.frames import Frame
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.types import ConfigChange, Incident, JobSnapshot

from .leader_lease import this_process
from .service_registry import Around, Running, of_partition
from .thread_group import JOIN_S, Threads

log = logging.getLogger(__name__)

ROUNDS = 8.0
"""Looks at the leases within the time of one."""
LOOK_S = 0.1


class Detect:
    """The detecting side of a process."""

    def __init__(self, around: Around, lease_s: float, stop: threading.Event) -> None:
        self._around = around
        self._lease_s = lease_s
        self._stop = stop
        self._threads = Threads()
        self._detectors = plugin_wiring.detectors(around.config)
        """Each job gets copies of its own."""

    async def run(self) -> None:
        """Until told to stop. Raises EagleEyeError for what ended a runner."""
        self._threads.start("partitions", self._share)
        while not (self._stop.is_set() or self._threads.stop.is_set()):
            await asyncio.sleep(LOOK_S)
        await self._threads.join()
        if self._threads.failed is not None:
            raise EagleEyeError(f"detection had to stop: {self._threads.failed}") from self._threads.failed

    def _share(self) -> None:
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
        """Once the stream tells how many partitions there are; None if told to stop before."""
        around, begin = self._around, partial(Watching, self._around, self._threads, self._detectors)
        said = ""
        while not self._threads.stop.is_set():
            try:
                count = around.stream.partitions(OBSERVATIONS)
            except EagleEyeError as error:
                if str(error) != said:
                    log.warning("waiting for the stream: %s", error)
                said = str(error)
                self._threads.stop.wait(1.0)
            else:
                return PartitionOwnership(around.ledger, this_process(), begin, partitions=count, lease_s=self._lease_s, clock=around.clock)
        return None


class Watching:
    """The work on one partition: its runner and what belongs to it, in a thread of its own. Made means begun."""

    def __init__(self, around: Around, threads: Threads, detectors: Prototypes, partition: int, term: int) -> None:
        self._around = around
        self._detectors = detectors
        self._partition = partition
        self._term = term
        self._stop = threading.Event()
        self._runner: Runner | None = None
        self._thread = threads.start(f"runner-{partition}", self._work)

    @property
    def outranked_by(self) -> int:
        """Generation of an owner that was seen above ours; 0 = none."""
        return self._runner.outranked_by if self._runner is not None else 0

    @property
    def ended(self) -> bool:
        """Nothing of it goes on."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Finish the frame in hand, commit it, and end; returns at once."""
        self._stop.set()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join(JOIN_S)

    def _work(self) -> None:
        runners, partition = self._around.runners, self._partition
        runner = self._runner = runners[partition] = runner_of(self._around, self._detectors, partition, self._term)
        services = Running(of_partition(self._around, partition))
        services.start()
        try:
            runner.run(self._stop)
        finally:
            services.stop()
            self._around.histories.pop(partition, None)
            if runners.get(partition) is runner:
                del runners[partition]


def runner_of(around: Around, detectors: Prototypes, partition: int, term: int) -> Runner:
    """The runner of a partition; `term` becomes the generation of its marks."""
    config, clock, tell = around.config, around.clock, around.notices.put
    lessons = learners((name, type(detector)) for name, detector in detectors)

    def on_incidents(_incidents: Sequence[Incident]) -> None:
        around.nudge.set()

    def on_snapshots(snapshots: Sequence[JobSnapshot]) -> None:
        around.nudge.set()
        if around.metrics is not None:
            for snapshot in snapshots:
                around.metrics.follow(snapshot)

    def on_frame(frame: Frame) -> None:
        if around.metrics is not None:
            around.metrics.hear(frame.events)

    return Runner(
        around.stream, partition, detectors, Diagnosis(), clock=clock, generation=term,
        on_incidents=on_incidents, on_snapshots=on_snapshots, on_frame=on_frame, on_notice=tell,
        records=config.state / "records", config=ConfigChange(digest=config.digest, text=""),
        learning=BaselineLearner(lessons, directory=config.state / "baselines", clock=clock, on_notice=tell),
    )  # fmt: skip
