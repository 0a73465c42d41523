"""The cheapest assignment of nodes to places (Hungarian method, shortest augmenting paths; O(n³), rows in vectors)."""

import numpy as np

CostMatrix = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FAR = np.int64(2**62)


def assign(costs: CostMatrix) -> list[int]:
    """costs: (places, nodes), as many of each, whole numbers below 2^53. Returns the node of each place."""
    count = len(costs)
    place_price, node_price = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    holder = np.full(count + 1, -1, dtype=np.int64)  # the place of each node; the last entry is the path's start
    for place in range(count):
        before = np.full(count + 1, count, dtype=np.int64)
        distance = np.full(count, FAR, dtype=np.int64)
        done = np.zeros(count + 1, dtype=bool)
        holder[count], at = place, count
        while holder[at] >= 0:
            done[at] = True
            row = int(holder[at])
            reduced = costs[row] - place_price[row] - node_price[:count]
            better = ~done[:count] & (reduced < distance)
            distance[better] = reduced[better]
            before[:count][better] = at
            step_to = int(np.argmin(np.where(done[:count], FAR, distance)))
            step = distance[step_to]
            place_price[holder[done]] += step
            node_price[done] -= step
            distance[~done[:count]] -= step
            at = step_to
        while at != count:
            holder[at] = holder[before[at]]
            at = int(before[at])
    node_of = np.empty(count, dtype=np.int64)
    node_of[holder[:count]] = np.arange(count)
    return [int(node) for node in node_of]
