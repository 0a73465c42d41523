"""The HTTP port of a process: what it shows of the process, and where alerts of the site come in."""

import asyncio
import math
from collections.abc import Iterable, Sequence

from eagle_eye import wire
from eagle_eye.access import Authorization
from eagle_eye.errors import EagleEyeError, LedgerError
from eagle_eye.history.history_metrics import HistoryMetrics
from eagle_eye.ledger import Lease
from eagle_eye.metrics import Metrics, PartitionMetrics, ProcessMetrics
from eagle_eye.secret import secret_of
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.types import Event, Layout
from eagle_eye.web import alertmanager_hook, approval_page, health
from eagle_eye.web.health import HealthReport
from eagle_eye.web.http_server import Route, WebServer, incident_redirect, metrics_route

from .service_registry import Around

LEASE = "leader"
BEAT_WAIT_S = 1.0


class Looks:
    """Looks at a process: its health, and figures for /metrics. Any thread may ask."""

    def __init__(self, around: Around, loop: asyncio.AbstractEventLoop) -> None:
        self._around = around
        self._loop = loop
        self._beat = around.clock.monotonic()

    def health(self) -> HealthReport:
        """Asks stream, ledger and the main loop."""
        around, now = self._around, self._around.clock.now()
        lease, ledger = self._leader()
        last = [runner.counts.last_tick for runner in list(around.runners.values())]
        return HealthReport(
            role=around.config.server.role,
            leads=around.leading is not None,
            leader=str(lease) if lease is not None and lease.until > now else "",
            term=lease.term if lease is not None else 0,
            partitions=tuple(sorted(around.runners)),
            stream=self._stream_away(),
            ledger=ledger,
            tick_age_s=max((now - tick for tick in last if math.isfinite(tick)), default=None),
            heartbeat_age_s=self._beat_age(),
        )

    def figures(self) -> ProcessMetrics:
        """For a scrape."""
        around, leading = self._around, self._around.leading
        lease, ledger = self._leader()
        spool = leading.writer.status() if leading is not None else None
        return ProcessMetrics(
            role=around.config.server.role,
            leads=leading is not None,
            leads_since=lease.since if lease is not None and leading is not None and lease.term == leading.term else around.clock.now(),
            term=lease.term if lease is not None else 0,
            stream_away=bool(self._stream_away()),
            ledger_away=bool(ledger),
            partitions=tuple(self._partitions()),
            sessions=leading.leader.sessions if leading is not None else {},
            spooled=spool.waiting + spool.spooled if spool is not None else 0,
            spool_age_s=spool.oldest_age_s if spool is not None else 0.0,
            dropped=spool.dropped if spool is not None else 0,
            waiting_plans=len(leading.engine.status()["waiting"]) if leading is not None else 0,
            clocks=leading.engine.clocks() if leading is not None else {},
        )

    def _leader(self) -> tuple[Lease | None, str]:
        """(the leader's lease, why the ledger does not answer)"""
        try:
            return self._around.ledger.holder_of(LEASE), ""
        except LedgerError as error:
            return None, str(error)

    def _stream_away(self) -> str:
        try:
            self._around.stream.end(OBSERVATIONS, 0)
        except EagleEyeError as error:
            return str(error)
        return ""

    def _partitions(self) -> Iterable[PartitionMetrics]:
        now = self._around.clock.now()
        for partition, runner in sorted(self._around.runners.items()):
            try:
                lag = max(0, self._around.stream.end(OBSERVATIONS, partition) - runner.offset)
            except EagleEyeError:
                continue  # eagle_eye_stream_away tells
            counts = runner.counts
            yield PartitionMetrics(
                partition=partition, lag_records=lag, lag_s=max(0.0, now - counts.newest) if lag and math.isfinite(counts.newest) else 0.0,
                last_tick=counts.last_tick, records=counts.records, frames=counts.frames, marks=counts.marks,
                findings=counts.findings, incidents=counts.incidents, dead_letters=counts.dead_letters,
            )  # fmt: skip

    def _beat_age(self) -> float:
        """Seconds since the main loop last answered; it is asked now."""
        asked = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            asked.result(BEAT_WAIT_S)
        except TimeoutError:
            asked.cancel()
            return self._around.clock.monotonic() - self._beat
        self._beat = self._around.clock.monotonic()
        return 0.0


def http_port(around: Around) -> WebServer:
    """The port of a process, with `around.metrics` to feed. Call it in the main loop. Raises ConfigError."""
    server = around.config.server
    looks = Looks(around, asyncio.get_running_loop())
    metrics = around.metrics = Metrics(looks.figures, around.ledger, around.clock)
    metrics.add(HistoryMetrics(lambda: [history.figures for history in list(around.histories.values())]))
    gate = Authorization.of(around.config, server.http, around.clock)
    deciding = approval_page.route(lambda: _desk(around), gate, around.clock)
    doors = [*health.routes(looks.health), metrics_route(metrics.scrape), _hook(around, metrics), deciding, incident_redirect(server.dashboard_url)]
    return WebServer(server.http, doors, gate=gate, insecure=server.insecure)


def _hook(around: Around, metrics: Metrics) -> Route:
    config = around.config.hooks
    hook = alertmanager_hook.AlertmanagerHook(config, layouts=lambda: _layouts(around), write=lambda events: _append(around, events), boot=around.boot)
    metrics.add(hook)
    token = secret_of(config.token_file, "EAGLE_EYE_HOOKS_TOKEN", "hooks.token_file")
    return alertmanager_hook.route(hook, max_bytes=config.max_bytes, token=token)


def _desk(around: Around) -> approval_page.LeaderAccess | None:
    leading = around.leading
    return approval_page.LeaderAccess(engine=leading.engine, book=leading.ledger) if leading is not None else None


def _layouts(around: Around) -> list[Layout]:
    return [facts.layout for facts in around.ledger.jobs().values()]


def _append(around: Around, events: Sequence[Event]) -> None:
    around.stream.append(OBSERVATIONS, [(event.job, wire.encode(event)) for event in events])
