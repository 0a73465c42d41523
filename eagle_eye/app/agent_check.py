"""What the agent can read on this machine, collector by collector, and how to mend what it cannot."""

import socket
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path
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
PROC, SYSFS = Path("/proc"), Path("/sys")
OWN_NETWORK = "the agent is in a network namespace of its own: the interfaces and links that it reads, RAS of NCCL on localhost and exporters at 127.0.0.1 are not the node's"
JOIN_NETWORK = "run it in the node's: hostNetwork: true and dnsPolicy: ClusterFirstWithHostNet in Kubernetes, --network=host of a container"
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
    if has_own_network():
        yield CollectorCheck("network", "unavailable", OWN_NETWORK, (), JOIN_NETWORK)
    pool = ThreadPoolExecutor(len(collectors) or 1)
    first = [_started(pool, collector) for collector in collectors]
    for collector, look in zip(collectors, first, strict=True):
        yield _checked(pool, collector, look, clock)
    pool.shutdown(wait=False, cancel_futures=True)


def has_own_network(proc: Path = PROC, sysfs: Path = SYSFS, interfaces: Callable[[], list[tuple[int, str]]] = socket.if_nameindex) -> bool:
    """Whether this process is in another network namespace than the machine: than its first process, or, where that is a container's or may not be asked, in one without any card."""
    try:
        if (proc / "1/ns/net").readlink() != (proc / "self/ns/net").readlink():
            return True
    except OSError:
        pass  # not root, or no CAP_SYS_PTRACE
    try:
        names = [name for _, name in interfaces()]
    except OSError:  # not known
        return False
    return (sysfs / "class/net").exists() and not any((sysfs / "class/net" / name / "device").exists() for name in names)


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
    problems = tuple(map(str, getattr(collector.collector, "problems", ())))
    if problems and not readings:
        reasons, remedies_told = zip(*(each.partition("; ")[::2] for each in problems), strict=True)
        return CollectorCheck(collector.name, "unavailable", "; ".join(reasons), (), "; ".join(dict.fromkeys(filter(None, remedies_told))))
    if not readings:
        source = getattr(collector.collector, "reads_from", "")
        return CollectorCheck(collector.name, "idle", f"nothing to read at the moment{f' in {source}' if source else ''}", (), "")
    missing = _missing(readings, getattr(collector.collector, "later", frozenset()))
    remedies = getattr(collector.collector, "remedies", {})
    remedy = "; ".join([*dict.fromkeys(remedies[name] for name in missing if name in remedies), *problems])
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
