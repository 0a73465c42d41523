"""On which GPU a worker computes, as a line of evidence: by it the ledger ties an incident of a worker to the GPU's history (eagle_eye/ledger/entity_history.py)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.topology import ON_GPU
from eagle_eye.types import Evidence, Layout, RankPlacement


@dataclass
class GpuOfWorker:
    """By the layout that it was asked of last: of a job of ten thousands of workers many may be told of at once."""

    _layout: Layout | None = field(default=None, init=False, repr=False)
    _places: dict[str, RankPlacement] = field(default_factory=dict, init=False, repr=False)
    """Worker → its place, of those whose GPU is known."""

    def evidence(self, worker: str, layout: Layout | None) -> Iterator[Evidence]:
        """Nothing where the layout knows of none."""
        if layout is not self._layout:
            self._layout = layout
            self._places = {place.worker: place for place in layout.placements if place.gpu} if layout is not None else {}
        place = self._places.get(worker)
        if place is not None:
            yield Evidence(text=f"it computes on GPU {place.gpu}, slot {place.local_rank} of {place.node}", metric=f"{ON_GPU}{place.gpu}")
