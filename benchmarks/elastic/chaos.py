"""Fault schedules: drawn from a seed, played on a small job, and counted only if the record proves that the fault landed.

A fault is aimed at a point of a step (eagle_eye/training/elastic/fault_injection.py), but whether the others were where it wanted
them is a matter of milliseconds. So the job's own record of the transition is asked afterwards.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.elastic.ours import Order, OurJob
from benchmarks.elastic.trials import LOOK_S, GaveUp
from eagle_eye.types import Event

STEPS = 32
FIRST, LAST = 3, 12
"""Between which steps faults strike: early enough that replacements still have something to join."""
LATER = 14
"""By how many steps the second of two schedules in one run is later: the job has recovered from the first."""
PATIENCE_S = 30.0
"""Without a single commit."""
START_S = 120.0
"""Until the first one: on a busy machine the imports of all processes take long."""
ALONE = {"n0": 4}
TWO_NODES = {"n0": 2, "n1": 2}
THREE_NODES = {"n0": 1, "n1": 1, "n2": 2}
Fault = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is to happen to one run."""

    kind: str
    seed: int
    faults: tuple[Fault, ...] = ()
    nodes: Mapping[str, int]
    coordinator_after: int | None = None
    """The launcher of the first node is killed once this step is committed."""

    def __str__(self) -> str:
        words = [f"{fault['act']} {victim_of(fault)} {fault['phase']} step {fault['step']}" for fault in self.faults]
        if self.coordinator_after is not None:
            words.append(f"kill launcher n0 after step {self.coordinator_after}")
        return f"{self.kind}, seed {self.seed}: {', '.join(words)}"


@dataclass(frozen=True)
class Played:
    """How a run ended."""

    schedules: tuple[Schedule, ...]
    not_landed: tuple[str, ...]
    """For each schedule, why the record does not prove that the fault struck where it was meant to; empty if it does."""
    job: OurJob
    codes: Mapping[str, int | None]
    """Exit code of each launcher that was not killed on purpose; None: it had to be ended."""
    killed: frozenset[str] = frozenset()
    """Nodes of the others."""


# --- drawing ----------------------------------------------------------------------------------------------------------


def fault(chance: random.Random, phase: str, act: str = "kill", **fixed: object) -> Fault:
    """One worker of a job on one node, unless the node is given."""
    return {"node": "n0", "worker": chance.randrange(4), "step": chance.randint(FIRST, LAST), "phase": phase, "act": act, **fixed}


def one(*phases: str, act: str = "kill") -> Callable[[random.Random], tuple[Fault, ...]]:
    """One worker, at one of these points."""
    return lambda chance: (fault(chance, chance.choice(phases), act),)


def two_at_once(chance: random.Random) -> tuple[Fault, ...]:
    """Two of four workers, at the same point of the same step; or one on each of two nodes."""
    phase = chance.choice(("computing", "reducing"))
    if chance.random() < 0.5:
        first = fault(chance, phase, worker=chance.randrange(2))
        return first, {**first, "node": "n1", "worker": chance.randrange(2)}
    one, other = chance.sample(range(4), 2)
    struck = fault(chance, phase, worker=one)
    return struck, {**struck, "worker": other}


def during_recovery(chance: random.Random) -> tuple[Fault, ...]:
    """A worker, and another one while the rest regroups."""
    first, second = chance.sample(range(4), 2)
    struck = fault(chance, chance.choice(("computing", "reducing")), worker=first)
    return struck, {**struck, "worker": second, "phase": "regrouping"}


def join(chance: random.Random) -> tuple[Fault, ...]:
    """A worker that is replaced; every other time its replacements die as they join."""
    struck = fault(chance, "computing")
    if chance.random() < 0.5:
        return (struck,)
    return struck, {**struck, "phase": "joining", "step": 0, "incarnation": 1}


DRAWN: dict[str, Callable[[random.Random], tuple[Fault, ...]]] = {
    "before the all-reduce": one("computing"),
    "during the all-reduce": one("reducing"),
    "after the all-reduce": one("committing", "applying"),
    "two at once": two_at_once,
    "during recovery": during_recovery,
    "join": join,
    "SIGSTOP": one("computing", "reducing", "committing", act="stop"),
    "hang": one("computing", "reducing", "committing", act="hang"),
    "coordinator": lambda _: (),
}
KINDS = tuple(DRAWN)


def draw(kind: str, seed: int) -> Schedule:
    """The same schedule for the same kind and seed."""
    chance = random.Random(f"{kind}/{seed}")
    faults = DRAWN[kind](chance)
    if kind == "coordinator":
        return Schedule(kind=kind, seed=seed, nodes=THREE_NODES, coordinator_after=chance.randint(FIRST, LAST))
    nodes = TWO_NODES if any(each["node"] == "n1" for each in faults) else ALONE
    return Schedule(kind=kind, seed=seed, faults=faults, nodes=nodes)


def one_at_a_time(kind: str) -> bool:
    """Whether a schedule of this kind strikes one worker of a job on one node, so that another one may follow in the same run."""
    return kind in {"before the all-reduce", "during the all-reduce", "after the all-reduce", "SIGSTOP", "hang"}


def after(first: Schedule, second: Schedule) -> Schedule:
    """The second one, later in the same run, and on another worker: one that joined has no faults of its own."""
    [struck], [strikes] = first.faults, second.faults
    worker, step = int(str(strikes["worker"])), int(str(strikes["step"]))
    return replace(second, faults=({**strikes, "worker": (worker + (worker == struck["worker"])) % 4, "step": step + LATER},))


def victim_of(struck: Fault) -> str:
    """node/slot"""
    return f"{struck['node']}/{struck['worker']}"


# --- playing ----------------------------------------------------------------------------------------------------------


def play(schedules: Sequence[Schedule], folder: Path, script: Sequence[str] = ()) -> Played:
    """Run the job to its end; several schedules (see `after`) strike the same run. The caller looks at what it left."""
    schedule, faults = schedules[0], tuple(fault for each in schedules for fault in each.faults)
    words = ("--steps", str(STEPS), "--size", "small", *script)
    job = OurJob(folder, Order(script=words, nodes=schedule.nodes, faults=faults, lease_s=1.0))
    killed = set[str]()
    known, deadline = 0, time.monotonic() + START_S
    try:
        while any(process.poll() is None for process in job.launchers.values()):
            if len(job.commits.look()) > known:
                known, deadline = len(job.commits.all), time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline:
                raise GaveUp(f"no step was committed within {PATIENCE_S if known else START_S:g} s, and the job did not end")
            if schedule.coordinator_after is not None and not killed and committed(job, schedule.coordinator_after):
                killed.add("n0")
                kill(job.launchers["n0"].pid)
            time.sleep(LOOK_S)
    except GaveUp:
        job.end()
        job.clear_up()
        raise
    finally:
        codes = {node: process.poll() for node, process in job.launchers.items()}
        job.end()
    kept = {node: code for node, code in codes.items() if node not in killed}
    events = job.events()
    return Played(tuple(schedules), tuple(why_not_landed(each, events) for each in schedules), job, kept, frozenset(killed))


def committed(job: OurJob, step: int) -> bool:
    """Whether anybody has committed this step."""
    return any(commit.step >= step for commit in job.commits.all)


def kill(pid: int) -> None:
    """SIGKILL, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# --- what the record proves -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transition:
    """What the event says of one transition."""

    epoch: int
    step: int
    phase: str
    """How far the furthest of the others was."""
    reason: str
    lost: frozenset[str]
    """node/slot"""
    teller: str
    """Node of the launcher that led it."""


def transitions_of(events: Sequence[Event]) -> list[Transition]:
    """Those that were done, in order."""
    found = []
    for event in events:
        if event.name == "transition.done":
            words = event.attributes
            lost = frozenset("/".join(name.split("/")[-2:]) for name in words.get("lost", "").split(",") if name)
            found.append(Transition(int(words["epoch"]), int(words["step"]), words["phase"], words["reason"], lost, event.node))
    return found


def why_not_landed(schedule: Schedule, events: Sequence[Event]) -> str:
    """What is missing in the record; empty if the fault landed where it was aimed, or there was none."""
    if not schedule.faults and schedule.coordinator_after is None:
        return ""
    done = transitions_of(events)
    said = "; ".join(f"epoch {each.epoch} {each.reason} in step {each.step}, {each.phase}, lost {sorted(each.lost)}" for each in done)
    return "" if PROOFS[schedule.kind](schedule, done, events) else f"the record has {said or 'no transition'}"


@dataclass(frozen=True)
class Exit:
    """What the event says of a death."""

    epoch: int
    """That the worker was part of."""
    step: int


def exits_of(victim: str, events: Sequence[Event]) -> list[Exit]:
    """Of one worker and its replacements, in order."""
    told = [event.attributes for event in events if event.name == "exit" and event.entity.name.endswith(f"/{victim}")]
    return [Exit(int(words["epoch"]), int(words["step"] or -1)) for words in told]


def exit_of(struck: Fault, events: Sequence[Event]) -> Exit | None:
    """Its death in the step that it was to have; None if it did not happen there."""
    return next((each for each in exits_of(victim_of(struck), events) if each.step == struck["step"]), None)


Proof = Callable[[Schedule, Sequence[Transition], Sequence[Event]], bool]


def in_phase(*phases: str) -> Proof:
    """The others were in this phase of the same step."""

    def proof(schedule: Schedule, done: Sequence[Transition], _: Sequence[Event]) -> bool:
        struck = schedule.faults[0]
        return any(victim_of(struck) in each.lost and each.step == struck["step"] and each.phase in phases for each in done)

    return proof


def after_all(schedule: Schedule, done: Sequence[Transition], events: Sequence[Event]) -> bool:
    """The others held the sum; or they had applied it already, where the victim died between commit and update."""
    struck = schedule.faults[0]
    beyond = struck["phase"] == "applying" and any(
        victim_of(struck) in each.lost and each.step == int(str(struck["step"])) + 1 for each in done
    )
    return beyond or in_phase("committing", "applying")(schedule, done, events)


def both_lost(schedule: Schedule, done: Sequence[Transition], events: Sequence[Event]) -> bool:
    """They died in that step, and the transition that ended it is later than both epochs: one for both, or a second one."""
    died = [exit_of(struck, events) for struck in schedule.faults]
    last = max((each.epoch for each in died if each is not None), default=0)
    return None not in died and any(each.step == schedule.faults[0]["step"] and each.epoch > last for each in done)


def lost_in_recovery(schedule: Schedule, done: Sequence[Transition], events: Sequence[Event]) -> bool:
    """The second died in the epoch that the first had made necessary, before anybody had committed a step in it."""
    first, second = (exit_of(struck, events) for struck in schedule.faults)
    if first is None or second is None or second.epoch <= first.epoch:
        return False
    return second.epoch not in {each.epoch for each in done} and any(each.epoch > second.epoch for each in done)


def joined(schedule: Schedule, done: Sequence[Transition], events: Sequence[Event]) -> bool:
    """A worker came in; or it died, as its predecessor had, where it was to."""
    name = victim_of(schedule.faults[0])
    if len(schedule.faults) == 1:
        after = next((each.epoch for each in done if name in each.lost), STEPS)
        return any(each.reason == "join" and each.epoch > after for each in done)
    return len(exits_of(name, events)) > 1 and any(name in each.lost for each in done)


def stood_still(schedule: Schedule, done: Sequence[Transition], _: Sequence[Event]) -> bool:
    """It was left behind as one that does not move."""
    struck = schedule.faults[0]
    return any(each.reason == "stall" and victim_of(struck) in each.lost and each.step == struck["step"] for each in done)


def succeeded(_: Schedule, done: Sequence[Transition], __: Sequence[Event]) -> bool:
    """Another launcher led the others on, without the workers of the lost one."""
    return any(each.teller != "n0" for each in done)


# of the first: it dies with micro-batches to do, so no sum can be whole, whether or not the others have come to theirs
PROOFS: dict[str, Proof] = {
    "before the all-reduce": in_phase("computing", "reducing"),
    "during the all-reduce": in_phase("reducing"),
    "after the all-reduce": after_all,
    "two at once": both_lost,
    "during recovery": lost_in_recovery,
    "join": joined,
    "SIGSTOP": stood_still,
    "hang": stood_still,
    "coordinator": succeeded,
}
