"""The pure part of the runner: one partition's records in, findings and incidents out; the same live and in a replay.

No I/O and no clock: the result depends only on the records and their order.
"""

import copy
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eagle_eye import wire
from eagle_eye.errors import EagleEyeError, WireError
from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.protocols import Detector, Diagnoser
from eagle_eye.topology import merged
from eagle_eye.types import (
    LARGEST,
    Baseline,
    ConfigChange,
    Event,
    Finding,
    Incident,
    Kind,
    Layout,
    Mark,
    Record,
    SchemaRecord,
    Topology,
)
from eagle_eye.writable_text import words_of

from .detector_set import DetectorSet, NotifyOperator
from .hang_watch import DetectorCall, HangWatch, MutedDetectors
from .hot_window import HotWindow, depth_of

FIRST = LARGEST // 2
"""The first mark that a reader sees may have any number up to here: there is room for more than anybody will write."""
GENERATIONS, NUMBERS = 10**6, 10**9
"""So far may the next be beyond it: a lease changes its owner more rarely, and a partition has a mark a second for 31 years."""
RETIRE_TICKS = 900
"""A job without a record for so many ticks is dropped and its findings are withdrawn."""
UNDECLARED = 64
"""Jobs without a layout that are evaluated at most: a writer that invents names must not keep the others waiting."""
IDLE = "idle/"
"""Of the job of a node that has none."""
IDLE_TICK_S = 15
"""A node without a job has a tick frame in so many seconds: it trains nothing that could be saved by looking more often ..."""
AWAKE_TICKS = 30
"""... and one each second for so many ticks after an event of it, or as long as a finding about it is open."""
CLOCKS_TOLD = 64
"""Nodes of one job whose wrong clocks are told."""
BEHIND_S = 10.0
"""A clock that is behind by less is put right and not told: the batches of a busy machine may all be that old."""
Prototypes = Sequence[tuple[str, Detector]]
Configure = Callable[[ConfigChange], Prototypes]
"""Detectors of a configuration; raises an EagleEyeError to refuse it as a whole."""
_log = logging.getLogger(__name__)


@dataclass
class Evaluation:
    """The result of one mark."""

    mark: Mark
    frames: list[Frame] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Opened, revised and withdrawn ones."""
    incidents: list[Incident] = field(default_factory=list)
    """New and revised ones."""


class JobEvaluation:
    """State of the evaluation of one job: its frames, its detectors and their findings."""

    def __init__(self, name: str, schemas: wire.Schemas, topology: Topology, detectors: Prototypes, notify: NotifyOperator, watch: HangWatch) -> None:
        self.name = name
        self.idle = name.startswith(IDLE)
        """A node without a job."""
        self.builder = FrameBuilder(name, schemas, topology, newest_only=self.idle)
        self.window = HotWindow(depth_of(detector for _, detector in detectors))
        self.detectors = DetectorSet(name, detectors, notify, watch)
        self.events = False
        """Events wait for the next mark to be evaluated."""
        self.idle_ticks = 0
        """Ticks since the last record."""
        self.awake_ticks = 0
        """So many ticks are evaluated each, although it is idle."""
        self._phase_s = zlib.crc32(name.encode()) % IDLE_TICK_S
        self.told_unbelieved = self.told_impossible = self.told_outdated = self.told_outside = False
        """It was said that some of its records name epochs that cannot be; or steps; or tell of epochs that are over; or come from nodes that are no part of it."""
        self.told_clocks: set[str] = set()
        """Nodes whose clocks were said to be off, and are."""

    @property
    def undeclared(self) -> bool:
        """No launcher has told of it, and it is no idle node."""
        return self.builder.layout is None and not self.idle

    def rests(self, before: float, now: float) -> bool:
        """No frame at a tick of this time, `before`: of the tick before. The times of the marks alone decide, so a replay decides the same."""
        if not self.idle or self.awake_ticks or self.detectors.findings.count:
            return False
        return self._turn(before) == self._turn(now)

    def _turn(self, time: float) -> int:
        """Idle nodes take turns: not all of them at the same tick."""
        return int(time + self._phase_s) // IDLE_TICK_S


class Evaluator:
    """Evaluates one partition: builds frames, runs the detectors, folds findings into incidents.

    notify: called with (name, message) of each notice. configure: builds the detectors of a new configuration.
    """

    def __init__(
        self,
        detectors: Prototypes,
        diagnoser: Diagnoser,
        *,
        topology: Topology | None = None,
        configure: Configure | None = None,
        notify: NotifyOperator | None = None,
        hung: MutedDetectors | None = None,
    ) -> None:
        """`hung`: detectors that are not called."""
        self.watch = HangWatch()
        """Says from outside which detector it is in."""
        self.jobs: dict[str, JobEvaluation] = {}
        self.incidents: dict[str, Incident] = {}
        """The open ones."""
        self.config: ConfigChange | None = None
        self.schemas = wire.Schemas()
        self.generation = 0
        """Highest of all marks seen."""
        self.number = 0
        """Of the newest mark."""
        self._ticked = 0.0
        """Time of the newest tick; 0 before the first."""
        self.muted = False
        """During catch-up: detectors see the frames, but nothing is diagnosed or reported."""
        self._detectors = detectors
        self._hung = hung or MutedDetectors()
        self._diagnoser = copy.deepcopy(diagnoser)
        self._switches = topology or Topology()
        self._configure = configure
        self._notify_callback = notify or _log_only
        self._pending_config: ConfigChange | None = None
        self._topology: Topology | None = None
        self._told_undeclared = False

    def take(self, record: wire.Sealed) -> Evaluation | None:
        """Take the next record of the partition; returns an Evaluation for each valid mark, else None.

        Raises WireError for a record that cannot be used.
        """
        if isinstance(record, Mark):
            self._check(record)
            return self._take_mark(record)
        try:
            self._take_in(record)
        except WireError:
            raise
        except Exception as error:  # boundary: what one record leads to must not end the detection on all others
            _log.exception("a record cannot be used")
            raise WireError(f"the record cannot be used: {type(error).__name__}: {error}") from error
        return None

    def open_findings(self) -> tuple[Finding, ...]:
        """Of all jobs."""
        return tuple(finding for job in self.jobs.values() for finding in job.detectors.findings.open)

    def restore(self, findings: Sequence[Finding], incidents: Sequence[Incident]) -> None:
        """Restore the open findings and incidents of an earlier owner."""
        by_job: dict[str, list[Finding]] = {name: [] for name in self.jobs}
        for finding in findings:
            by_job.setdefault(finding.job, []).append(finding)
        for name, open_ in by_job.items():
            self._job(name).detectors.findings.restore(open_)
        self.incidents = {incident.id: incident for incident in incidents}

    def succeed(self, first: "Evaluator") -> None:
        """Go on in the place of one that has seen less: its open findings are restored; what it claims, and this one does not, is over."""
        self.restore(first.open_findings(), tuple(first.incidents.values()))
        for name, job in first.jobs.items():
            self._job(name).detectors.findings.doubt(job.detectors.findings)

    def bootstrap_records(self) -> list[tuple[str, Record]]:
        """(job, record) of every record that a reader needs who begins here; job '' = of all jobs."""
        records: list[tuple[str, Record]] = [("", schema) for schema in self.schemas]
        if self.config is not None:
            records.append(("", self.config))
        for job in self.jobs.values():
            if job.builder.layout is not None:
                records.append((job.name, job.builder.layout))
            records += [(job.name, baseline) for baseline in job.builder.baselines.values()]
        return records

    # --- records -------------------------------------------------------------------------------------------------

    def _take_in(self, record: wire.SealedBatch | Event | Layout | Baseline | SchemaRecord | ConfigChange) -> None:
        if isinstance(record, SchemaRecord):
            self.schemas.add(record)
        elif isinstance(record, ConfigChange):
            self._pending_config = record
        else:
            self._feed(record)

    def _feed(self, record: wire.SealedBatch | Event | Layout | Baseline) -> None:
        name = record.header.job if isinstance(record, wire.SealedBatch) else record.job
        job = self._job(name)
        if isinstance(record, Layout):
            known = job.builder.layout
            if known is None or known.epoch != record.epoch:
                job.idle_ticks = 0
            self._topology = None
        elif isinstance(record, Event):
            if record.entity.kind is Kind.GPU:
                self._topology = None
            job.events = True
            job.idle_ticks = 0
            job.awake_ticks = AWAKE_TICKS
        elif isinstance(record, wire.SealedBatch):
            job.idle_ticks = 0
        job.builder.feed(record)

    def _job(self, name: str) -> JobEvaluation:
        job = self.jobs.get(name)
        if job is None:
            job = self.jobs[name] = JobEvaluation(name, self.schemas, self._switches, self._detectors_of(name), self._notify, self.watch)
        return job

    def _detectors_of(self, job: str) -> Prototypes:
        idle = job.startswith(IDLE)
        asked = [each for each in self._detectors if not (idle and getattr(each[1], "needs_job", False))]
        return [each for each in asked if DetectorCall(job, each[0]) not in self._hung]

    # --- marks ---------------------------------------------------------------------------------------------------

    def _check(self, mark: Mark) -> None:
        """Raises WireError for a mark that no owner has written: after it none that one writes would count."""
        first = not self.number
        generation, number = (FIRST, FIRST) if first else (self.generation + GENERATIONS, self.number + NUMBERS)
        if mark.generation > generation or mark.number > number:
            raise WireError(f"mark {mark.number} of generation {mark.generation} is too far beyond mark {self.number} of generation {self.generation}")

    def _take_mark(self, mark: Mark) -> Evaluation | None:
        """None for a mark of an owner that has been superseded, or one that came twice."""
        if mark.generation < self.generation or mark.number <= self.number:
            return None
        self.generation, self.number = mark.generation, mark.number
        evaluation = Evaluation(mark)
        if mark.mark == "tick":
            self._change_config()
            self._drop_undeclared(evaluation)
            before, self._ticked = self._ticked or mark.time, mark.time
            for job in list(self.jobs.values()):
                job.idle_ticks += 1
                if job.idle_ticks > RETIRE_TICKS or not job.rests(before, mark.time):
                    self._guarded(job, evaluation, self._tick)
        else:
            for job in [job for job in self.jobs.values() if job.events]:
                self._guarded(job, evaluation, self._cut)
        if evaluation.findings and not self.muted:
            evaluation.incidents = self._diagnose(evaluation.findings)
        return evaluation

    def _guarded(self, job: JobEvaluation, evaluation: Evaluation, evaluate: Callable[[JobEvaluation, Evaluation], None]) -> None:
        try:
            evaluate(job, evaluation)
        except Exception as error:  # noqa: BLE001 -- boundary: what one job's records lead to must not end the detection on the others
            _log.exception("the records of %s cannot be evaluated", job.name)
            self._notify("evaluation.failing", f"the records of {job.name} cannot be evaluated, its detection begins anew: {words_of(error)}")
            self._drop(job, evaluation, "its records could not be evaluated, detection begins anew")

    def _drop(self, job: JobEvaluation, evaluation: Evaluation, why: str) -> None:
        self.jobs.pop(job.name, None)
        self._topology = None
        evaluation.findings += job.detectors.findings.withdraw_all(why, evaluation.mark)

    def _cut(self, job: JobEvaluation, evaluation: Evaluation) -> None:
        self._evaluate(job, job.builder.cut(evaluation.mark), evaluation)

    def _tick(self, job: JobEvaluation, evaluation: Evaluation) -> None:
        if job.idle_ticks > RETIRE_TICKS:
            self._drop(job, evaluation, "nothing has come from this job for long")
            return
        job.awake_ticks = max(0, job.awake_ticks - 1)
        before = job.builder.topology
        self._evaluate(job, job.window.add(job.builder.tick(evaluation.mark)), evaluation)
        if job.builder.topology is not before:
            self._topology = None
        self._tell_unbelieved(job)
        self._tell_clocks(job)

    def _drop_undeclared(self, evaluation: Evaluation) -> None:
        """Of the jobs that no launcher has told of, those that were silent for longest, and of these the newest, go first."""
        undeclared = [job for job in self.jobs.values() if job.undeclared]
        undeclared.sort(key=lambda job: job.idle_ticks)
        beyond = undeclared[UNDECLARED:]
        for job in beyond:
            self._drop(job, evaluation, f"more than {UNDECLARED} jobs report that no launcher has declared")
        if beyond and not self._told_undeclared:
            text = f"{len(undeclared)} jobs report that no launcher has declared: {UNDECLARED} of them are evaluated, {beyond[-1].name[:100]!r} and others are not"
            self._notify("claim.refused", text)
        self._told_undeclared = bool(beyond)

    def _tell_clocks(self, job: JobEvaluation) -> None:
        """Once for each node as long as its clock is off."""
        ahead = {node: f"{seconds:.0f} s ahead: times that it reports are not believed" for node, seconds in job.builder.ahead.items()}
        behind = {node: f"{seconds:.0f} s behind: that is added to times that it reports" for node, seconds in job.builder.behind.items() if seconds > BEHIND_S}
        off = ahead | behind
        for node in [node for node in off if node not in job.told_clocks]:
            if len(job.told_clocks) < CLOCKS_TOLD:
                job.told_clocks.add(node)
                self._notify("clock.skewed", f"the clock of {node} is {off[node]}; set it right, for example with chrony")
        job.told_clocks -= {node for node in job.told_clocks if node in job.builder.reporting_now and node not in off}

    def _tell_unbelieved(self, job: JobEvaluation) -> None:
        """Once for each job: more of the same is counted."""
        if job.builder.counts.impossible and not job.told_impossible:
            job.told_impossible = True
            self._notify("claim.refused", f"steps of {job.name} are not believed: their number, epoch or time cannot be")
        if job.builder.counts.outdated and not job.told_outdated:
            job.told_outdated = True
            self._notify("claim.refused", f"a coordinator of {job.name} reports how the job was in an epoch that is over (ended, its budget spent, its restart delayed): the job has gone on without it")
        outside = job.builder.outside
        if outside.left_out and not job.told_outside:
            job.told_outside = True
            self._notify("claim.refused", f"{outside.node} reports about {job.name}, and no layout of that job names it: what it says does not count; start its agent and launcher with the same --node, or see who has registered the job there (jobs/ of its run directory)")
        count = job.builder.counts.unbelieved
        if count and not job.told_unbelieved:
            job.told_unbelieved = True
            epoch = job.builder.layout.epoch if job.builder.layout is not None else 0
            self._notify("claim.refused", f"{count} records of {job.name} are not believed: they name epochs far beyond {epoch}, the highest that its launchers have declared")

    def _evaluate(self, job: JobEvaluation, frame: Frame, evaluation: Evaluation) -> None:
        job.events = False
        evaluation.frames.append(frame)
        evaluation.findings += job.detectors.evaluate(frame, evaluation.mark)

    def _change_config(self) -> None:
        """A configuration takes effect at a tick; one that is not valid changes nothing."""
        change, self._pending_config = self._pending_config, None
        if change is None or (self.config is not None and change.digest == self.config.digest):
            return
        if self._configure is not None:
            try:
                self._detectors = self._configure(change)
            except Exception as error:  # noqa: BLE001 -- boundary: it came over the stream, and would end the detection of each owner that reads it
                if not isinstance(error, EagleEyeError):
                    _log.exception("configuration %s cannot be used", change.digest)
                self._notify("config.refused", f"configuration {change.digest} is not used: {error}")
                return
            for job in self.jobs.values():
                detectors = self._detectors_of(job.name)
                job.detectors.reconfigure(detectors)
                job.window.seconds = depth_of(detector for _, detector in detectors)
        self.config = change

    def _notify(self, name: str, message: str) -> None:
        if not self.muted:
            self._notify_callback(name, message)

    def _diagnose(self, findings: list[Finding]) -> list[Incident]:
        if self._topology is None:
            switches = Topology(nodes=self._switches.nodes, gpus=self._switches.gpus)
            self._topology = merged([switches, *(job.builder.topology for job in self.jobs.values())])
        try:
            incidents = list(self._diagnoser.diagnose(tuple(self.incidents.values()), findings, self._topology))
        except Exception as error:  # noqa: BLE001 -- detection goes on: the findings are written down anyway
            _log.exception("diagnosis failed on %d findings", len(findings))
            self._notify("diagnosis.failing", words_of(error))
            return []
        changed = []
        for incident in incidents:
            known = self.incidents.get(incident.id)
            if known is None or incident.revision > known.revision:
                changed.append(incident)
            if incident.active:
                self.incidents[incident.id] = incident
            else:
                self.incidents.pop(incident.id, None)
        return changed


def _log_only(name: str, message: str) -> None:
    _log.warning("%s: %s", name, message)
