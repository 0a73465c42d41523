"""Our detectors and diagnosis on the frames of one job, as the runner calls them."""

import logging

from detectors.diagnosis import Diagnosis
from detectors.runtime.detector_set import DetectorSet
from detectors.runtime.evaluator import Prototypes
from eagle_eye.frames import Frame
from eagle_eye.topology import node_of, with_layout
from eagle_eye.types import Incident, Layout, Mark, Severity, Topology

from .cluster_score import JobVerdict

log = logging.getLogger(__name__)


class JobJudge:
    """Frames in, verdicts out."""

    def __init__(self, layout: Layout, detectors: Prototypes) -> None:
        self.verdicts: list[JobVerdict] = []
        self._job = layout.job
        self._topology = with_layout(Topology(), layout)
        self._detectors = DetectorSet(layout.job, detectors, lambda name, text: log.warning("%s: %s", name, text))
        self._open: dict[str, Incident] = {}
        self._number = 0

    def take(self, frame: Frame) -> None:
        """One tick."""
        self._number += 1
        findings = self._detectors.evaluate(frame, Mark(mark="tick", generation=1, number=self._number, time=frame.time))
        if not findings:
            return
        for incident in Diagnosis().diagnose(tuple(self._open.values()), findings, self._topology):
            known = self._open.pop(incident.id, None)
            if incident.active:
                self._open[incident.id] = incident
            if incident.active and (known is None or known.culprits != incident.culprits):
                self.verdicts.append(self._verdict(incident, frame.time))

    def _verdict(self, incident: Incident, time: float) -> JobVerdict:
        """An incident that only informs accuses nobody: nothing is ever done for it."""
        named = () if incident.severity is Severity.INFO else tuple(dict.fromkeys(node_of(each.entity, self._topology) for each in incident.culprits))
        return JobVerdict(job=self._job, time=time, culprits=tuple(filter(None, named)), cause=incident.cause)
