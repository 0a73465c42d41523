"""Services of a server process: each has `start` and `stop`, and belongs to the process, a leader's term or a partition.

To add a service, add it to the function of its owner below. The functions return services in the order in which they are started;
they are stopped in the reverse order. Both are called in a thread of their own, so they may wait for disk and network.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from .alert_wiring import alerts_of
from .leader_services import event_table_service, path_test_service, retention_service, throughput_service
from .process_context import LeaderContext, ProcessContext

if TYPE_CHECKING:
    from .history_process import HistoryWriter

log = logging.getLogger(__name__)


class Service(Protocol):
    """A part of the server that runs in the background."""

    def start(self) -> None:
        """Start it; returns within about a second. Raises an EagleEyeError when it cannot start."""
        ...

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        ...


def process_services(context: ProcessContext) -> list[Service]:
    """Services of the process itself: the process that writes its history, the HTTP port."""
    services: list[Service] = []
    config = context.config
    if config.history.enabled and config.stream.kafka.brokers and config.server.role != "lead":
        from .history_process import HistoryProcess, spawn

        context.history_process = HistoryProcess(partial(spawn, config), clock=context.clock, on_notice=context.notices.put)
        services.append(context.history_process)
    if config.server.http:
        from .http_port import http_port

        services.append(http_port(context))
    return services


def leader_services(context: ProcessContext, leading: LeaderContext) -> list[Service]:
    """Services of a leader's term: alerts with their heartbeat, the ledger's retention, throughputs of jobs, the event table."""
    services: list[Service] = [
        retention_service(leading.ledger, context.config.ledger.retention_s, context.clock), throughput_service(leading.engine, leading.ledger),
        event_table_service(leading.engine, leading.ledger, leading.commander),
        path_test_service(leading.engine, leading.commander),
    ]  # fmt: skip
    if leading.notify is not None:
        services.append(alerts_of(context.config, context.clock, leading.notify, leading.ledger, leading.engine, context.stream, context.runners))
    return services


def partition_services(context: ProcessContext, partition: int) -> list[Service]:
    """Services of a partition that this process owns: the writer of its history."""
    if not context.config.history.enabled:
        return []
    if context.history_process is not None:
        history: HistoryWriter = context.history_process.partition(partition)
    else:
        from eagle_eye.history.factory import history_service

        history = history_service(context.config, context.stream, partition, context.clock, context.notices.put)
    context.histories[partition] = history
    return [history]


class ServiceGroup:
    """Starts and stops several services in order."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._services: Sequence[Service] = tuple(services)
        self._started: list[Service] = []

    def start(self) -> None:
        """Start them in order; if one fails, stop those before it and raise. Blocks: do not call it in the event loop."""
        for service in self._services:
            try:
                service.start()
            except BaseException:
                self.stop()
                raise
            self._started.append(service)

    def stop(self) -> None:
        """Stop them in the reverse order. An error of one is logged and does not keep the others from being stopped."""
        while self._started:
            service = self._started.pop()
            try:
                service.stop()
            except Exception:  # boundary: the others are still to be stopped
                log.exception("stopping %s failed", type(service).__name__)
