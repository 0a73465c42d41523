"""Jobs with tensor, pipeline and data parallel ranks of which one stops, and what the flight recorders of all ranks hold then."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from eagle_eye.activity.flight_dump import FlightDump, dump_of

CREATED_NS = 1_700_000_000_000_000_000


class Call(NamedTuple):
    """Of one rank."""

    group: str
    operation: str
    members: frozenset[int]
    """Who has to come to it."""


@dataclass(frozen=True)
class Shape:
    """So many of each kind; ranks count tensor first, then data, then pipeline."""

    tensor: int
    pipeline: int
    data: int

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.data

    def rank(self, tensor: int, stage: int, replica: int) -> int:
        return (stage * self.data + replica) * self.tensor + tensor

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tensor, rank // (self.tensor * self.data), rank // self.tensor % self.data

    def groups(self, rank: int) -> dict[str, tuple[int, ...]]:
        """Name → members, of the groups that a rank is in."""
        tensor, stage, replica = self.place(rank)
        return {
            "world": tuple(range(self.world)),
            f"tp-{stage}-{replica}": tuple(self.rank(each, stage, replica) for each in range(self.tensor)),
            f"dp-{stage}-{tensor}": tuple(self.rank(tensor, stage, each) for each in range(self.data)),
            f"pp-{replica}-{tensor}": tuple(self.rank(tensor, each, replica) for each in range(self.pipeline)),
        }


def script(shape: Shape, rank: int, steps: int = 2, batches: int = 2) -> list[Call]:
    """What a rank calls: forward and backward of each micro-batch through the stages, then the gradients."""
    groups = shape.groups(rank)
    world, tensor, data, pipeline = groups
    _, stage, _ = shape.place(rank)
    members = groups[pipeline]

    def message(kind: str, other: int) -> list[Call]:
        if not 0 <= other < shape.pipeline:
            return []
        arrow = f"send {stage}->{other}" if kind == "send" else f"recv {stage}<-{other}"
        return [Call(pipeline, arrow, frozenset({rank, members[other]}))]

    def computed() -> list[Call]:
        return [Call(tensor, name, frozenset(groups[tensor])) for name in ("all_gather", "reduce_scatter")] if shape.tensor > 1 else []

    calls: list[Call] = []
    for _ in range(steps):
        for _ in range(batches):
            calls += [*message("recv", stage - 1), *computed(), *message("send", stage + 1)]
        for _ in range(batches):
            calls += [*message("recv", stage + 1), *computed(), *message("send", stage - 1)]
        calls += [Call(data, "all_reduce", frozenset(groups[data]))] if shape.data > 1 else []
        calls.append(Call(world, "all_reduce", frozenset(groups[world])))
    return calls


class StoppedJob:
    """Each rank enqueues up to `ahead` calls before they are over; `stopped` enqueues no more than `calls` of them."""

    def __init__(self, shape: Shape, stopped: int, calls: int, ahead: int, random: Random) -> None:
        self.shape = shape
        self.scripts = [script(shape, rank) for rank in range(shape.world)]
        self.enqueued, self.over = [0] * shape.world, [0] * shape.world
        self._names = [_numbered(each) for each in self.scripts]
        while self._goes_on(stopped, calls, ahead, random):
            pass

    def _goes_on(self, stopped: int, calls: int, ahead: int, random: Random) -> bool:
        before = [*self.enqueued, *self.over]
        waiting: dict[tuple[Any, ...], set[int]] = {}
        for rank in random.sample(range(self.shape.world), self.shape.world):
            most = min(len(self.scripts[rank]), self.over[rank] + ahead)
            self.enqueued[rank] = max(self.enqueued[rank], min(most, calls) if rank == stopped else most)
            if self.over[rank] < self.enqueued[rank]:
                waiting.setdefault(self._names[rank][self.over[rank]], set()).add(rank)
        for there in waiting.values():
            if self.scripts[min(there)][self.over[min(there)]].members <= there:
                for rank in there:
                    self.over[rank] += 1
        return before != [*self.enqueued, *self.over]

    def dumps(self, without: Sequence[int] = (), ring: int = 2000, *, pending_alone: bool = False) -> list[FlightDump]:
        """Of all ranks but these."""
        return [dump_of(self._record(rank, ring, pending_alone), rank) for rank in range(self.shape.world) if rank not in without]

    def _record(self, rank: int, ring: int, pending_alone: bool) -> dict[str, Any]:
        counts: Counter[str] = Counter()
        entries: list[dict[str, Any]] = []
        for place, call in enumerate(self.scripts[rank][: self.enqueued[rank]]):
            is_message = call.operation.startswith(("send", "recv"))
            counts[call.group] += not is_message
            over = place < self.over[rank]
            if not (over and pending_alone):
                entries.append({
                    "record_id": place, "process_group": (call.group, call.group), "collective_seq_id": counts[call.group], "p2p_seq_id": 0, "is_p2p": is_message,
                    "profiling_name": f"nccl:{call.operation}", "time_created_ns": CREATED_NS + place, "input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]],
                    "output_dtypes": ["Float"], "state": "completed" if over else "scheduled", "retired": over,
                })  # fmt: skip
        groups: Mapping[str, Sequence[int]] = self.shape.groups(rank)
        return {"version": "2.10", "pg_config": {name: {"name": name, "desc": name, "ranks": str(list(ranks))} for name, ranks in groups.items()}, "entries": entries[-ring:]}


def _numbered(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    """What a call is on all ranks that make it: messages of a pair and direction count apart."""
    counts: Counter[tuple[Any, ...]] = Counter()
    names = []
    for call in calls:
        kind, _, ends = call.operation.partition(" ")
        key: tuple[Any, ...] = (call.group, *ends.split("->")) if kind == "send" else (call.group, *reversed(ends.split("<-"))) if kind == "recv" else (call.group,)
        counts[key] += 1
        names.append((*key, counts[key]))
    return names
