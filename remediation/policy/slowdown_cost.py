"""What the alternatives against a slow-down cost, in GPU-seconds over the expected further running time.

The cost of a choice is the work that is not done: workers × (downtime + work done again since the newest checkpoint
+ horizon × share of throughput lost);
Unicron's objective (PAPERS: G = F·D_running - F·D_transition) with equal weights and one task.
"""

import math
from dataclasses import dataclass

NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A job that runs on, slower than it did."""

    workers: int
    now: float
    """Throughput, tokens or steps per second."""
    healthy: float
    """The same, of all workers before the fault."""
    without: float
    """The same, expected of the workers that are left without the culprit's node; NaN if it cannot be evicted."""
    downtime_s: float
    """All stand still for so long when the culprits are restarted ..."""
    eviction_s: float
    """... and when the culprit's node is evicted."""
    horizon_s: float
    restart_success_share: float
    """Share of slow-downs that a restart ends."""
    redone_s: float = 0.0
    """Work since the newest checkpoint, in seconds of all healthy workers, that a restart of the culprits does again ..."""
    eviction_redone_s: float = 0.0
    """... and that an eviction of the node does."""
    gpu_seconds_starting: float = 0.0
    """GPU-seconds in which the places of restarted workers are empty while the others work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownOption:
    """An alternative and its price."""

    action: str
    cost: float
    """GPU-seconds."""
    why: str


def weigh(slow: Slowdown, tried: frozenset[str]) -> list[SlowdownOption]:
    """All alternatives that are left, the cheapest first. `tried`: actions that did not help.

    Empty if no throughput is known: nothing can be weighed then.
    """
    if not (math.isfinite(slow.now) and math.isfinite(slow.healthy)) or slow.healthy <= 0:
        return []
    nothing = slow.workers * slow.horizon_s * _share_lost(slow.now, slow.healthy)
    choices = [SlowdownOption(action=NOTHING, cost=nothing, why=f"runs at {slow.now / slow.healthy:.0%} of its throughput")]
    if math.isfinite(slow.without) and "evict_node" not in tried:
        leave = slow.workers * (slow.eviction_s + slow.eviction_redone_s) + slow.workers * slow.horizon_s * _share_lost(slow.without, slow.healthy)
        why = f"{_stopped(slow.eviction_s, slow.eviction_redone_s)}, then {slow.without / slow.healthy:.0%} of the throughput"
        choices.append(SlowdownOption(action="evict_node", cost=leave, why=why))
    if "restart_worker" not in tried:
        otherwise = min(choice.cost for choice in choices)
        restart = slow.workers * (slow.downtime_s + slow.redone_s) + slow.gpu_seconds_starting + (1 - slow.restart_success_share) * otherwise
        why = f"{_stopped(slow.downtime_s, slow.redone_s)}; {slow.restart_success_share:.0%} of slow-downs end with it"
        choices.append(SlowdownOption(action="restart_worker", cost=restart, why=why))
    return sorted(choices, key=lambda choice: choice.cost)


def _stopped(downtime_s: float, redone_s: float) -> str:
    return f"{downtime_s:.1f} s of downtime" + (f" and {redone_s:.1f} s of work done again" if redone_s else "")


def _share_lost(throughput: float, healthy: float) -> float:
    return max(0.0, 1.0 - throughput / healthy)
