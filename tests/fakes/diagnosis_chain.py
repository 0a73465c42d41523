"""All detectors that need no baseline and the diagnosis of a synthetic job, fed frame by frame."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from detectors.collective_mismatch import CollectiveMismatch
from detectors.collector_health import CollectorHealth
from detectors.diagnosis import Diagnosis
from detectors.early_ends import EarlyEnds
from detectors.exceptions import Exceptions
from detectors.exits import Exits
from detectors.iteration_time import IterationTime
from detectors.kernel_errors import KernelErrors
from detectors.launcher_quorum import LauncherQuorum
from detectors.liveness import Liveness
from detectors.log_errors import LogErrors
from detectors.loss import Loss
from detectors.nccl_ranks import NcclRanks
from detectors.runtime.detector_set import DetectorSet
from detectors.stall import Stall
from detectors.stopped_launchers import StoppedLaunchers
from detectors.straggler import Straggler
from detectors.throughput import ThroughputLoss
from detectors.unused_nodes import UnusedNodes
from detectors.xid_errors import XidErrors
from eagle_eye.frames import Frame
from eagle_eye.topology import with_layout
from eagle_eye.types import Entity, Event, Incident, Mark, Severity, Topology

from .synthetic_events import event
from .synthetic_frames import JOB, layout_of

LAYOUT = layout_of(2, 2)
TOPOLOGY = with_layout(Topology(), LAYOUT)
RESET = "[pair.cc:553] Connection closed by peer [127.0.0.1]:51122"


def detectors() -> list[tuple[str, object]]:
    every = (Liveness, Exits, EarlyEnds, Exceptions, CollectiveMismatch, Stall, IterationTime, Straggler, ThroughputLoss, Loss, XidErrors, KernelErrors, LogErrors, CollectorHealth, NcclRanks, LauncherQuorum, UnusedNodes, StoppedLaunchers)
    return [(each.__module__.rsplit(".", 1)[-1], each()) for each in every]


@dataclass
class Chain:
    """Frames → findings → incidents, as the runner does it."""

    panel: DetectorSet = field(default_factory=lambda: DetectorSet(JOB, detectors(), lambda name, text: pytest.fail(f"{name}: {text}")))  # type: ignore[arg-type]
    opened: dict[str, Incident] = field(default_factory=dict)
    reported: list[Incident] = field(default_factory=list)
    number: int = 0
    topology: Topology = TOPOLOGY

    def feed(self, *frames: Frame) -> "Chain":
        for frame in frames:
            self.number += 1
            mark = Mark(mark="tick" if frame.tick else "cut", generation=1, number=self.number, time=frame.time)
            findings = self.panel.evaluate(frame, mark)
            self.take(Diagnosis().diagnose(tuple(self.opened.values()), findings, self.topology))
        return self

    def take(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            self.reported.append(incident)
            if incident.active:
                self.opened[incident.id] = incident
            else:
                self.opened.pop(incident.id, None)

    @property
    def latest(self) -> list[Incident]:
        return list({incident.id: incident for incident in self.reported}.values())

    @property
    def accusing(self) -> list[Incident]:
        return [incident for incident in self.latest if incident.culprits]


def verdicts(incidents: Sequence[Incident]) -> list[tuple[str, list[str], Severity, bool]]:
    return [
        (each.cause, [culprit.entity.name for culprit in each.culprits], each.severity, each.active) for each in incidents
    ]


def raised(who: Entity, time: float, message: str = RESET, kind: str = "RuntimeError") -> Event:
    return event("exception", who, time, type=kind, message=message, epoch=1, step=12)
