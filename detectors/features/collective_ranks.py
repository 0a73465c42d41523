"""Which ranks have entered a collective that others wait in, by torch's flight recorder: what a person looks for first in a hang."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from eagle_eye.activity.last_collective import LastCollective
from eagle_eye.config import StallConfig
from eagle_eye.event_attributes import float_attribute, integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.types import Event, Evidence, Kind

from .worker_positions import Truths

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


class CollectiveWaits:
    """Since when each worker has been seen in the collective in which it waits. Where its recorder does not answer for once, what it said holds."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[LastCollective, float]] = {}

    def observe(self, event: Event) -> bool:
        """Take a `stall` event; whether the worker has come to another collective since the last one: it exchanges, however little of that is seen."""
        found, before = _of_event(event), self._since.get(event.entity.name)
        if found is None or (before is not None and before[0] == found):
            return False
        self._since[event.entity.name] = found, event.time
        return before is not None

    def forget(self, worker: str) -> None:
        """It has moved."""
        self._since.pop(worker, None)

    def seconds(self, worker: str, now: float) -> float:
        """How long it has waited in one; 0 where it is in none, as far as is known."""
        found = self._since.get(worker)
        return now - found[1] if found is not None and found[0].pending else 0.0


def use_gpu(workers: Iterable[str], reports: Mapping[str, Event], frame: Frame) -> Truths:
    """Who has a GPU: over NVLink or RDMA it exchanges without a byte that the kernel counts."""
    gpus = _gpus(frame)
    return np.array([worker in gpus or (worker in reports and uses_gpu(reports[worker])) for worker in workers], dtype=bool)


def uses_gpu(event: Event) -> bool:
    """Whether its agent saw a worker that stalls have a GPU open."""
    return event.attributes.get("gpu") == "1"


def waits_in_vain(event: Event, now: float, stall: StallConfig) -> bool:
    """Whether a worker that waits for its peers, as its newest `stall` event says, has done so for too long."""
    age_s = float_attribute(event, "age_s") + now - event.time
    if age_s >= stall.patience_s or not uses_gpu(event):
        return age_s >= stall.standing_s
    found = _of_event(event)
    return found is not None and found.pending and now - event.time >= stall.standing_s


def gpu_idles(worker: str, frame: Frame) -> bool:
    """Whether the GPU of a worker is known to compute nothing now."""
    gpu = _gpus(frame).get(worker, "")
    names, used = frame.entities.get(Kind.GPU, ()), frame.metrics.get(Kind.GPU, {}).get("utilisation_percent")
    return gpu in names and used is not None and bool(np.asarray(used)[names.index(gpu)] < IDLE_PERCENT)


def _gpus(frame: Frame) -> dict[str, str]:
    """Worker → its GPU, of those that have one by the layout."""
    return {place.worker: place.gpu for place in (frame.layout.placements if frame.layout is not None else ()) if place.gpu}
