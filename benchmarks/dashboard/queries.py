"""What the pages ask, at 10,000 nodes × 8 GPUs × 10 minutes: how long each answer takes, and what it costs in memory.

python -m benchmarks.dashboard.queries [--nodes 10000] [--keep DIR] [--json]
"""

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.report import Row, report
from dashboard.queries import actions, cluster, incident, incidents, job, self_monitoring
from dashboard.sources import Sources, StandingClock
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.ledger import Ledger

from .large_cluster import LargeCluster

GOAL_S = 1.0
REPEATS = 3


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status says whether the goals were met."""
    parser = argparse.ArgumentParser(description="the dashboard's queries on a large cluster")
    parser.add_argument("--json", action="store_true", help="the same rows as JSON")
    parser.add_argument("--nodes", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--keep", type=Path, help="folder of the data; used again if it is there")
    options = parser.parse_args(arguments)
    made = LargeCluster(nodes=options.nodes)
    with tempfile.TemporaryDirectory(prefix="eagle-eye-dashboard-") as folder:
        state = options.keep or Path(folder)
        prepare(made, state)
        rows = measure(made, state)
    return report(rows, json=options.json, title=f"The dashboard's queries at {options.nodes:,} nodes")


def prepare(made: LargeCluster, state: Path) -> None:
    """Make the data, unless it is there whole."""
    if (state / "ledger.sqlite").exists():
        Ledger.open(state / "ledger.sqlite").close()  # an older version may have made it
        return
    with Console(stderr=True).status("writing the history") as status:
        for done in made.write(state):
            status.update(f"writing the history: {done}")


def measure(made: LargeCluster, state: Path) -> list[Row]:
    """Each question cold (the first time), and the median of further times with nothing remembered."""
    rows = []
    for what, ask in questions(made).items():
        times = []
        for _ in range(REPEATS + 1):
            sources = Sources(msgspec.structs.replace(Config(), state_dir=str(state), server=ServerConfig(http="")), clock=StandingClock(time=made.end))
            begin = SystemClock().monotonic()
            ask(sources)
            times.append(SystemClock().monotonic() - begin)
            sources.close()
        warm = sorted(times[1:])[REPEATS // 2]
        rows.append(Row(what, f"{warm:.2f} s (first {times[0]:.2f} s)", f"≤ {GOAL_S:g} s", warm <= GOAL_S))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*rows, Row("memory of one process that asks them all, peak", f"{peak:.0f} MB")]


def questions(made: LargeCluster) -> dict[str, Callable[[Sources], object]]:
    """As the pages ask them when they are opened."""
    since, until, large = made.begin, made.end, next(iter(made.jobs))
    return {
        "overview of jobs and nodes": lambda sources: cluster.overview(sources, since=since, until=until),
        "heat map of a GPU metric, now": lambda sources: cluster.heat(sources, metric="power_watts", table="gpu/gpu", at=until),
        "heat map of a GPU metric, last minute": lambda sources: cluster.heat(sources, metric="power_watts", table="gpu/gpu", since=until - 60.0, until=until),
        "heat map of a node metric, now": lambda sources: cluster.heat(sources, metric="cpu_percent", table="node/host", at=until),
        "course of the largest job": lambda sources: job.timeline(sources, large, since=since, until=until),
        "workers of the largest job": lambda sources: job.workers(sources, large, since=since, until=until),
        "list of incidents": incidents.listed,
        "story of an incident": lambda sources: incident.story(sources, "incident-000"),
        "evidence of an incident": lambda sources: incident.plots(sources, incident.story(sources, "incident-000")),
        "actions and guards": lambda sources: (actions.done(sources, since=since), actions.guards(sources, since=since)),
        "Eagle Eye itself": self_monitoring.status,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
