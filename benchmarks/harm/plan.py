"""What the ranks of one job are to do, step by step: written by a benchmark, read by every worker, and noted as it is done."""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

NOTES = "notes.jsonl"
STRUCK = "struck"
COMMITS = "commits"
"""Folder beside the plan, in which every worker notes the steps that it has done (benchmarks/elastic/commits.py)."""
AT_START = -1
"""The step of what happens before the first one."""


@dataclass(frozen=True, kw_only=True)
class PlannedAct:
    """One act of one rank or of several."""

    kind: str
    """A name in acts.ACTS or hanging.KINDS."""
    step: int
    """At the beginning of which it is done."""
    ranks: tuple[int, ...]
    seconds: float = 0.0
    """Of each rank alike."""
    labelled: bool = False
    """A script with marks marks the phase that it is."""
    uneven: bool = False
    """Rank r does it for r + 1 parts of as many as there are."""

    def __str__(self) -> str:
        who = "all ranks" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        return f"step {self.step}: {self.kind} {self.seconds:.0f} s on {who}{', unevenly' * self.uneven}{', labelled' * self.labelled}"


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """A fault of the user's program or data. It comes back in every life of the job, unlike an act."""

    kind: str
    """A name in faults.FAULTS."""
    step: int
    """At the beginning of which it strikes; AT_START: before the first one."""
    ranks: tuple[int, ...] = ()
    sample: int = -1
    """A micro-batch of an elastic job: whoever makes it is struck. -1: the ranks are."""
    onwards: bool = False
    """At the first step from there on that the worker begins: where a step is not done again."""
    earlier: int = 0
    """So many steps earlier in each further life."""
    moves: bool = False
    """On the next rank in each further life: the data are dealt otherwise."""
    ordered: bool = False
    """Strikes the worker that the benchmark names in the course of the job (`order`), at its next step, and only once."""

    def __str__(self) -> str:
        who = f"micro-batch {self.sample}" if self.sample >= 0 else "all ranks" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        return f"{self.kind} at {'the start' if self.step == AT_START else f'step {self.step}'} of {who}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The life of a job."""

    steps: int
    acts: tuple[PlannedAct, ...] = ()
    faults: tuple[PlannedFault, ...] = ()

    def write(self, folder: Path) -> None:
        """For the workers; `folder` is theirs."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Plan":
        found = json.loads((folder / "plan.json").read_text())
        acts = tuple(PlannedAct(**{**act, "ranks": tuple(act["ranks"])}) for act in found["acts"])
        faults = tuple(PlannedFault(**{**fault, "ranks": tuple(fault["ranks"])}) for fault in found["faults"])
        return cls(steps=found["steps"], acts=acts, faults=faults)


class Note(NamedTuple):
    """A rank has begun or ended an act, or was struck by a fault."""

    act: int
    """Its number in the plan; of a fault, its number among the faults."""
    rank: int
    what: str
    """began, ended, struck (STRUCK)"""
    time: float
    """As the stream and the ledger tell it (time.time)."""


def notes(folder: Path) -> list[Note]:
    """What was noted so far."""
    file = folder / NOTES
    return [Note(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def order(folder: Path, fault: int, worker: str) -> None:
    """The ordered fault of this number is to strike this worker (run/node/slot)."""
    file = folder / f"order-{fault}"
    file.with_suffix(".new").write_text(worker)
    file.with_suffix(".new").rename(file)


def ordered(folder: Path, fault: int) -> str:
    """The worker that the fault is to strike; '' as long as it is not ordered."""
    file = folder / f"order-{fault}"
    return file.read_text() if file.exists() else ""


def write_note(folder: Path, note: Note) -> None:
    """One more, whole, whoever writes beside it."""
    file = os.open(folder / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (json.dumps(note) + "\n").encode())
    os.close(file)


class PlanRunner:
    """Does a rank's part of the plan. An act that was begun is never begun again: the job may have been restarted."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.plan = Plan.read(folder)
        self._folder, self._rank, self._world = folder, rank, world
        done = {note.act for note in notes(folder) if note.rank == rank and note.what != STRUCK}
        self._left = {number: act for number, act in enumerate(self.plan.acts) if rank in act.ranks and number not in done}

    def due(self, step: int, kinds: Callable[[str], bool]) -> Iterable[tuple[int, PlannedAct]]:
        """Acts of this step, each once."""
        found = [(number, act) for number, act in self._left.items() if act.step == step and kinds(act.kind)]
        for number, _ in found:
            del self._left[number]
        return found

    def seconds(self, act: PlannedAct) -> float:
        """Of this rank."""
        return act.seconds * (self._rank + 1) / self._world if act.uneven else act.seconds

    def note(self, number: int, what: str) -> None:
        """For the benchmark."""
        write_note(self._folder, Note(number, self._rank, what, time.time()))
