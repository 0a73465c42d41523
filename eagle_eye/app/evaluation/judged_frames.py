"""Frames of one job through detectors and diagnosis: who is named, from when on, and what the incidents are."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from detectors.diagnosis import Diagnosis
from detectors.runtime.detector_set import DetectorSet
from detectors.runtime.evaluator import Prototypes
from eagle_eye.frames import Frame
from eagle_eye.topology import node_of, with_layout
from eagle_eye.types import Incident, Layout, Mark, Severity, Topology

log = logging.getLogger(__name__)


class JudgedFrames(NamedTuple):
    """What was made of them."""

    named: dict[str, float]
    """Node that a finding is about → time of the frame in which the first one was told."""
    told: list[tuple[float, str]]
    """Of each finding, when it was told first: time of the frame, and its kind."""
    incidents: tuple[Incident, ...]
    """Newest revisions; those that were merged into others are left out."""

    @property
    def accused(self) -> int:
        """Incidents with a culprit."""
        return sum(bool(each.culprits) for each in self.incidents)

    @property
    def acting(self) -> int:
        """Incidents for which something would be done."""
        return sum(each.severity is not Severity.INFO for each in self.incidents)


def judged(frames: Iterable[Frame], layout: Layout, detectors: Prototypes) -> JudgedFrames:
    """All frames, one after the other."""
    topology = with_layout(Topology(), layout)
    asked = DetectorSet(layout.job, detectors, lambda name, text: log.warning("%s: %s", name, text))
    known: dict[str, Incident] = {}
    named: dict[str, float] = {}
    told: dict[str, tuple[float, str]] = {}
    for number, frame in enumerate(frames, 1):
        findings = asked.evaluate(frame, Mark(mark="tick", generation=1, number=number, time=frame.time))
        if not findings:
            continue
        for each in findings:
            if each.active:
                told.setdefault(each.id, (frame.time, each.kind))
            if each.active and (node := node_of(each.entity, topology)):
                named.setdefault(node, frame.time)
        present = tuple(each for each in known.values() if each.active)
        known |= {incident.id: incident for incident in Diagnosis().diagnose(present, findings, topology)}
    return JudgedFrames(named, list(told.values()), tuple(each for each in known.values() if not each.part_of))
