"""A year of 10,000 nodes in seconds: 8 jobs, the faults of Llama 3, every policy, on one core.

    python -m benchmarks.planner.simulator_year [--days N] [--json]

Nodes are handed out by sixteen; then a month by single nodes, for the policies that plan. Times are of the process's own
core (the machine may be busy), with the clock on the wall beside it.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.report import Row, report
from remediation.simulator import job_mix, recovery_policy
from remediation.simulator.simulation import Scenario, SimulationResult, simulate
from remediation.simulator.trace_generators import generate

NODES, GPUS_PER_NODE, UNIT, SPARES = 10_000, 8, 16, 208
"""Spares: for the policies that wait; about as many as are out for repair at a time, and half as many again."""
TASKS, TRACE = "eight", "llama3"
GOAL_S = 120.0
MONTH_DAYS = 30.0


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status says whether every goal was met."""
    parser = argparse.ArgumentParser(description="a year of a large cluster")
    parser.add_argument("--days", type=float, default=365.0)
    parser.add_argument("--json", action="store_true", help="the same rows as JSON")
    options = parser.parse_args(arguments)
    began, wall = time.process_time(), time.perf_counter()
    results = [(run(name, options.days, UNIT)) for name in recovery_policy.policy_names()]
    core_s, wall_s = time.process_time() - began, time.perf_counter() - wall
    rows = [total(results, core_s, wall_s, options.days), *(row(result, seconds) for result, seconds in results)]
    rows += [month(name) for name in recovery_policy.policy_names() if recovery_policy.load_policy(name).costs.capacity == "reallocate"]
    return report(rows, json=options.json, title="Simulator: a year of 10,000 nodes")


def run(name: str, days: float, unit: int) -> tuple[SimulationResult, float]:
    """With the seconds of the core, the making of trace and jobs included."""
    began = time.process_time()
    trace = generate(TRACE, 1, NODES, days, GPUS_PER_NODE)
    scenario = Scenario(jobs=job_mix.read_job_mix(TASKS, NODES, GPUS_PER_NODE), gpus_per_node=GPUS_PER_NODE, unit=unit, spares=SPARES)
    result = simulate(scenario, recovery_policy.load_policy(name), trace)
    return result, time.process_time() - began


def total(results: Sequence[tuple[SimulationResult, float]], core_s: float, wall_s: float, days: float) -> Row:
    """The goal."""
    events = sum(result.events for result, _ in results)
    asked, solved = (sum(getattr(result, name) for result, _ in results) for name in ("allocations_asked", "allocations_solved"))
    return Row(
        f"{days:g} days of {NODES:,} nodes, 8 jobs, unit {UNIT}, {len(results)} policies", f"{core_s:.1f} s of a core ({wall_s:.1f} s on the wall)",
        f"≤ {GOAL_S:g} s", core_s <= GOAL_S, f"{events / core_s:,.0f} events/s; {asked:,} plans asked, {asked - solved:,} remembered ({1 - solved / asked:.1%})",
    )  # fmt: skip


def row(result: SimulationResult, seconds: float) -> Row:
    """One policy's year."""
    plans = f"; {result.allocations_asked / seconds:,.0f} plans/s, {1 - result.allocations_solved / result.allocations_asked:.1%} remembered" if result.allocations_asked else ""
    lost = ", ".join(f"{word} {100 * share:.2f} %" for word, share in result.time_shares.items() if share >= 0.0005)
    return Row(f"{result.policy}: {result.events:,} events", f"{seconds:.1f} s{plans}", "", None, f"mean WAF {result.mean_waf / 1e18:.2f} EFLOP/s; {lost}")


def month(name: str) -> Row:
    """By single nodes."""
    result, seconds = run(name, MONTH_DAYS, 1)
    each_ms = 1000 * result.allocations_s / max(1, result.allocations_solved)
    return Row(
        f"{name}, unit 1: {MONTH_DAYS:g} days, {result.events:,} events", f"{seconds:.1f} s of a core", "", None,
        f"{result.allocations_asked:,} plans asked, {result.allocations_solved:,} solved, {each_ms:.0f} ms each; mean WAF {result.mean_waf / 1e18:.2f} EFLOP/s",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
