"""The performance model against measured iterations: calibrated on one model size, tested on the others.

    python -m benchmarks.planner.performance --data DIRECTORY [--network GB_S] [--json]

DIRECTORY holds throughput/vtrain_megatron_a100_multi.csv: Megatron on nodes of 8 A100-80GB with four adapters of 200 Gb/s
(12.5 GB/s a GPU), everything recomputed, layers and micro-batches split without remainder.
"""

import argparse
import csv
import sys
from dataclasses import fields, replace
from itertools import permutations
from pathlib import Path

import numpy as np

from benchmarks.report import Row, report
from remediation.planner.performance.calibration import MeasuredIteration, calibrate, predict
from remediation.planner.performance.coefficients import UNITS, Coefficients
from remediation.planner.performance.gpu_memory import fits
from remediation.planner.performance.hardware import Hardware, hardware_of
from remediation.planner.performance.model_shape import ModelShape
from remediation.planner.performance.parallel_layout import ParallelLayout, ParallelLayouts, Recompute
from remediation.planner.performance.throughput_model import search
from remediation.planner.performance.training_run import TrainingRun

FILE = Path("throughput") / "vtrain_megatron_a100_multi.csv"
CALCULON = {"3.6": (14.0, 0.0), "18.4": (12.0, 4.5), "39.1": (12.0, 0.0), "175": (4.8, 0.6)}
"""Of Calculon on the same rows without calibration: error and how much slower its choice is, both %."""


def main(arguments: list[str]) -> int:
    """Calibrate, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--network", type=float, default=12.5, help="GB/s that a GPU's share of the node's network has")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    hardware = replace(hardware_of("A100-80GB"), network_bytes_s=options.network * 1e9)
    sizes = measured(options.data / FILE)
    rows = [row for one, other in permutations(sizes, 2) for row in tested(hardware, sizes, one, other)]
    rows += [memory(hardware, sizes), *(coefficients(hardware, size, sizes[size]) for size in sizes)]
    return report(rows, options.json, "performance model")


def measured(path: Path) -> dict[str, list[MeasuredIteration]]:
    """The iterations of each model size, in 10^9 parameters."""
    sizes: dict[str, list[MeasuredIteration]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            shape = ModelShape(layers=int(row["layers"]), hidden=int(row["hidden"]), heads=int(row["heads"]), sequence=int(row["seq"]))
            run = TrainingRun(shape=shape, global_batch=int(row["global_batch"]), even=True, recompute=(Recompute.FULL,))
            layout = ParallelLayout(int(row["tp"]), int(row["pp"]), int(row["dp"]), int(row["micro_batch"]), Recompute.FULL)
            sizes.setdefault(row["params_B"], []).append(MeasuredIteration(run, layout, float(row["iter_ms"]) / 1e3))
    return sizes


def tested(hardware: Hardware, sizes: dict[str, list[MeasuredIteration]], one: str, other: str) -> list[Row]:
    """Calibrated on one size, tested on another: error, and what its choice among the measured layouts costs."""
    made = calibrate(hardware, sizes[one])
    seconds = np.array([timed.seconds for timed in sizes[other]])
    predicted = predict(hardware, made.coefficients, sizes[other])
    error = float(np.abs(predicted / seconds - 1).mean())
    chosen = int(predicted.argmin())
    slower = float(seconds[chosen] / seconds.min() - 1)
    peer_error, peer_slower = CALCULON.get(other, (float("nan"), float("nan")))
    what = f"calibrated on {one}B ({made.measurements} rows, itself {made.error:.1%}), tested on {other}B ({len(seconds)} rows)"
    return [
        Row(f"{what}: mean error", f"{error:.2%}", "≤ 12 % (stretch 8 %)", error <= 0.12, f"Calculon {peer_error:g} %"),
        Row(f"{what}: choice slower than the best measured", f"{slower:.2%} ({sizes[other][chosen].layout})", "≤ 1 %", slower <= 0.01, f"Calculon {peer_slower:g} %"),
        _unseen(hardware, made.coefficients, sizes[other]),
    ]


def _unseen(hardware: Hardware, coefficients: Coefficients, timed: list[MeasuredIteration]) -> Row:
    """The choice among all layouts that there are; it may be one that nobody measured."""
    run, gpus = timed[0].run, timed[0].layout.gpus
    found = search(run, hardware, coefficients, [gpus])[gpus]
    same = [one.seconds for one in timed if one.layout == found.layout]
    beside = f"measured: {same[0]:.2f} s" if same else "not among the measured"
    return Row(f"  choice among all layouts on {gpus} GPUs", f"{found.layout}: {found.seconds:.2f} s", peer=f"{beside}; best measured {min(one.seconds for one in timed):.2f} s")


def memory(hardware: Hardware, sizes: dict[str, list[MeasuredIteration]]) -> Row:
    """What ran must not be refused."""
    ran = [timed for rows in sizes.values() for timed in rows]
    fitting = sum(bool(fits(timed.run, hardware, ParallelLayouts.of([timed.layout]))[0]) for timed in ran)
    return Row("layouts that ran and that the memory model lets pass", f"{fitting} of {len(ran)}", "all", fitting == len(ran))


def coefficients(hardware: Hardware, size: str, timed: list[MeasuredIteration]) -> Row:
    """The physical numbers, with their units."""
    made = calibrate(hardware, timed).coefficients
    listed = ", ".join(f"{field.name} {getattr(made, field.name):.4g} {UNITS[field.name]}" for field in fields(made))
    count = len(fields(made))
    return Row(f"coefficients from {size}B", listed, "≤ 8, all physical", count <= 8, f"{count}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
