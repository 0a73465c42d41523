"""What the engine knows of the cluster around a job: layouts, switches, the freshness of telemetry."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.topology import merged, with_layout
from eagle_eye.types import Layout, NodePlace, Telemetry, Topology

from .job_state import JobState


@dataclass(slots=True)
class ClusterView:
    """Of all jobs."""

    configured: ConfiguredPlaces = field(default_factory=ConfiguredPlaces)
    """Counts before what the agents say."""
    _topology: Topology = field(default_factory=Topology)
    _of: tuple[tuple[str, int, Mapping[str, NodePlace]], ...] = ()
    """The epochs and places that the topology was put together from: for a large cluster that takes a while."""

    def topology(self, jobs: Iterable[JobState]) -> Topology:
        """Of every job that has a layout, put together anew when one of them has changed."""
        layouts = [job.layout for job in jobs if job.layout is not None]
        of = tuple((layout.job, layout.epoch, layout.places) for layout in layouts)
        if of != self._of:
            self._of = of
            self._topology = merged(with_layout(self._switched(layout), layout) for layout in layouts)
        return self._topology

    def layouts(self, jobs: Iterable[JobState]) -> dict[str, Layout]:
        """The newest of each job."""
        return {job.name: job.layout for job in jobs if job.layout is not None}

    def telemetry(self, jobs: Iterable[JobState]) -> dict[str, Telemetry]:
        """Of every node that a job runs on; if several do, that of the job with the newest."""
        found: dict[str, Telemetry] = {}
        for job in jobs:
            if job.layout is not None and not job.over:
                for node, news in job.telemetry.of(job.layout.nodes).items():
                    found[node] = max(found.get(node, news), news, key=lambda each: each.heard)
        return found

    def _switched(self, layout: Layout) -> Topology:
        return Topology(nodes={node: self.configured.of(node).switch for node in layout.launchers})
