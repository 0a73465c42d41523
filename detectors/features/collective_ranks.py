"""Which ranks have entered a collective that others wait in, by torch's flight recorder: what a person looks for first in a hang."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from eagle_eye.activity.last_collective import LastCollective
from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.types import Event, Evidence, Kind

IDLE_PERCENT = 5.0
"""A GPU that waits within a collective counts as busy; one that is used for less computes nothing."""


def collectives_of(reports: Mapping[str, Event]) -> dict[str, LastCollective]:
    """Worker → its last collective, of those whose `stall` event tells one."""
    return {worker: found for worker, event in reports.items() if (found := _of_event(event)) is not None}


def _of_event(event: Event) -> LastCollective | None:
    operation, group = event.attributes.get("collective", ""), event.attributes.get("collective_group", "")
    if not operation:
        return None
    return LastCollective(group, integer_attribute(event, "collective_number"), operation, event.attributes.get("collective_pending") == "1")


def not_entered(accused: str, others: Iterable[str], last: Mapping[str, LastCollective]) -> Iterator[Evidence]:
    """Evidence: how many of the others are in a collective of the accused one's group that it has not come to."""
    own = last.get(accused)
    if own is None:
        return
    waits = [found for worker in others if (found := last.get(worker)) is not None and found.group == own.group and found.pending]
    ahead = [found for found in waits if found.number > own.number]
    if not ahead:
        return
    first = min(ahead, key=lambda found: found.number)
    count = sum(found.number == first.number for found in ahead)
    text = f"{count} others have entered {first}; worker {accused} has not: its last is {own.operation} {own.number}"
    yield Evidence(text=text, metric="collective", value=float(own.number), threshold=float(first.number))


def left_behind(workers: Iterable[str], last: Mapping[str, LastCollective]) -> str:
    """The one worker that has not entered the collective in which all the others of its group wait, and is in none; '' if there is none such."""
    found = {worker: last[worker] for worker in workers if worker in last}
    newest = max((each.number for each in found.values()), default=0)
    late = [worker for worker, each in found.items() if each.number < newest and not each.pending]
    others = [each for worker, each in found.items() if worker not in late]
    alone = len(late) == 1 and len(found) == len(tuple(workers)) and len({each.group for each in found.values()}) == 1
    return late[0] if alone and all(each.pending and each.number == newest for each in others) else ""


def went_on(before: Event | None, now: Event) -> bool:
    """Whether a worker has come to another collective between two of its `stall` events: it exchanges, however little of that is seen."""
    first, last = (_of_event(event) if event is not None else None for event in (before, now))
    return first is not None and last is not None and first != last


def use_gpu(workers: Iterable[str], frame: Frame) -> NDArray[np.bool_]:
    """Who has a GPU: over NVLink or RDMA it exchanges without a byte that the kernel counts."""
    gpus = {place.worker: place.gpu for place in (frame.layout.placements if frame.layout is not None else ())}
    return np.array([bool(gpus.get(worker)) for worker in workers], dtype=bool)


def gpu_idles(worker: str, frame: Frame) -> bool:
    """Whether the GPU of a worker is known to compute nothing now."""
    places = frame.layout.placements if frame.layout is not None else ()
    gpu = next((place.gpu for place in places if place.worker == worker), "")
    names, used = frame.entities.get(Kind.GPU, ()), frame.metrics.get(Kind.GPU, {}).get("utilisation_percent")
    return gpu in names and used is not None and bool(np.asarray(used)[names.index(gpu)] < IDLE_PERCENT)
