"""Where services are plugged in: each has `start` and `stop`, and belongs to a process, a leader's term or a partition.

A function below returns the services of one kind of owner, in the order in which they are started; they are stopped
in the reverse order. Both are called in a thread of their own, so they may wait for disk and network.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from detectors.runtime.runner import Runner
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.ledger import Ledger
from eagle_eye.metrics import Metrics
from eagle_eye.stream import Stream
from eagle_eye.stream.spool import SpooledWriter
from remediation.actions.notify import Notify
from remediation.engine.engine import Engine
from remediation.engine.leader import Leader
from remediation.job_commands.commander import Commander

from .alert_wiring import alerts_of
from .event_table_service import Foreseeing
from .notice_writer import Notices
from .retention_service import Sweeping
from .throughput_recorder import Measuring

if TYPE_CHECKING:
    from eagle_eye.history.history_service import HistoryService

log = logging.getLogger(__name__)


class Service(Protocol):
    """Something that runs beside the rest."""

    def start(self) -> None:
        """Begin; returns soon. Raises an EagleEyeError where it cannot."""
        ...

    def stop(self) -> None:
        """End, and wait until it has."""
        ...


@dataclass(slots=True, kw_only=True)
class Around:
    """What a process has, whatever its role, and what it does at this moment."""

    config: Config
    clock: Clock
    ledger: Ledger
    """For leases and notices: its writes are fenced by no term."""
    stream: Stream
    boot: str
    """Random id of this life of the process."""
    notices: Notices
    """To the ledger; `put` does not wait for it."""
    nudge: threading.Event = field(default_factory=threading.Event)
    """Set when this process has written something that a leader reads."""
    runners: dict[int, Runner] = field(default_factory=dict)
    """Partition → its runner, for those that this process owns now."""
    histories: "dict[int, HistoryService]" = field(default_factory=dict)
    """Partition → who writes its history."""
    leading: "Leading | None" = None
    """None while it stands by, or is no leader by its role."""
    metrics: Metrics | None = None
    """Fed with what the runners of this process tell; None without an HTTP port."""


@dataclass(slots=True, kw_only=True)
class Leading:
    """What a leader has for one term."""

    term: int
    ledger: Ledger
    """Its writes are refused once another leads."""
    engine: Engine
    leader: Leader
    writer: SpooledWriter
    """Of what the leader tells the stream."""
    commander: Commander
    """Reaches the coordinators of jobs."""
    notify: Notify | None
    """None where it is switched off."""


def of_process(around: Around) -> list[Service]:
    """As long as the process lives: the HTTP port."""
    if not around.config.server.http:
        return []
    from .http_port import http_port

    return [http_port(around)]


def of_leader(around: Around, leading: Leading) -> list[Service]:
    """While this process leads: its alerts with their heartbeat, the ledger's retention, what jobs reach, what stands ready."""
    services: list[Service] = [
        Sweeping(leading.ledger, around.config.ledger.retention_s, around.clock), Measuring(leading.engine, leading.ledger),
        Foreseeing(leading.engine, leading.ledger, leading.commander),
    ]  # fmt: skip
    if leading.notify is not None:
        services.append(alerts_of(around.config, around.clock, leading.notify, leading.ledger, leading.engine, around.stream, around.runners))
    return services


def of_partition(around: Around, partition: int) -> list[Service]:
    """While this process owns a partition of the observations: the writer of its history."""
    if not around.config.history.enabled:
        return []
    from eagle_eye.history.factory import history_service

    history = history_service(around.config, around.stream, partition, around.clock, around.notices.put)
    around.histories[partition] = history
    return [history]


class Running:
    """Services that were started."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._services: Sequence[Service] = tuple(services)
        self._started: list[Service] = []

    def start(self) -> None:
        """In order; if one cannot, those before it are stopped again. Not in the event loop: they may wait."""
        for service in self._services:
            try:
                service.start()
            except BaseException:
                self.stop()
                raise
            self._started.append(service)

    def stop(self) -> None:
        """In the reverse order; one that cannot be stopped does not keep the others."""
        while self._started:
            service = self._started.pop()
            try:
                service.stop()
            except Exception:  # boundary: the others are still to be stopped
                log.exception("stopping %s failed", type(service).__name__)
