"""What being watched costs: training slowed by probe, agent and launcher, and the processor time of agent and launcher.

    python -m benchmarks.chain.overhead [--pairs 10] [--json]

Two ranks of examples/train_gpt.py, in pairs of runs that follow one another: once under an agent and a launcher,
once as two bare processes with torchrun's environment and no launcher (then the probe writes nothing). The time of
a run is taken between two checkpoints, from the times of their files, so that starting up does not count.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import Row, report
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.app.demo.scenario import script
from eagle_eye.clock import SystemClock
from eagle_eye.ports import free_port

STEPS = 160
RANKS = 2
STUDENT = {5: 2.571, 8: 2.365, 10: 2.262, 12: 2.201, 15: 2.145, 20: 2.093, 30: 2.045}
"""97.5 % points of Student's t for that many pairs (nearest below is taken)."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eagle-eye-overhead-") as folder:
        watched, bare, shares = [], [], []
        for pair in range(options.pairs):
            place = Path(folder) / str(pair)
            order = (True, False) if pair % 2 else (False, True)
            for with_us in order:
                if with_us:
                    seconds, share = run_watched(place / "watched")
                    watched.append(seconds)
                    shares.append(share)
                else:
                    bare.append(run_bare(place / "bare"))
            print(f"pair {pair + 1}/{options.pairs}: watched {watched[-1]:.3f} s, bare {bare[-1]:.3f} s", file=sys.stderr, flush=True)
    return report(rows(watched, bare, shares), options.json, "the cost of being watched")


def rows(watched: list[float], bare: list[float], shares: list[float]) -> list[Row]:
    """The figures: mean slow-down with its upper 95 % bound, and the share of a core."""
    ratios = [with_us / without - 1 for with_us, without in zip(watched, bare, strict=True)]
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    bound = mean + STUDENT[max(count for count in STUDENT if count <= max(len(ratios), 5))] * spread
    share = statistics.median(shares)
    step = statistics.median(bare) / (STEPS / 2) * 1000
    return [
        Row(f"slow-down, {len(ratios)} pairs of {STEPS // 2} steps, {RANKS} ranks", f"{mean:+.2%}, 95 % bound {bound:+.2%}", "≤ 1 %", bound <= 0.01, f"bare: {step:.1f} ms a step", f"{1 + mean:.4f}"),
        Row("agent + launcher, share of a core", f"{share:.1%}", "≤ 3 %", share <= 0.03, "", ""),
    ]


def run_watched(folder: Path) -> tuple[float, float]:
    """(seconds between the checkpoints, share of a core that agent and launcher took meanwhile)"""
    checkpoints = folder / "checkpoints"
    demo_job = DemoJob(
        folder=folder, config="", command=(sys.executable, str(script()), *arguments(checkpoints)), job="bench/overhead", nodes=("one",),
        workers_per_node=RANKS, served=False, clock=SystemClock(),
    )  # fmt: skip
    demo_job.start()
    try:
        pids = demo_job.cluster.pids("one")
        wait_for(demo_job, checkpoints, STEPS // 2)
        before, began = processor_seconds(pids), demo_job.clock.monotonic()
        wait_for(demo_job, checkpoints, STEPS)
        share = (processor_seconds(pids) - before) / (demo_job.clock.monotonic() - began)
    finally:
        demo_job.stop()
    return between(checkpoints), share


def wait_for(demo_job: DemoJob, checkpoints: Path, step: int) -> None:
    """Until a checkpoint is there; looking at the stream would cost processor time that is measured here."""
    deadline = demo_job.clock.monotonic() + 120
    while not manifest(checkpoints, step).exists():
        if demo_job.clock.monotonic() > deadline:
            raise TimeoutError(f"no checkpoint of step {step} in {checkpoints}:\n{demo_job.cluster.tail('launcher-one')}")
        demo_job.clock.sleep(0.05)


def run_bare(folder: Path) -> float:
    """Two processes as torchrun would start them, and nothing else."""
    checkpoints = folder / "checkpoints"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE_EYE_")}
    environment |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(script()), *arguments(checkpoints)]
    ranks = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.DEVNULL) for rank in range(RANKS)]
    for rank in ranks:
        if rank.wait(120):
            raise RuntimeError(f"a bare rank ended with {rank.returncode}")
    return between(checkpoints)


def arguments(checkpoints: Path) -> list[str]:
    """Of the training script."""
    return ["--steps", str(STEPS), "--checkpoint-every", str(STEPS // 2), "--evaluate-every", "1000000", "--checkpoint-dir", str(checkpoints)]


def manifest(checkpoints: Path, step: int) -> Path:
    """The file of a checkpoint that is whole."""
    return checkpoints / f"step-{step:012}.json"


def between(checkpoints: Path) -> float:
    """Seconds between the two checkpoints."""
    return manifest(checkpoints, STEPS).stat().st_mtime - manifest(checkpoints, STEPS // 2).stat().st_mtime


def processor_seconds(pids: list[int]) -> float:
    """User and system time of processes so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / ticks


if __name__ == "__main__":
    sys.exit(main())
