"""Lines of logs through the chain that runs live: collector → event → frame → findings → incident."""

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from collectors.job_log import JobLogCollector
from collectors.kernel_log import KernelLogCollector
from detectors.diagnosis import Diagnosis
from detectors.runtime.evaluator import IDLE, Evaluator
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config
from eagle_eye.types import Entity, Event, Finding, Incident, Kind, Layout, Mark, RankPlacement

JOB, NODE, WORKER = "evaluate/logs/run", "node-0", "run/node-0/0"
IDLE_NODE = IDLE + NODE
BEGAN = 1_790_000_000.0
PAUSE_S = 120.0
"""Between two readings: an equal line is told again then."""
_EXCEPTION = re.compile(r"\A(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>.+)\Z", re.DOTALL)


class Judgement(NamedTuple):
    """What followed from some lines."""

    events: tuple[Event, ...]
    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]
    """Newest revisions."""


class LogChain:
    """One node with one worker. A context manager: it keeps the logs that the collectors read in a folder of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="eagle-eye-evaluate-")
        home = Path(self._folder.name)
        self._clock = FakeClock(BEGAN)
        self._kernel_log, self._job_log = home / "kern.log", home / "job.out"
        self._kernel_log.touch()
        self._job_log.touch()
        self._kernel = KernelLogCollector(source="file", path=self._kernel_log, node=NODE, run_dir=home, clock=self._clock)
        self._job = JobLogCollector(further_files=(str(self._job_log),), training_values=False, node=NODE, run_dir=home, clock=self._clock)
        self._kernel.collect()  # from here on: an agent reads no line that was there before it
        self._job.collect()
        self._detectors = plugin_wiring.detectors(Config())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._folder.cleanup()

    def kernel_events(self, lines: Iterable[str]) -> list[Event]:
        """What the agent reports of these lines of the kernel's log."""
        return self._written(self._kernel, self._kernel_log, lines)

    def job_events(self, lines: Iterable[str]) -> list[Event]:
        """What the agent reports of these lines of a job's log."""
        return self._written(self._job, self._job_log, lines)

    def raised(self, lines: Iterable[str]) -> list[Event]:
        """Of lines that end a traceback (`RuntimeError: ...`): the exceptions that the probe reports of such a worker."""
        found = (match for line in lines if (match := _EXCEPTION.match(line.strip())))
        entity = Entity(kind=Kind.WORKER, name=WORKER)
        return [
            Event(name="exception", job=JOB, entity=entity, time=self._clock.now(), node=NODE, incarnation="", number=0, message=each["message"], attributes={"type": each["type"], "message": each["message"], "epoch": "1", "step": "1"})
            for each in found
        ]

    def judge(self, events: Sequence[Event], *, job: str = JOB) -> Judgement:
        """Findings and incidents of a fresh detection. `job`: IDLE_NODE for a node on which none runs."""
        evaluator = Evaluator(self._detectors, Diagnosis())
        now = self._clock.now()
        if job == JOB:
            evaluator.take(_layout(now))
        signed = [msgspec.structs.replace(event, job=job, node=NODE, incarnation="evaluate", number=number) for number, event in enumerate(events)]
        for event in signed:
            evaluator.take(event)
        findings: dict[str, Finding] = {}
        incidents: dict[str, Incident] = {}
        for number in (1, 2):
            evaluation = evaluator.take(Mark(mark="tick", generation=1, number=number, time=now + number))
            if evaluation is not None:
                findings |= {each.id: each for each in evaluation.findings}
                incidents |= {each.id: each for each in evaluation.incidents}
        return Judgement(tuple(signed), tuple(findings.values()), tuple(each for each in incidents.values() if not each.part_of))

    def _written(self, collector: KernelLogCollector | JobLogCollector, log: Path, lines: Iterable[str]) -> list[Event]:
        self._clock.advance(PAUSE_S)
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in lines)
        return [each for each in collector.collect() if isinstance(each, Event)]


def _layout(time: float) -> Layout:
    place = RankPlacement(worker=WORKER, node=NODE, rank=0, local_rank=0)
    return Layout(job=JOB, epoch=1, time=time, coordinator=NODE, launchers={NODE: "127.0.0.1:1"}, placements=(place,), reason="start")
