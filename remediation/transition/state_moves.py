"""State moves: which layer's state goes from which rank to which: from the nearest holder, evenly over the holders, only what is missing.

Nearest principle: Unicron, section 6.3 (a replica on the node before one elsewhere). Balanced, layer-wise copies: Oobleck,
section 5.1.
"""

from collections import deque
from collections.abc import Mapping, Sequence

Move = tuple[int, int, int]
"""Ranks of giver and taker, layer."""


def moves_of(lacking: Mapping[int, Sequence[int]], holders: Sequence[Sequence[int]], nodes: Sequence[str], layer_bytes: Sequence[int]) -> tuple[Move, ...]:
    """Every lacking layer once. lacking: taker → layers; by layer: holders (not empty), bytes; nodes: by rank.

    In rounds in which no giver and no taker has two moves, as far as there are other ones.
    """
    needs = [(taker, layer, _nearest(taker, holders[layer], nodes)) for taker, layers in lacking.items() for layer in layers]
    # the least choice first, then the largest: so the later and smaller ones even out what they must not choose
    needs.sort(key=lambda need: (len(need[2]), -layer_bytes[need[1]], need[1], need[0]))
    given = dict.fromkeys(range(len(nodes)), 0)
    chosen: list[Move] = []
    for taker, layer, givers in needs:
        giver = min(givers, key=lambda rank: (given[rank], rank))
        given[giver] += layer_bytes[layer]
        chosen.append((giver, taker, layer))
    return _in_rounds(chosen)


def _nearest(taker: int, holders: Sequence[int], nodes: Sequence[str]) -> tuple[int, ...]:
    beside = tuple(rank for rank in holders if nodes[rank] == nodes[taker])
    return beside or tuple(holders)


def _in_rounds(moves: Sequence[Move]) -> tuple[Move, ...]:
    waiting: dict[int, dict[int, deque[Move]]] = {}
    for move in sorted(moves, key=lambda each: each[2]):
        waiting.setdefault(move[1], {}).setdefault(move[0], deque()).append(move)
    ordered: list[Move] = []
    while waiting:
        busy: set[int] = set()
        for taker in _longest_first(waiting):
            free = [giver for giver in waiting[taker] if giver not in busy]
            if not free:
                continue
            giver = max(free, key=lambda each: (len(waiting[taker][each]), -each))
            ordered.append(waiting[taker][giver].popleft())
            busy.add(giver)
            if not waiting[taker][giver]:
                del waiting[taker][giver]
        waiting = {taker: left for taker, left in waiting.items() if left}
    return tuple(ordered)


def _longest_first(waiting: Mapping[int, Mapping[int, deque[Move]]]) -> list[int]:
    return sorted(waiting, key=lambda taker: (-sum(map(len, waiting[taker].values())), taker))
