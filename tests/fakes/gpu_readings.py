"""What the gpu collector returned, as tables, and a node whose seconds a test lets pass."""

from collections.abc import Iterable

from collectors.gpu import GpuCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Reading
from fakes.nvml import FakeNvml

Table = dict[str, dict[str, float]]
"""GPU → metric → value."""


def table_of(found: Iterable[Reading | Event], source: str = "gpu") -> Table:
    """The rows of one source."""
    return {
        entity: dict(zip(reading.names, row.tolist(), strict=True))
        for reading in found
        if isinstance(reading, Reading) and reading.source == source
        for entity, row in zip(reading.entities, reading.matrix, strict=True)
    }


class GpuNode:
    """A collector over a fake driver."""

    def __init__(self, gpus: int = 2) -> None:
        self.nvml = FakeNvml(gpus=gpus)
        self.clock = FakeClock()
        self.collector = GpuCollector(nvml=self.nvml, clock=self.clock)
        self.found: list[Reading | Event] = []

    def seconds(self, count: int = 1) -> list[Event]:
        """One look a second; returns the events."""
        events: list[Event] = []
        for _ in range(count):
            self.clock.advance(1.0)
            self.found = self.collector.collect()
            events += [each for each in self.found if isinstance(each, Event)]
        return events

    def row(self, gpu: int = 0) -> dict[str, float]:
        """What the last look read of a GPU."""
        return table_of(self.found)[self.nvml.gpus[gpu].uuid]

    def instances(self) -> Table:
        """What the last look read of MIG instances."""
        return table_of(self.found, "mig")
