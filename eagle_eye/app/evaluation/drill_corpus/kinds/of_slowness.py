"""Jobs that are slower: because of a worker, a node, of all, or of nobody who is sick."""

from collections.abc import Callable

import msgspec
import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import NOBODY, DrillJob, DrillLabel, StepSignals, TickSignals
from eagle_eye.types import Kind

from .signs import fault, twin

LONG_S, LONGER_S = 45, 75
SLOW_WORDS = ("throughput lost", "job slow", "slow communication", "slow input")
RANKS = 8
"""Experts of a replica, ranks of its tensors or of its context."""
NOTHING_MUCH = ("", *SLOW_WORDS)


def _steps(job: DrillJob, change: Callable[[StepSignals], None]) -> None:
    job.effect.step = change


def _slow(low: float, high: float, *causes: str, whole: bool = False, clocks: bool = False) -> Callable[[DrillJob], DrillLabel]:
    """The target, or all of its node, computes so many times as long."""

    def happen(job: DrillJob) -> DrillLabel:
        times = float(job.rng.uniform(low, high))
        who = job.indices(job.target.node) if whole else [job.target.rank]

        def change(step: StepSignals) -> None:
            step.compute_s[who] *= times

        _steps(job, change)
        if clocks:
            _throttled(job, 1.0 / times)
        return DrillLabel(causes, (job.node if whole else job.worker,))

    return happen


def _throttled(job: DrillJob, share: float) -> None:
    def tick(signals: TickSignals) -> None:
        at = signals.place(Kind.GPU, job.target.gpu)
        for name in ("sm_clock_mhz", "power_watts"):
            signals.metrics[Kind.GPU][name][at] *= np.float32(share)

    job.effect.tick = tick


def _creeps(job: DrillJob) -> DrillLabel:
    first: list[int] = []

    def change(step: StepSignals) -> None:
        first.append(step.number)
        step.compute_s[job.target.rank] *= 1.0 + 0.008 * (step.number - first[0])

    _steps(job, change)
    return DrillLabel(("slower worker", "slow worker"), (job.worker,))


def _all(low: float, high: float) -> Callable[[DrillJob], DrillLabel]:
    def happen(job: DrillJob) -> DrillLabel:
        times = float(job.rng.uniform(low, high))

        def change(step: StepSignals) -> None:
            step.compute_s *= times

        _steps(job, change)
        return DrillLabel(("throughput lost", "job slow"), NOBODY)

    return happen


def _collectives(job: DrillJob) -> DrillLabel:
    more = float(job.rng.uniform(0.5, 1.0))

    def change(step: StepSignals) -> None:
        step.wait_s += more

    _steps(job, change)
    return DrillLabel(("slow communication",), NOBODY)


def _input(job: DrillJob) -> DrillLabel:
    more = float(job.rng.uniform(0.5, 1.0))

    def change(step: StepSignals) -> None:
        step.data_s += more

    _steps(job, change)
    return DrillLabel(("slow input",), NOBODY)


def _input_of_one(job: DrillJob) -> DrillLabel:
    """Its data loader is slow, and all wait for it."""
    more = float(job.rng.uniform(0.5, 1.0))

    def change(step: StepSignals) -> None:
        step.data_s[job.target.rank] += more

    _steps(job, change)
    return DrillLabel(("slow input", "throughput lost", "job slow"), NOBODY)


def _quota(job: DrillJob) -> DrillLabel:
    """The cgroup of a node's workers has used up its processors."""
    who, times = job.indices(job.target.node), float(job.rng.uniform(1.5, 2.0))

    def change(step: StepSignals) -> None:
        step.compute_s[who] *= times

    def tick(signals: TickSignals) -> None:
        rows = signals.metrics[Kind.WORKER]
        rows["throttled_percent"][who], rows["cpu_quota"][who] = 60.0, 4.0

    _steps(job, change)
    job.effect.tick = tick
    return DrillLabel(("cpu quota",), NOBODY)


def _crowded(job: DrillJob) -> DrillLabel:
    """Other programs have the processors of a node."""
    who, times = job.indices(job.target.node), float(job.rng.uniform(1.4, 1.9))

    def change(step: StepSignals) -> None:
        step.compute_s[who] *= times * np.exp(job.rng.normal(0.0, 0.1, len(who)))

    def tick(signals: TickSignals) -> None:
        signals.metrics[Kind.WORKER]["runqueue_percent"][who] = 100.0 * (1.0 - 1.0 / times)
        signals.metrics[Kind.NODE]["cpu_percent"][signals.place(Kind.NODE, job.target.node)] = 99.0

    _steps(job, change)
    job.effect.tick = tick
    return DrillLabel(("host contended", *NOTHING_MUCH), NOBODY)


def _more_tokens(job: DrillJob) -> DrillLabel:
    times = float(job.rng.uniform(1.2, 1.8))

    def change(step: StepSignals) -> None:
        step.compute_s[job.target.rank] *= times
        step.tokens[job.target.rank] *= times

    _steps(job, change)
    return DrillLabel(NOTHING_MUCH, NOBODY)


def _longer_sequences(job: DrillJob) -> DrillLabel:
    """As many tokens in longer sequences: attention takes longer."""
    times = float(job.rng.uniform(1.1, 1.25))

    def change(step: StepSignals) -> None:
        lengths = np.full(len(step.tokens), 2048.0, np.float32)
        lengths[job.target.rank] *= np.float32(times)
        step.logged["sequence_length"] = lengths
        step.compute_s[job.target.rank] *= times

    _steps(job, change)
    return DrillLabel(NOTHING_MUCH, NOBODY)


def _fast(job: DrillJob) -> DrillLabel:
    def change(step: StepSignals) -> None:
        step.compute_s[job.target.rank] *= 0.7

    _steps(job, change)
    return DrillLabel(("",), NOBODY)


def _long_stage(job: DrillJob) -> DrillLabel:
    last = max(place.pp for place in job.layout.placements)
    who = [place.rank for place in job.layout.placements if place.pp == last]

    def change(step: StepSignals) -> None:
        step.compute_s[who] *= 1.4

    _steps(job, change)
    return DrillLabel(NOTHING_MUCH, NOBODY)


def _split(job: DrillJob, rank: str, ranks: int) -> list[int]:
    """Its layout says which expert (ep), context (cp) or tensor rank (tp) each worker has, and that its replicas have so many of them. Returns the rank of each worker."""
    places = [msgspec.structs.replace(place, dp=place.dp // ranks, **{rank: place.dp % ranks}) for place in job.layout.placements]
    job.layout = msgspec.structs.replace(job.layout, placements=tuple(places))
    return [getattr(place, rank) for place in places]


def _work_of_rank(rank: str) -> Callable[[DrillJob], DrillLabel]:
    """One rank of each replica gets more to do: an expert that is chosen more often, the end of a causal context, the tensor rank with the norms."""

    def happen(job: DrillJob) -> DrillLabel:
        ranks, times = _split(job, rank, RANKS), float(job.rng.uniform(1.35, 1.6))
        who = [at for at, each in enumerate(ranks) if each == ranks[job.target.rank]]

        def change(step: StepSignals) -> None:
            step.compute_s[who] *= times

        _steps(job, change)
        return DrillLabel(NOTHING_MUCH, NOBODY)

    return happen


def _expert_of_its_own(job: DrillJob) -> DrillLabel:
    """As many experts as workers, one of which is chosen more often from the start: nobody has its work."""
    times = float(job.rng.uniform(1.35, 1.6))
    _split(job, "ep", len(job.layout.placements))

    def change(step: StepSignals) -> None:
        step.compute_s[job.target.rank] *= times

    job.effect.script = change
    return DrillLabel(NOTHING_MUCH, NOBODY)


def _expert_wanders(job: DrillJob) -> DrillLabel:
    """The expert that is chosen more often is another one every 16 steps."""
    ranks, times = np.array(_split(job, "ep", RANKS)), float(job.rng.uniform(1.35, 1.6))

    def change(step: StepSignals) -> None:
        step.compute_s[ranks == step.number // 16 * 3 % RANKS] *= times

    _steps(job, change)
    return DrillLabel(NOTHING_MUCH, NOBODY)


def _work_wanders(job: DrillJob) -> DrillLabel:
    """More work comes to another worker every 5 steps, and nothing is logged of it."""
    times = float(job.rng.uniform(1.35, 1.6))

    def change(step: StepSignals) -> None:
        step.compute_s[(job.target.rank + step.number // 5 * 7) % len(step.compute_s)] *= times

    _steps(job, change)
    return DrillLabel(NOTHING_MUCH, NOBODY)


def _unknown_work(job: DrillJob) -> DrillLabel:
    """No tokens are logged: it may have more work."""
    times = float(job.rng.uniform(1.5, 2.0))

    def no_tokens(step: StepSignals) -> None:
        step.without = ("tokens",)

    def change(step: StepSignals) -> None:
        step.compute_s[job.target.rank] *= times

    job.effect.script = no_tokens
    _steps(job, change)
    return DrillLabel(("unequal compute", *NOTHING_MUCH), NOBODY)


def _collects(job: DrillJob) -> DrillLabel:
    """Python's garbage collector, in every step of one worker."""

    def change(step: StepSignals) -> None:
        step.compute_s[job.target.rank] += 0.5
        paused = np.zeros(len(step.tokens), np.float32)
        paused[job.target.rank] = 0.5
        step.logged["garbage_collection_s"] = paused

    _steps(job, change)
    return DrillLabel(("garbage collection", *NOTHING_MUCH), NOBODY)


def _noisy(job: DrillJob) -> DrillLabel:
    """Everybody's steps vary more than before."""

    def change(step: StepSignals) -> None:
        step.compute_s *= np.exp(job.rng.normal(0.0, 0.05, len(step.compute_s)))

    _steps(job, change)
    return DrillLabel(NOTHING_MUCH, NOBODY)


def _evaluates_between(job: DrillJob) -> DrillLabel:
    """Every tenth step ends with an evaluation of all."""

    def change(step: StepSignals) -> None:
        if step.number % 10 == 0:
            step.logged["evaluation_s"] = np.full(len(step.tokens), 4.0, np.float32)

    _steps(job, change)
    return DrillLabel(("",), NOBODY)


def _healthy(_job: DrillJob) -> DrillLabel:
    return DrillLabel(("",), NOBODY)


KINDS = (
    fault("worker 1.6 to 2.2 times as slow", "slow", _slow(1.6, 2.2, "slow worker"), lasts_s=LONG_S),
    fault("node 1.6 to 2.2 times as slow", "slow", _slow(1.6, 2.2, "slow node", whole=True), lasts_s=LONG_S, peers=32),
    fault("throttled GPU: worker 1.5 to 1.9 times as slow", "slow", _slow(1.5, 1.9, "slow worker", clocks=True), lasts_s=LONG_S),
    fault("worker 1.1 to 1.25 times as slow", "slow", _slow(1.1, 1.25, "slower worker"), lasts_s=LONG_S),
    fault("node 1.1 to 1.2 times as slow", "slow", _slow(1.1, 1.2, "slower node", whole=True), lasts_s=LONG_S, peers=32),
    fault("worker creeps", "slow", _creeps, lasts_s=LONGER_S),
    fault("all 1.35 to 1.7 times as slow", "slow", _all(1.35, 1.7), lasts_s=LONG_S),
    fault("collectives of all take longer", "slow", _collectives, lasts_s=LONG_S),
    fault("input of all takes longer", "slow", _input, lasts_s=LONG_S),
    fault("input of one worker takes longer", "slow", _input_of_one, lasts_s=LONG_S),
    fault("CPU quota of a node's workers", "slow", _quota, lasts_s=LONG_S),
    twin("other programs on a node", "slow", _crowded, lasts_s=LONG_S),
    twin("one worker has more tokens", "slow", _more_tokens, lasts_s=LONG_S),
    twin("one worker has longer sequences", "slow", _longer_sequences, lasts_s=LONG_S),
    twin("one worker is fast", "slow", _fast, lasts_s=LONG_S),
    twin("the last stage becomes long", "slow", _long_stage, lasts_s=LONG_S, stages=(2, 4)),
    twin("one of eight experts is chosen more often", "slow", _work_of_rank("ep"), lasts_s=LONG_S, stages=(1,)),
    twin("one of eight tensor ranks has more to do", "slow", _work_of_rank("tp"), lasts_s=LONG_S, stages=(1,)),
    twin("one of eight context ranks has more to do", "slow", _work_of_rank("cp"), lasts_s=LONG_S, stages=(1,)),
    twin("each worker has its expert, one is chosen more often", "slow", _expert_of_its_own, lasts_s=LONG_S, stages=(1,)),
    twin("the expert that is chosen more often changes", "slow", _expert_wanders, lasts_s=LONGER_S, stages=(1,)),
    twin("work wanders over the workers", "slow", _work_wanders, lasts_s=LONGER_S),
    twin("one worker computes longer, nobody logs tokens", "slow", _unknown_work, lasts_s=LONG_S, stages=(1,)),
    twin("one worker collects garbage", "slow", _collects, lasts_s=LONG_S),
    twin("steps of all vary more", "slow", _noisy, lasts_s=LONG_S),
    twin("all evaluate from time to time", "slow", _evaluates_between, lasts_s=LONG_S),
    twin("healthy", "slow", _healthy, lasts_s=LONG_S),
)
