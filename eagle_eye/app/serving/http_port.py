"""The HTTP port of a server process: /healthz, /metrics, approval links, and the hook for Alertmanager."""

import asyncio
import math
from collections.abc import Iterable, Sequence

from eagle_eye import wire
from eagle_eye.access import Authorization
from eagle_eye.access.secret_files import secret_of
from eagle_eye.errors import EagleEyeError, LedgerError
from eagle_eye.history.history_metrics import HistoryMetrics
from eagle_eye.ledger import Lease
from eagle_eye.metrics import Metrics, PartitionMetrics, ProcessMetrics
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.types import Event, Layout
from eagle_eye.web import alertmanager_hook, approval_page, health
from eagle_eye.web.health import HealthReport
from eagle_eye.web.http_server import Route, WebServer, incident_redirect, metrics_route

from .leader_election import LEASE
from .process_context import ProcessContext

BEAT_WAIT_S = 1.0


class ServerStatusReader:
    """HealthReport of this process for /healthz, and its samples for /metrics. Called by any thread of the HTTP server."""

    def __init__(self, context: ProcessContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        self._beat = context.clock.monotonic()

    def health(self) -> HealthReport:
        """Asks stream, ledger and the event loop; takes up to BEAT_WAIT_S when the loop is busy."""
        context, now = self._context, self._context.clock.now()
        lease, ledger = self._leader()
        last = [runner.counts.last_tick for runner in list(context.runners.values())]
        return HealthReport(
            role=context.config.server.role,
            leads=context.leading is not None,
            leader=str(lease) if lease is not None and lease.until > now else "",
            term=lease.term if lease is not None else 0,
            partitions=tuple(sorted(context.runners)),
            stream=self._stream_away(),
            ledger=ledger,
            tick_age_s=max((now - tick for tick in last if math.isfinite(tick)), default=None),
            heartbeat_age_s=self._beat_age(),
        )

    def figures(self) -> ProcessMetrics:
        """Samples for one scrape of /metrics."""
        context, leading = self._context, self._context.leading
        lease, ledger = self._leader()
        spool = leading.writer.status() if leading is not None else None
        return ProcessMetrics(
            role=context.config.server.role,
            leads=leading is not None,
            leads_since=lease.since if lease is not None and leading is not None and lease.term == leading.term else context.clock.now(),
            term=lease.term if lease is not None else 0,
            stream_away=bool(self._stream_away()),
            ledger_away=bool(ledger),
            partitions=tuple(self._partitions()),
            sessions=leading.leader.sessions if leading is not None else {},
            spooled=spool.waiting + spool.spooled if spool is not None else 0,
            spool_age_s=spool.oldest_age_s if spool is not None else 0.0,
            dropped=spool.dropped if spool is not None else 0,
            waiting_plans=len(leading.engine.status()["waiting"]) if leading is not None else 0,
            clocks=leading.engine.clock_skews() if leading is not None else {},
            bad_records=leading.intake.bad_records if leading is not None and leading.intake is not None else 0,
        )

    def _leader(self) -> tuple[Lease | None, str]:
        """(the leader's lease, the error of a ledger that does not answer or '')"""
        try:
            return self._context.ledger.holder_of(LEASE), ""
        except LedgerError as error:
            return None, str(error)

    def _stream_away(self) -> str:
        try:
            self._context.stream.end(OBSERVATIONS, 0)
        except EagleEyeError as error:
            return str(error)
        return ""

    def _partitions(self) -> Iterable[PartitionMetrics]:
        now = self._context.clock.now()
        for partition, runner in sorted(self._context.runners.items()):
            try:
                lag = max(0, self._context.stream.end(OBSERVATIONS, partition) - runner.offset)
            except EagleEyeError:
                continue  # eagle_eye_stream_unavailable reports it
            counts, reads = runner.counts, self._context.reads.get(partition)
            yield PartitionMetrics(
                partition=partition, lag_records=lag, lag_s=max(0.0, now - counts.newest) if lag and math.isfinite(counts.newest) else 0.0,
                last_tick=counts.last_tick, records=counts.records, frames=counts.frames, marks=counts.marks, missed_ticks=counts.missed_ticks, stretch=counts.stretch,
                findings=counts.findings, incidents=counts.incidents, dead_letters=counts.dead_letters,
                fetchers=len(reads.fetchers) if reads is not None else 0, fetched=reads.fetched if reads is not None else 0,
            )  # fmt: skip

    def _beat_age(self) -> float:
        """Seconds since the event loop last answered; asks it now."""
        asked = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            asked.result(BEAT_WAIT_S)
        except TimeoutError:
            asked.cancel()
            return self._context.clock.monotonic() - self._beat
        self._beat = self._context.clock.monotonic()
        return 0.0


def http_port(context: ProcessContext) -> WebServer:
    """The web server of a process; sets `context.metrics`. Called in the event loop. Raises ConfigError."""
    server = context.config.server
    status = ServerStatusReader(context, asyncio.get_running_loop())
    metrics = context.metrics = Metrics(status.figures, context.ledger, context.clock)
    metrics.add(HistoryMetrics(lambda: [history.figures for history in list(context.histories.values())]))
    authorization = Authorization.of(context.config, server.http, context.clock)
    approval = approval_page.route(lambda: _leader_access(context), authorization, context.clock)
    routes = [*health.routes(status.health), metrics_route(metrics.scrape), _hook(context, metrics), approval, incident_redirect(server.dashboard_url)]
    return WebServer(server.http, routes, authorization=authorization, insecure=server.insecure)


def _hook(context: ProcessContext, metrics: Metrics) -> Route:
    config = context.config.hooks
    hook = alertmanager_hook.AlertmanagerHook(config, layouts=lambda: _layouts(context), write=lambda events: _append(context, events), incarnation=context.incarnation)
    metrics.add(hook)
    token = secret_of(config.token_file, "EAGLE_EYE_HOOKS_TOKEN", "hooks.token_file")
    return alertmanager_hook.route(hook, max_bytes=config.max_bytes, token=token)


def _leader_access(context: ProcessContext) -> approval_page.LeaderAccess | None:
    leading = context.leading
    return approval_page.LeaderAccess(engine=leading.engine, ledger=leading.ledger) if leading is not None else None


def _layouts(context: ProcessContext) -> list[Layout]:
    return [facts.layout for facts in context.ledger.jobs().values()]


def _append(context: ProcessContext, events: Sequence[Event]) -> None:
    context.stream.append(OBSERVATIONS, [(event.job, wire.encode(event)) for event in events])
