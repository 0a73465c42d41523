"""What the rules cost a tick of a large job, while all is well and while much is not, and what they say of a healthy job.

    python -m benchmarks.watch.rules [--gpus 10000] [--ticks 60]

Frames of a job that was never run: so many GPUs, 8 a node, each with every metric of a GPU, and their nodes. Beside it: the bare
comparisons of the same rules, one reading after the other (no memory of how long, no peers), on a hundredth of the GPUs, times a hundred.
"""

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from collectors.host import NAMES as NODE_METRICS
from collectors.nvml.watched_gpu import NAMES as GPU_METRICS
from detectors.metric_rules import MetricRules
from detectors.rules.pack import rule_set
from eagle_eye.frames import Frame
from eagle_eye.types import Floats, Kind

GOAL_S = 0.050
Columns = dict[str, Floats]
NORMAL = {
    "utilisation_percent": 95.0, "temperature_celsius": 62.0, "memory_temperature_celsius": 70.0, "sm_clock_mhz": 1900.0, "throttle_reasons": 4.0, "pcie_generation": 5.0, "pcie_width": 16.0,
    "nvlinks_active": 18.0, "fabric_healthy": 1.0, "fabric_state": 3.0, "memory_percent": 60.0, "ecc_uncorrected_total": 2.0, "ecc_sram_uncorrected_total": 1.0, "remapped_rows_uncorrected": 3.0,
}  # fmt: skip
"""Of a healthy machine; every other metric is 0."""
SICK = {"throttle_reasons": 0x40, "temperature_celsius": 95.0, "pcie_replays_per_s": 5.0, "memory_percent": 99.0, "fabric_healthy": 0.0, "remap_pending": 1.0}


def columns_of(metrics: tuple[str, ...], count: int, rng: np.random.Generator) -> Columns:
    """One in a thousand readings is missing."""
    columns = {}
    for metric in metrics:
        values = np.full(count, NORMAL.get(metric, 0.0), np.float32)
        values *= 1.0 + 0.02 * rng.standard_normal(count).astype(np.float32) if metric.endswith(("celsius", "mhz", "percent")) else 1.0
        values[rng.random(count) < 0.001] = np.nan
        columns[metric] = values
    return columns


def frames(gpus: int, ticks: int, share: float = 0.0) -> Iterator[Frame]:
    """`share`: of the machines that are sick in six ways at once, in every tick."""
    rng = np.random.default_rng(1)
    names = {Kind.GPU: tuple(f"GPU-{number:08d}" for number in range(gpus)), Kind.NODE: tuple(f"node-{number:06d}" for number in range(gpus // 8))}
    drawn = [{Kind.GPU: columns_of(GPU_METRICS, gpus, rng), Kind.NODE: columns_of(NODE_METRICS, gpus // 8, rng)} for _ in range(4)]
    for metrics in drawn:
        for columns in metrics.values():
            for metric, value in SICK.items():
                if metric in columns:
                    columns[metric][: int(share * len(columns[metric]))] = value
    for tick in range(ticks):
        yield Frame(job="t/n/r", number=tick + 1, generation=1, time=1e9 + tick, tick=True, entities=names, metrics=drawn[tick % 4])


def measured(given: Iterator[Frame]) -> tuple[list[float], int]:
    """Seconds of the processor of each tick, and how many findings came of them all."""
    detector, seconds, told = MetricRules(), [], 0
    for frame in given:
        began = time.process_time()
        told += sum(1 for _ in detector.update(frame))
        seconds.append(time.process_time() - began)
    return seconds, told


def one_by_one(frame: Frame) -> float:
    """Seconds for the same conditions, reading by reading."""
    looked: list[tuple[float, list[float]]] = []
    for rule in rule_set(()).rules:
        columns = frame.metrics.get(rule.table.entity, {})
        looked += [(condition.number, columns[condition.metric].tolist()) for condition in rule.conditions if condition.metric in columns]
    began = time.process_time()
    sum(value > limit for limit, values in looked for value in values)
    return time.process_time() - began


def main() -> int:
    """Print the figures beside their goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    others, gpus = neighbours(), arguments.gpus
    count = len(rule_set(()).rules)
    healthy, alarms = measured(frames(gpus, arguments.ticks))
    few, found = measured(frames(gpus, arguments.ticks, share=0.01))
    half, many = measured(frames(gpus, arguments.ticks, share=0.5))
    naive = 100 * one_by_one(next(frames(max(gpus // 100, 8), 1)))
    what = f"{gpus:,} GPUs × {len(GPU_METRICS)} metrics and their nodes, {count} rules: processor time of a tick"
    rows = [
        _row(f"{what}, all well: median of {arguments.ticks}", float(np.median(healthy)), naive),
        _row("the same, 1 % of the machines sick in six ways", float(np.median(few)), naive),
        _row("the same, half of them: median", float(np.median(half)), naive),
        _row("the same, half of them: the longest tick, of those in which they fire", max(half), naive),
        Row("findings in the healthy ticks", f"{alarms}", "0", alarms == 0),
        Row("findings of 1 % and of half of the machines", f"{found:,} and {many:,}", "some", found > 0 and many > 0),
        others(),
    ]
    return report(rows, arguments.json, "Rules over metrics")


def _row(what: str, seconds: float, peer: float) -> Row:
    return Row(what, f"{1000 * seconds:.1f} ms", f"≤ {1000 * GOAL_S:.0f} ms", seconds <= GOAL_S, f"{1000 * peer:.0f} ms (comparisons one by one)", f"{peer / max(seconds, 1e-9):.0f}×")


if __name__ == "__main__":
    sys.exit(main())
