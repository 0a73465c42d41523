"""Ports of this node's fabric: state, rate, traffic, errors and congestion of InfiniBand, RoCE and Ethernet, from /sys.

A link that goes down, comes back or runs at a lower rate is an event at once; how a port is when the agent starts is none.
Reading /sys may hang with a broken driver: the agent runs each collector in a thread of its own and detects that.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import TopologyConfig
from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.ranges import Seconds
from eagle_eye.types import Event, Kind, Reading

from .agent.unsigned_event import unsigned_event
from .node.counter_rates import CounterRates, total
from .node.kernel_files import KernelFiles
from .node.link_changes import LinkChange, LinkChanges
from .node.link_counters import COUNTERS, Counter, LinkCounters
from .node.link_ports import UNKNOWN, LinkPort, PortState, find_ports, state_of
from .node.rails import rails_of

log = logging.getLogger(__name__)

STATES = ("port_active", "link_rate_bytes_per_s", "rail")
NAMES = (*STATES, *COUNTERS)
GBIT = 1e9 / 8
"""Bytes."""
MESSAGES = {
    "link.down": "is down",
    "link.up": "is up again",
    "link.degraded": "runs at a lower rate than before",
}


@dataclass
class _WatchedPort:
    port: LinkPort
    counters: LinkCounters
    changes: LinkChanges = field(default_factory=LinkChanges)
    state: PortState = UNKNOWN


@dataclass
class FabricCollector:
    """Metrics of each port, one row each; `link.down`, `link.up` and `link.degraded` events."""

    node: str = ""
    """Name of this node; set by the agent."""
    counters_s: Seconds = 5.0
    """Seconds between two looks at the counters. The states are looked at each time."""
    ignored: tuple[str, ...] = ()
    """Ports that are not watched, such as one for management."""
    sysfs: Path = Path("/sys")
    """Where the kernel's sysfs is mounted."""
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        self._files = KernelFiles()
        self._configured_rails = ConfiguredPlaces(self.topology).rails(self.node)
        self._ports: dict[str, _WatchedPort] = {}
        self._rates: CounterRates[Counter] = CounterRates()
        self._counted = -math.inf

    def collect(self) -> list[Reading | Event]:
        monotonic = self.clock.monotonic()
        due = monotonic - self._counted >= self.counters_s - self.interval_s / 2
        found: list[Reading | Event] = []
        if due:
            self._counted = monotonic
            found += self._find()
        for watched in self._ports.values():
            watched.state = state_of(watched.port, self._files)
            found += self._events(watched, watched.changes.look(watched.state.active, watched.state.bytes_per_s))
        if due and self._ports:
            found += self._count_downs()
            found.append(self._reading(monotonic))
        return found

    def _find(self) -> Iterator[Event]:
        """Take in new ports, and let go of those that are there no more."""
        present = {port.name: port for port in find_ports(self.sysfs) if port.name not in self.ignored}
        for name, port in present.items():
            known = self._ports.get(name)
            if known is None or known.port != port:
                self._rates.forget(lambda counter, name=name: counter[0] == name)  # type: ignore[misc]
                self._ports[name] = _WatchedPort(port, LinkCounters(port, self._files), known.changes if known else LinkChanges())
        for name in [name for name in self._ports if name not in present]:
            yield from self._gone(self._ports.pop(name))

    def _gone(self, watched: _WatchedPort) -> Iterator[Event]:
        """A port whose card is still there was given to a container, or its driver was unloaded: no fault of the link."""
        if not watched.port.hardware.exists():
            watched.state = PortState(False, math.nan, "its card is gone from the PCI bus")
            yield from self._events(watched, watched.changes.look(False, math.nan))
        else:
            log.info("port %s of %s is there no more", watched.port.name, watched.port.hardware)

    def _count_downs(self) -> Iterator[Event]:
        for watched in self._ports.values():
            yield from self._events(watched, watched.changes.counted(watched.counters.downs()))

    # --- readings

    def _reading(self, monotonic: float) -> Reading:
        counts: dict[Counter, int] = {}
        for watched in self._ports.values():
            counts |= watched.counters.read()
        rates, rails = self._rates.update(counts, monotonic), self._rails()
        keys: dict[tuple[str, str], list[Counter]] = {}
        for key in counts:
            keys.setdefault(key[:2], []).append(key)
        rows = [
            [
                math.nan if watched.state.active is None else float(watched.state.active),
                watched.state.bytes_per_s if watched.state.active else math.nan,
                rails.get(name, math.nan),
                *(total(rates, keys.get((name, metric), ())) for metric in COUNTERS),
            ]
            for name, watched in self._ports.items()
        ]
        entities = tuple(f"{self.node}/{name}" for name in self._ports)
        return Reading(source="fabric", kind=Kind.LINK, entities=entities, names=NAMES, matrix=np.array(rows, np.float32), time=self.clock.now())

    def _rails(self) -> dict[str, int]:
        return rails_of({watched.port: watched.changes.full for watched in self._ports.values()}, self._configured_rails)

    # --- events

    def _events(self, watched: _WatchedPort, changes: Iterable[LinkChange]) -> Iterator[Event]:
        for change in changes:
            yield self._event(watched, change)

    def _event(self, watched: _WatchedPort, change: LinkChange) -> Event:
        port, rail = watched.port, self._rails().get(watched.port.name)
        how = f"was down and is back, {change.missed} times between two looks" if change.missed else MESSAGES[change.name]
        rates = (f"{change.former_bytes_per_s / GBIT:g} Gbit/s before", f"{change.bytes_per_s / GBIT:g} now" if change.bytes_per_s > 0 else "")
        words = ", ".join(text for text in (watched.state.words, *(rates if change.former_bytes_per_s > 0 else ())) if text)
        message = f"port {port.name}{'' if rail is None else f' (rail {rail})'} {how}: {words}"
        log.warning("%s: %s", change.name, message)
        return unsigned_event(
            change.name, Kind.LINK, f"{self.node}/{port.name}", self.clock.now(), message,
            device=port.device, port=port.number, pci=port.pci, rail="" if rail is None else rail, state=watched.state.words,
            rate_gbit_per_s=_gbit(change.bytes_per_s), former_rate_gbit_per_s=_gbit(change.former_bytes_per_s), missed=change.missed,
        )  # fmt: skip


def _gbit(bytes_per_s: float) -> str:
    return "" if math.isnan(bytes_per_s) else f"{bytes_per_s / GBIT:g}"
