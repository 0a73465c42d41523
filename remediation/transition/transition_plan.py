"""The plan of one transition of an elastic job: shares, reused gradients, state moves.

State moves: each layer that a rank lacks comes from the nearest holder (Unicron, section 6.3: a replica on the node before one
elsewhere), evenly over the holders, and nothing else is copied (Oobleck, section 5.1).
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from eagle_eye.errors import PermanentError
from eagle_eye.types import Layout, Transition, WorkerStateReport

from .member_progress import MemberProgress, layers_of, member_progress
from .micro_batch_shares import Contributions, contributions_of, deduplicated, shares_of

Move = tuple[int, int, int]
"""Ranks of sender and receiver, layer."""


def moves_of(lacking: Mapping[int, Sequence[int]], holders: Sequence[Sequence[int]], nodes: Sequence[str], layer_bytes: Sequence[int]) -> tuple[Move, ...]:
    """Every lacking layer once. lacking: receiver → layers; by layer: holders (not empty), bytes; nodes: by rank.

    In rounds in which no sender and no receiver has two moves, as far as there are other ones.
    """
    needs = [(receiver, layer, _nearest(receiver, holders[layer], nodes)) for receiver, layers in lacking.items() for layer in layers]
    # the least choice first, then the largest: so the later and smaller ones even out what they must not choose
    needs.sort(key=lambda need: (len(need[2]), -layer_bytes[need[1]], need[1], need[0]))
    given = dict.fromkeys(range(len(nodes)), 0)
    chosen: list[Move] = []
    for receiver, layer, senders in needs:
        sender = min(senders, key=lambda rank: (given[rank], rank))
        given[sender] += layer_bytes[layer]
        chosen.append((sender, receiver, layer))
    return _in_rounds(chosen)


def _nearest(receiver: int, holders: Sequence[int], nodes: Sequence[str]) -> tuple[int, ...]:
    beside = tuple(rank for rank in holders if nodes[rank] == nodes[receiver])
    return beside or tuple(holders)


def _in_rounds(moves: Sequence[Move]) -> tuple[Move, ...]:
    waiting: dict[int, dict[int, deque[Move]]] = {}
    for move in sorted(moves, key=lambda each: each[2]):
        waiting.setdefault(move[1], {}).setdefault(move[0], deque()).append(move)
    ordered: list[Move] = []
    while waiting:
        busy: set[int] = set()
        for receiver in _longest_first(waiting):
            free = [sender for sender in waiting[receiver] if sender not in busy]
            if not free:
                continue
            sender = max(free, key=lambda each: (len(waiting[receiver][each]), -each))
            ordered.append(waiting[receiver][sender].popleft())
            busy.add(sender)
            if not waiting[receiver][sender]:
                del waiting[receiver][sender]
        waiting = {receiver: left for receiver, left in waiting.items() if left}
    return tuple(ordered)


def _longest_first(waiting: Mapping[int, Mapping[int, deque[Move]]]) -> list[int]:
    return sorted(waiting, key=lambda receiver: (-sum(map(len, waiting[receiver].values())), receiver))


def plan_transition(
    job: str,
    epoch: int,
    target: Layout,
    holdings: Iterable[WorkerStateReport],
    *,
    micro_batches: int,
    segments: int,
    layer_bytes: Sequence[int],
    speeds: Mapping[str, float] | None = None,
    before: Transition | None = None,
    torn: Mapping[str, Collection[int]] | None = None,
    at_least: int = 1,
) -> Transition:
    """What the workers of `target` do, given what they hold (in any order; reports of other workers are ignored).

    micro_batches: of a step, at least 1. segments: of a step's gradient. layer_bytes: state of each layer, in bytes.
    speeds: worker → speed, 1 if not named; shares follow it in whole micro-batches. before: the transition that the job ran
    on; with it surviving workers keep what they were to do and `lost_micro_batches` are those of the others, without it everything
    that no worker has done of a step in flight. torn: worker → layers whose state arrived changed from it: another holder gives
    them, if there is one. at_least: workers that the job needs.

    Raises PermanentError where the job cannot go on in place: too few workers, a worker that has not reported its state, a
    layer that no living worker holds, numbers that do not fit the job.
    """
    workers = _workers(job, target, at_least)
    held = _by_rank(job, workers, holdings, micro_batches, segments, len(layer_bytes))
    pace = _speeds(workers, speeds or {})
    progress = member_progress(held, segments)
    shares = shares_of(micro_batches, pace)
    owned = [_owned(before, worker, progress.step) for worker in workers]
    contributions = _contributions(progress, held, owned, shares, pace, micro_batches)
    lost = _lost(progress, held, workers, before, micro_batches)
    moves = _moves(progress, held, layer_bytes, torn or {})
    return Transition(
        job=job,
        epoch=epoch,
        target=target,
        step=progress.step,
        current=contributions.current,
        shares=shares,
        finish=progress.finish,
        moves=moves,
        bytes=sum(layer_bytes[layer] for _, _, layer in moves),
        source="" if progress.holders else "checkpoint",
        lost_micro_batches=lost,
        recompute=_of_worker(workers, [sorted(set(mine) & set(lost)) for mine in contributions.current]),
        dropped=_of_worker(workers, contributions.dropped),
    )


def _workers(job: str, target: Layout, at_least: int) -> tuple[str, ...]:
    places = sorted(target.placements, key=lambda place: place.rank)
    if [place.rank for place in places] != list(range(len(places))):
        raise PermanentError(f"{job}: the ranks of epoch {target.epoch} are {[place.rank for place in places]}; they must count from 0 without a gap")
    if len(places) < max(1, at_least):
        raise PermanentError(f"{job}: {len(places)} workers are left and the job needs {max(1, at_least)}: give it more, or lower --min-workers")
    return tuple(place.worker for place in places)


def _by_rank(job: str, workers: Sequence[str], holdings: Iterable[WorkerStateReport], micro_batches: int, segments: int, layers: int) -> list[WorkerStateReport]:
    reported: dict[str, WorkerStateReport] = {}
    for holding in holdings:
        if reported.setdefault(holding.worker, holding) != holding:
            raise PermanentError(f"{job}: {holding.worker} reported its state twice, with different contents; ask it again")
    missing = [worker for worker in workers if worker not in reported]
    if missing:
        raise PermanentError(f"{job}: {', '.join(missing)} has not reported its state: exclude it from the epoch, or ask it again")
    held = [reported[worker] for worker in workers]
    for holding in held:
        _check(job, holding, "micro-batch", holding.done, micro_batches)
        _check(job, holding, "segment", holding.segments, segments)
        _check(job, holding, "layer", holding.layers or (), layers)
    return held


def _check(job: str, holding: WorkerStateReport, what: str, numbers: Collection[int], total: int) -> None:
    wrong = [number for number in numbers if not 0 <= number < total]
    if wrong:
        raise PermanentError(f"{job}: {holding.worker} holds {what} {wrong[0]}, and the job has {total} of them: its workers run different programs")


def _speeds(workers: Sequence[str], speeds: Mapping[str, float]) -> tuple[float, ...]:
    still = [worker for worker in workers if not speeds.get(worker, 1.0) > 0]
    if still:
        raise PermanentError(f"the speed of {still[0]} is {speeds[still[0]]}; it must be above zero: exclude a worker that makes no progress")
    return tuple(float(speeds.get(worker, 1.0)) for worker in workers)


def _share(before: Transition, rank: int, step: int) -> tuple[int, ...]:
    """What the rank was to do of the step."""
    return before.current[rank] if step == before.step and not before.finish else before.shares[rank]


def _owned(before: Transition | None, worker: str, step: int) -> tuple[int, ...]:
    rank = before.target.rank_of(worker) if before is not None else -1
    return () if before is None or rank < 0 else _share(before, rank, step)


def _contributions(
    progress: MemberProgress,
    held: Sequence[WorkerStateReport],
    owned: Sequence[Collection[int]],
    shares: tuple[tuple[int, ...], ...],
    speeds: Sequence[float],
    micro_batches: int,
) -> Contributions:
    done = [holding.done if rank in progress.working else () for rank, holding in enumerate(held)]
    if progress.finish:
        return deduplicated(done)
    if not progress.begun:
        return Contributions(shares, ((),) * len(shares))
    # who still waits for state would hold the others up
    return contributions_of(micro_batches, done, owned, progress.holders, speeds)


def _lost(progress: MemberProgress, held: Sequence[WorkerStateReport], workers: Sequence[str], before: Transition | None, micro_batches: int) -> tuple[int, ...]:
    if progress.finish or not progress.working or not progress.begun:  # at a boundary nobody had anything of the next step
        return ()
    done = {number for rank in progress.working for number in held[rank].done}
    if before is None:
        return tuple(sorted(set(range(micro_batches)) - done))
    keeping = {workers[rank] for rank in progress.holders}
    gone = [place.rank for place in before.target.placements if place.worker not in keeping]
    return tuple(sorted({number for rank in gone for number in _share(before, rank, progress.step)} - done))


def _moves(progress: MemberProgress, held: Sequence[WorkerStateReport], layer_bytes: Sequence[int], torn: Mapping[str, Collection[int]]) -> tuple[Move, ...]:
    nodes = [holding.node for holding in held]
    layers = range(len(layer_bytes))
    if not progress.holders:
        # one initial state for all, where there is no checkpoint
        alike = progress.step == 0 and all(holding.step == 0 for holding in held)
        return moves_of(dict.fromkeys(range(1, len(held)), layers), [(0,)] * len(layers), nodes, layer_bytes) if alike else ()
    has = {rank: _whole(progress, held, rank, len(layers)) for rank in range(len(held))}
    holders = [tuple(rank for rank in has if layer in has[rank]) for layer in layers]
    orphans = [layer for layer in layers if not holders[layer]]
    if orphans:
        raise PermanentError(f"no living worker holds the state of layer {orphans[0]} of step {progress.step}: start again from a checkpoint")
    trusted = [tuple(rank for rank in holders[layer] if layer not in torn.get(held[rank].worker, ())) or holders[layer] for layer in layers]
    lacking = {rank: [layer for layer in layers if layer not in has[rank]] for rank in progress.lacking}
    return moves_of(lacking, trusted, nodes, layer_bytes)


def _whole(progress: MemberProgress, held: Sequence[WorkerStateReport], rank: int, layers: int) -> frozenset[int]:
    """Layers of the newest state that a rank has when the moves begin; what arrived in part is old once others apply."""
    if rank in progress.lacking and (held[rank].step != progress.step or progress.finish):
        return frozenset()
    return layers_of(held[rank], layers)


def _of_worker(workers: Sequence[str], numbers: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {worker: tuple(mine) for worker, mine in zip(workers, numbers, strict=True) if mine}
