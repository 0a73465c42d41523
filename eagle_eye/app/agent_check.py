"""What the agent can read on this machine, collector by collector, and how to mend what it cannot."""

from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import NamedTuple

import numpy as np

from collectors.agent.agent import build_collectors
from collectors.agent.schedule import CollectorThread
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.types import Event, Reading, StepReading
from eagle_eye.writable_text import words_of

BETWEEN_S = 1.0
"""Rates need two looks."""
CollectedRecords = tuple[Reading | StepReading | Event, ...]


class CollectorCheck(NamedTuple):
    """One collector on this machine."""

    collector: str
    state: str
    """reads, idle (nothing to read now), unavailable, failing or hung."""
    reads: str
    """What it gave, in words."""
    missing: tuple[str, ...]
    """Metrics that have no value here."""
    remedy: str


def check_collectors(config: Config, node: str, clock: Clock) -> Iterator[CollectorCheck]:
    """Every collector that the configuration leaves on, looked at twice. A collector that does not return is left behind in its thread. Raises ConfigError or PluginError."""
    collectors = build_collectors(config, node, clock)
    pool = ThreadPoolExecutor(len(collectors) or 1)
    first = [_started(pool, collector) for collector in collectors]
    for collector, look in zip(collectors, first, strict=True):
        yield _checked(pool, collector, look, clock)
    pool.shutdown(wait=False, cancel_futures=True)


def _started(pool: ThreadPoolExecutor, collector: CollectorThread) -> "Future[CollectedRecords]":
    return pool.submit(lambda: tuple(collector.collector.collect()))


def _checked(pool: ThreadPoolExecutor, collector: CollectorThread, first: "Future[CollectedRecords]", clock: Clock) -> CollectorCheck:
    limit = collector.schedule.timeout_s
    try:
        found = first.result(limit)
        if found or getattr(collector.collector, "waits", False):
            clock.sleep(BETWEEN_S)
            found = _started(pool, collector).result(limit)
    except Late:
        return CollectorCheck(collector.name, "hung", f"nothing within {limit:g} s", (), "see what it waits for: py-spy dump --pid of this process")
    except Exception as error:  # noqa: BLE001 -- boundary: any plugin may raise anything; it is shown
        return CollectorCheck(collector.name, "failing", words_of(error), (), "see the message")
    if knows := getattr(collector.collector, "knows", ""):
        return CollectorCheck(collector.name, "reads", str(knows), (), "; ".join(getattr(collector.collector, "problems", ())))
    if reason := getattr(collector.collector, "unavailable", ""):
        said, _, remedy = str(reason).partition("; ")
        return CollectorCheck(collector.name, "unavailable", said, (), remedy)
    readings = [each for each in found if isinstance(each, Reading)]
    if not readings:
        source = getattr(collector.collector, "reads_from", "")
        return CollectorCheck(collector.name, "idle", f"nothing to read at the moment{f' in {source}' if source else ''}", (), "")
    missing = _missing(readings, getattr(collector.collector, "later", frozenset()))
    remedies = getattr(collector.collector, "remedies", {})
    remedy = "; ".join(dict.fromkeys(remedies[name] for name in missing if name in remedies))
    return CollectorCheck(collector.name, "reads", _words(readings), missing, remedy)


def _words(readings: list[Reading]) -> str:
    return ", ".join(f"{len(reading.names)} metrics of {len(reading.entities)} {reading.kind}{'s' if len(reading.entities) != 1 else ''}" for reading in readings)


def _missing(readings: list[Reading], later: Collection[str]) -> tuple[str, ...]:
    """Metrics without a value for any entity, but for those that have none before a `later` look."""
    return tuple(
        name
        for reading in readings
        for name, column in zip(reading.names, reading.matrix.T, strict=True)
        if name not in later and not np.isfinite(column).any()
    )
