"""Builds the alert service of a leader, with the links and the heartbeat that its alerts carry."""

import logging
from collections.abc import Mapping

from detectors.runtime.partition_ownership import PARTITION
from detectors.runtime.runner import Runner
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.stream import OBSERVATIONS, Stream
from remediation.actions.notify import Notify
from remediation.alerts.alert_service import AlertService
from remediation.engine.engine import Engine
from remediation.operators.approval_requests import ApprovalLinks

log = logging.getLogger(__name__)

STALLED_S = 10.0
"""A runner that has written no mark for so long hangs, or its stream is away."""


class PartitionHealth:
    """Whether every partition has an owner, and the runners of this process make progress. Called by the alert service for its heartbeat."""

    def __init__(self, stream: Stream, ledger: Ledger, runners: Mapping[int, Runner], clock: Clock) -> None:
        self._stream = stream
        self._ledger = ledger
        self._runners = runners
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}
        """Partition → (number of marks written, monotonic time at which that number was first seen)."""

    def __call__(self) -> bool:
        try:
            owned = len(self._ledger.living(PARTITION, self._clock.now()))
            return owned >= self._stream.partitions(OBSERVATIONS) and self._progressing()
        except EagleEyeError as error:
            log.warning("cannot check whether all partitions are read: %s", error)
            return False

    def _progressing(self) -> bool:
        now, runners = self._clock.monotonic(), dict(self._runners)
        for partition, runner in runners.items():
            marks = runner.counts.marks
            if self._seen.get(partition, (-1, 0.0))[0] != marks:
                self._seen[partition] = (marks, now)
        return all(now - self._seen[partition][1] < STALLED_S for partition in runners)


def alerts_of(
    config: Config, clock: Clock, notify: Notify, ledger: Ledger, engine: Engine, stream: Stream, runners: Mapping[int, Runner]
) -> AlertService:
    """An alert service that the engine notifies from now on. Raises ConfigError for a receiver with a wrong configuration."""
    links = ApprovalLinks(ledger, clock, url_of(config) if config.server.http else "")
    ticking = PartitionHealth(stream, ledger, runners, clock)
    alerts = AlertService(notify, ledger, clock, page=page_of(config), leads=engine.leads, ticking=ticking, approval_link=links.link)
    engine.on_tick(alerts.update)
    return alerts


def page_of(config: Config) -> str:
    """URL of an incident's page, with the placeholder `{incident}`; '' without an HTTP port."""
    base = url_of(config)
    return f"{base}/incidents/{{incident}}" if base else ""


def url_of(config: Config) -> str:
    """URL of the HTTP port for a browser; '' without one."""
    base = config.server.public_url or (f"http://{config.server.http}" if config.server.http else "")
    return base.rstrip("/")
