"""Which nodes of a job send telemetry, and whose clock is off: known from the age of their newest batches alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eagle_eye.types import JobSnapshot, Telemetry


@dataclass(slots=True)
class TelemetryFreshness:
    """Of one job. A node whose batches are old and whose newest one stays the same is silent; one whose batches are old
    (or from the future) and go on sends, with a clock that is off."""

    stream_time: float = 0.0
    """Time of the newest tick."""
    _odd: Mapping[str, Telemetry] = field(default_factory=dict)
    """Nodes whose telemetry is not fresh."""

    def update(self, snapshot: JobSnapshot) -> None:
        """Take a tick in."""
        self._odd = {node: self._told(node, snapshot.time - age, snapshot.time) for node, age in snapshot.late.items()}
        self.stream_time = snapshot.time

    def of(self, nodes: Iterable[str]) -> dict[str, Telemetry]:
        """What is known of each of these."""
        return {node: self._odd.get(node) or Telemetry(node=node, heard=self.stream_time) for node in nodes}

    def _told(self, node: str, newest: float, now: float) -> Telemetry:
        """`newest`: time of its newest batch, by its own clock."""
        before = self._odd.get(node) or Telemetry(node=node, heard=self.stream_time)
        if newest <= 0.0:
            return Telemetry(node=node)
        if not before.heard:
            return Telemetry(node=node, heard=min(newest, now))
        if newest > before.heard + before.skew_s:
            return Telemetry(node=node, heard=now, skew_s=newest - now)
        return before
