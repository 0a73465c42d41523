"""Fetchers of a detecting server: for a stream of a cluster, which any process may open; the embedded one is read as fast as it would be handed over."""

import logging
import multiprocessing
import os
import signal
import socket
import threading
from functools import partial

from eagle_eye.app import plugin_wiring
from eagle_eye.clock import SteadyClock, SystemClock
from eagle_eye.config import Config
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.factory import open_stream
from eagle_eye.stream.fetched_partition import FetchedPartition
from eagle_eye.stream.fetcher import ChildProcess, Fetcher
from eagle_eye.stream.fetcher_demand import FetcherDemand

from .process_context import ProcessContext

END_S = 5.0
"""Longer than a server takes to end its fetchers."""
log = logging.getLogger(__name__)


def fetched_partition(context: ProcessContext, partition: int) -> FetchedPartition | None:
    """What a runner reads a partition through; None where there is no fetcher in any case."""
    config = context.config
    if not config.stream.kafka.brokers or config.stream.fetchers == 0:
        return None
    demand = FetcherDemand(config.stream.fetchers, len(os.sched_getaffinity(0)), context.clock)
    return FetchedPartition(context.stream, OBSERVATIONS, partition, partial(spawn, config, partition), demand, clock=context.clock, on_notice=context.notices.put)


def spawn(config: Config, partition: int, connection: socket.socket) -> ChildProcess:
    """Start a fetcher that serves this end of a socket. Raises OSError."""
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(config, partition, connection), name=f"fetcher-{partition}", daemon=True)
    process.start()
    return process


def serve(config: Config, partition: int, connection: socket.socket) -> None:
    """The child process: until its parent ends it, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of it too, and ends this one
    signal.signal(signal.SIGTERM, lambda *_: threading.Timer(END_S, os._exit, (0,)).start())  # the same, where a service manager ends all processes of a server
    plugin_wiring.log_to_stderr()
    try:
        Fetcher(connection, open_stream(config, SteadyClock(SystemClock()), checked=True), OBSERVATIONS, partition).run()
    except Exception:
        log.exception("partition %d cannot be read by a fetcher", partition)
        os._exit(1)
    os._exit(0)  # whatever its stream still does is of no use to anybody
