"""`make bench`: runs benchmarks one after another and writes benchmarks/RESULTS.md.

    python -m benchmarks                                 all that need no data
    python -m benchmarks benchmarks.chain.probe          one; the others' sections stay as they are
    python -m benchmarks --data DIR                      those too that need public data: DIR/planner, DIR/mlperf_power, ...
"""

import argparse
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

CHAIN = (
    "benchmarks.chain.probe",
    "benchmarks.chain.stream",
    "benchmarks.chain.frames",
    "benchmarks.chain.restart",
    "benchmarks.chain.detection",
    "benchmarks.chain.overhead",
    "benchmarks.chain.replay",
    "benchmarks.chain.fresh_clone",
)
PLANNER = (
    "benchmarks.planner.allocation",
    "benchmarks.planner.templates",
    "benchmarks.planner.batches",
    "benchmarks.planner.reconfiguration",
    "benchmarks.planner.performance",
    "benchmarks.planner.simulator_oobleck",
    "benchmarks.planner.simulator_unicron",
)
"""These read public data that is no part of the project."""
SIMULATOR = ("benchmarks.planner.simulator_transom", "benchmarks.planner.simulator_year")
"""These make what they need from seeds."""
CLUSTER = (
    "benchmarks.cluster.kafka_stream",
    "benchmarks.cluster.kafka_faults",
    "benchmarks.cluster.takeover",
    "benchmarks.cluster.storm",
    "benchmarks.cluster.no_help",
)
DASHBOARD = ("benchmarks.dashboard.queries", "benchmarks.dashboard.pages")
ELASTIC = (
    "benchmarks.elastic.kill",
    "benchmarks.elastic.stop",
    "benchmarks.elastic.steady",
    "benchmarks.elastic.join",
    "benchmarks.elastic.state_rate",
)
CHECKPOINT = (
    "benchmarks.checkpoint.memory",
    "benchmarks.checkpoint.backup",
    "benchmarks.checkpoint.kills",
    "benchmarks.checkpoint.node_kills",
    "benchmarks.checkpoint.neighbour",
    "benchmarks.checkpoint.lost_nodes",
    "benchmarks.checkpoint.flips",
    "benchmarks.checkpoint.reshard",
    "benchmarks.checkpoint.many_saves",
)
"""`python -m benchmarks.checkpoint` has them all in one table."""
HARM = ("benchmarks.harm.healthy_life", "benchmarks.harm.hangs", "benchmarks.harm.user_faults")
COLLECT = ("benchmarks.collect.job_log", "benchmarks.collect.gpu_cost", "benchmarks.collect.agent_cost", "benchmarks.collect.stream_away", "benchmarks.collect.path_at_size")
"""`benchmarks.collect.gpu_beside_nvidia_smi` and those of `benchmarks/gpu/` need a GPU: by hand."""
FAULTS = (
    "benchmarks.faults.attempts",
    "benchmarks.faults.agreement",
    "benchmarks.faults.signatures",
    "benchmarks.faults.incidents_command",
    "benchmarks.faults.parts_away",
)
WATCH = ("benchmarks.watch.slow_rank", "benchmarks.watch.creeping")
HISTORY = ("benchmarks.cluster.history", "benchmarks.collect.training_values")
"""These read public data, too."""
LONG = ("benchmarks.chain.soak", "benchmarks.cluster.telemetry", "benchmarks.elastic.schedules")
"""`make soak`."""
RESULTS = Path(__file__).with_name("RESULTS.md")
HEADING = re.compile(r"^## `python -m ([\w.]+)`", re.MULTILINE)


def main() -> int:
    """Run them; a missed goal is written down, not hidden."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="names of benchmarks; default: all that can be run")
    parser.add_argument("--data", help="folder of the public data, with planner/ in it")
    options = parser.parse_args()
    chosen = options.only or [*CHAIN, *CLUSTER, *ELASTIC, *CHECKPOINT, *HARM, *FAULTS, *COLLECT, *WATCH, *DASHBOARD, *SIMULATOR, *((*HISTORY, *PLANNER) if options.data else ())]
    sections = known()
    failed = False
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        data = _data(name, options.data) if options.data else []
        done = subprocess.run([sys.executable, "-m", name, "--json", *data], stdout=subprocess.PIPE, text=True)
        try:
            sections[name] = section(name, json.loads(done.stdout))
        except ValueError:
            print(f"{name} ended with {done.returncode} and printed no result", file=sys.stderr)
            failed = True
        RESULTS.write_text(text(sections))
    return int(failed)


def _data(name: str, folder: str) -> list[str]:
    if name in PLANNER:
        return ["--data", str(Path(folder) / "planner")]
    return ["--data", folder] if name in HISTORY else []


def known() -> dict[str, str]:
    """The sections of the file as it is: name → text."""
    if not RESULTS.exists():
        return {}
    found = RESULTS.read_text()
    starts = [(match.group(1), match.start()) for match in HEADING.finditer(found)]
    ends = [*(start for _, start in starts[1:]), len(found)]
    return {name: found[start:end].rstrip() + "\n" for (name, start), end in zip(starts, ends, strict=True)}


def text(sections: dict[str, str]) -> str:
    """The whole file, the sections in the order of the lists above."""
    order = [*CHAIN, *LONG, *CLUSTER, *ELASTIC, *CHECKPOINT, *HARM, *FAULTS, *COLLECT, *WATCH, *DASHBOARD, *HISTORY, *PLANNER, *SIMULATOR]
    names = sorted(sections, key=lambda name: order.index(name) if name in order else len(order))
    head = (
        f"# Results\n\nWritten by `make bench` and `make soak` on a machine of 2 cores ({platform.machine()}, Python {platform.python_version()}); "
        "run them on yours. Peers run beside in the same command, or are named with their source.\n"
    )
    return "\n".join([head, *(sections[name] for name in names)])


def section(name: str, result: dict[str, object]) -> str:
    """One benchmark as a Markdown table."""
    rows: list[dict[str, object]] = result["rows"]  # type: ignore[assignment]
    lines = [f"## `python -m {name}`\n", "| what | figure | goal | met | beside | ratio |", "|---|---|---|---|---|---|"]
    words = {True: "yes", False: "**no**", None: ""}
    for row in rows:
        met = words[row["met"]]  # type: ignore[index]
        lines.append(f"| {row['what']} | {row['figure']} | {row['goal']} | {met} | {row['peer']} | {row['ratio']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
