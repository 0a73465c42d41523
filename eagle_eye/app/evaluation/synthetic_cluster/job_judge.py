"""Our detectors and diagnosis on the frames of one run, as the runner calls them: of two jobs the incidents are diagnosed together."""

import logging
from collections.abc import Iterator, Sequence

from detectors.diagnosis import Diagnosis
from detectors.runtime.detector_set import DetectorSet
from detectors.runtime.evaluator import Prototypes
from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob
from eagle_eye.frames import Frame
from eagle_eye.topology import node_of, with_layout
from eagle_eye.types import Entity, Incident, Kind, Mark, Severity, Topology

from .cluster_score import JobVerdict
from .fault_kinds import kind_of

log = logging.getLogger(__name__)

ABOUT_NOBODY = (Kind.JOB,)


class JobJudge:
    """Frames in, verdicts out."""

    def __init__(self, jobs: Sequence[DrillJob], detectors: Prototypes) -> None:
        self.verdicts: list[JobVerdict] = []
        self._jobs = tuple(job.name for job in jobs)
        self._topology = Topology()
        for job in jobs:
            self._topology = with_layout(self._topology, job.layout)
        self._detectors = {name: DetectorSet(name, detectors, lambda detector, text: log.warning("%s: %s", detector, text)) for name in self._jobs}
        self._open: dict[str, Incident] = {}
        self._said: dict[tuple[str, str], JobVerdict] = {}
        """Of each incident and job, without its time."""
        self._number = 0

    def take(self, frame: Frame) -> None:
        """One frame of one of the jobs."""
        self._number += 1
        findings = self._detectors[frame.job].evaluate(frame, Mark(mark="tick" if frame.tick else "cut", generation=1, number=self._number, time=frame.time))
        if not findings:
            return
        for incident in Diagnosis().diagnose(tuple(self._open.values()), findings, self._topology):
            self._open.pop(incident.id, None)
            if incident.active:
                self._open[incident.id] = incident
                self.verdicts.extend(self._new(incident, frame.time))

    def _new(self, incident: Incident, time: float) -> Iterator[JobVerdict]:
        """What it says that it has not said before; of a fault that hits both jobs, about both. One that only informs accuses nobody: nothing is ever done for it."""
        informs = incident.severity is Severity.INFO
        named = () if informs else tuple(filter(None, dict.fromkeys(node_of(each.entity, self._topology) for each in incident.culprits)))
        kind = kind_of(incident.cause, tuple(part.kind for part in incident.parts), frozenset(each.entity.kind.value for each in incident.culprits))
        entities = tuple(dict.fromkeys(str(entity) for entity in self._about(incident)))
        together = f"{incident.cause} of {' and '.join(sorted(incident.victims))}" if incident.victims else incident.id
        for job in {incident.job, *incident.victims} & set(self._jobs):
            said = JobVerdict(job=job, time=0.0, culprits=named, cause=incident.cause, kind=kind, entities=entities, incident=together)
            if self._said.get((incident.id, job)) != said:
                self._said[incident.id, job] = said
                yield JobVerdict(job=job, time=time, culprits=named, cause=incident.cause, kind=kind, entities=entities, incident=together)

    def _about(self, incident: Incident) -> list[Entity]:
        """The culprits; of an incident that has none, the parts that its findings of the first kind are about."""
        if incident.culprits:
            return [culprit.entity for culprit in incident.culprits]
        first = incident.parts[0].kind if incident.parts else ""
        return [part.entity for part in incident.parts if part.kind == first and part.entity.kind not in ABOUT_NOBODY]
