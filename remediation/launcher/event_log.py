"""What a launcher, or the leader, writes to the stream: events and layouts, each event with its own number."""

import itertools
from collections.abc import Callable, Iterator, Mapping

from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.types import Entity, Event, Kind, Layout

Write = Callable[[str, str, bytes], None]
"""(topic, key, value): returns at once, spools while the stream is away."""


class EventLog:
    """One writer, one incarnation."""

    def __init__(self, job: str, node: str, incarnation: str, clock: Clock, write: Write, numbers: Iterator[int] | None = None) -> None:
        """`numbers`: of a writer that tells of several jobs, shared by its journals."""
        self._job, self._node, self._incarnation = job, node, incarnation
        self._clock = clock
        self._write = write
        self._numbers = numbers or itertools.count(1)

    def event(
        self, name: str, entity: Entity, message: str = "", attributes: Mapping[str, str] | None = None, *, happened_s: float | None = None
    ) -> Event:
        """Write an event; returns it with its id. `happened_s`: when, by the monotonic clock, where it is told later than it happened."""
        monotonic_s = self._clock.monotonic()
        age_s = 0.0 if happened_s is None else max(0.0, monotonic_s - happened_s)
        event = Event(
            name=name, job=self._job, entity=entity, time=self._clock.now() - age_s, node=self._node, incarnation=self._incarnation,
            number=next(self._numbers), message=message, attributes=dict(attributes or {}), monotonic_s=max(0.0, monotonic_s - age_s),
        )  # fmt: skip
        self._write(OBSERVATIONS, self._job, wire.encode(event))
        return event

    def of_worker(self, name: str, worker: str, message: str, attributes: Mapping[str, str], *, happened_s: float | None = None) -> Event:
        return self.event(name, Entity(kind=Kind.WORKER, name=worker), message, attributes, happened_s=happened_s)

    def of_job(self, name: str, message: str, attributes: Mapping[str, str]) -> Event:
        return self.event(name, Entity(kind=Kind.JOB, name=self._job), message, attributes)

    def of_node(self, name: str, node: str, message: str, attributes: Mapping[str, str]) -> Event:
        return self.event(name, Entity(kind=Kind.NODE, name=node), message, attributes)

    def layout(self, layout: Layout) -> None:
        """Write which worker is which rank now."""
        self._write(OBSERVATIONS, self._job, wire.encode(layout))
