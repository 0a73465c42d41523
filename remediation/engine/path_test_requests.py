"""Which incidents want a test of the network or of storage (`eagle_eye/tested_causes.py`): once for each incident, and once a minute for each job, in every mode.

A test is harmless, and is no repair: it needs no plan, waits for no other action, and none waits for it.
"""

import threading
from dataclasses import dataclass, field

from eagle_eye.clock import Clock
from eagle_eye.tested_causes import NETWORK_TESTED, TESTS_OF
from eagle_eye.types import digest_of
from remediation.policy.engine_settings import EngineSettings

from .engine_state import KEPT_JOBS, EngineState
from .incident_phase import IncidentPhase
from .job_state import JobState
from .plan_builder import node_of
from .tracked_incident import TrackedIncident

EVERY_S = 60.0
"""Between two tests of one job."""
ATTEMPTS = 10
"""A coordinator that cannot be reached is asked again so often: another one may take its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTestRequest:
    """What the job's coordinator is asked."""

    job: str
    incident: str
    tests: tuple[str, ...]
    suspects: tuple[str, ...]
    """Nodes that the incident accuses."""

    @property
    def id(self) -> str:
        """The same for the same incident: what was done is not done again."""
        return digest_of("path test", self.job, self.incident)[:16]


@dataclass(slots=True, kw_only=True)
class PathTestRequests:
    """`lock` is the engine's."""

    state: EngineState
    settings: EngineSettings
    clock: Clock
    lock: threading.RLock
    _attempts: dict[str, int] = field(default_factory=dict)
    """Incident → how often its coordinator was asked; ATTEMPTS: it has answered."""
    _tested: dict[str, float] = field(default_factory=dict)
    """Job → when it was last tested; monotonic."""

    def due(self) -> tuple[PathTestRequest, ...]:
        """What is to be asked for now; call about once a second."""
        found: dict[str, PathTestRequest] = {}
        with self.lock:
            for tracked in self.state.incidents.values() if self.settings.path_tests else ():
                if tracked.job not in found and (request := self._request(tracked)) is not None:
                    found[tracked.job] = request
                    self._count(request.incident)
        return tuple(found.values())

    def answered(self, request: PathTestRequest) -> None:
        """Its coordinator has passed it on."""
        with self.lock:
            self._attempts[request.incident] = ATTEMPTS
            self._tested.pop(request.job, None)
            self._tested[request.job] = self.clock.monotonic()
            while len(self._tested) > KEPT_JOBS:
                del self._tested[next(iter(self._tested))]

    def _request(self, tracked: TrackedIncident) -> PathTestRequest | None:
        incident, job = tracked.incident, self.state.jobs.get(tracked.job)
        tests = TESTS_OF.get(incident.cause, ())
        if not tests or not incident.active or tracked.phase is IncidentPhase.ENDED or job is None or job.layout is None or job.over:
            return None
        if self._attempts.get(incident.id, 0) >= ATTEMPTS or self.clock.monotonic() - self._tested.get(tracked.job, -EVERY_S) < EVERY_S:
            return None
        suspects = self._suspects(tracked, job)
        if len({*job.layout.nodes, *suspects}) < 2:  # a job on one node has no network between nodes
            tests = tuple(test for test in tests if test != NETWORK_TESTED)
        return PathTestRequest(job=tracked.job, incident=incident.id, tests=tests, suspects=suspects) if tests else None

    def _suspects(self, tracked: TrackedIncident, job: JobState) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for culprit in tracked.incident.culprits if (node := node_of(culprit, job))))

    def _count(self, incident: str) -> None:
        self._attempts[incident] = self._attempts.pop(incident, 0) + 1
        for old in list(self._attempts)[: max(0, len(self._attempts) - KEPT_JOBS)]:
            del self._attempts[old]
