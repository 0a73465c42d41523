"""What each detector costs a tick of a large job, one core, where all machines are well.

    python -m benchmarks.watch.tick [--gpus 80000] [--ticks 12]

Frames of one job that was never run: so many GPUs, 8 a node, each with every metric of a GPU, and their nodes; no steps and no events (what those cost is in benchmarks.collect.path_at_size). Each shipped detector is asked as a
server asks it, at every so many ticks as it says itself, with the baselines that the learners make of the first looks. The time of a call counts in the tick by that share.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from benchmarks.watch.rules import columns_of
from collectors.host import NAMES as NODE_METRICS
from collectors.nvml.watched_gpu import NAMES as GPU_METRICS
from detectors.runtime.baseline_learner import learners
from detectors.runtime.hot_window import HotWindow, depth_of
from eagle_eye import plugins
from eagle_eye.app import plugin_wiring
from eagle_eye.config import Config
from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Baseline, Kind, Topology

GOAL_S = 0.4
GPUS_OF_NODE = 8
WORKING = {"power_watts": (600.0, 8.0), "sm_clock_mhz": (1900.0, 10.0), "utilisation_percent": (95.0, 1.0)}
"""Mean and deviation of what `peer_metrics` and a forecast look at."""
LOOK_S, LOOKS = 3.0, 3
"""Between and number of the looks that baselines are made of."""
NAMED = ("peer_metrics", "metric_forecast", "isolation_forest", "metric_rules")


def frames(gpus: int, ticks: int, seed: int, step_s: float = 1.0) -> Iterator[Frame]:
    """A tick each `step_s` seconds."""
    rng = np.random.default_rng(seed)
    names = {Kind.GPU: tuple(f"GPU-{number:08d}" for number in range(gpus)), Kind.NODE: tuple(f"node-{number:06d}" for number in range(gpus // GPUS_OF_NODE))}
    topology = Topology(gpus={gpu: names[Kind.NODE][number // GPUS_OF_NODE] for number, gpu in enumerate(names[Kind.GPU])})
    for tick in range(1, ticks + 1):
        metrics = {Kind.GPU: columns_of(GPU_METRICS, gpus, rng), Kind.NODE: columns_of(NODE_METRICS, gpus // GPUS_OF_NODE, rng)}
        for name, (mean, deviation) in WORKING.items():
            metrics[Kind.GPU][name] = (mean + deviation * rng.standard_normal(gpus)).astype(np.float32)
        yield Frame(job="t/n/r", number=tick, generation=1, time=1e9 + step_s * tick, tick=True, entities=names, metrics=metrics, topology=topology)


def baselines(gpus: int) -> Mapping[str, Baseline]:
    """What each learner makes of a few looks."""
    found = {}
    looks = list(frames(gpus, LOOKS, 1, LOOK_S))
    for learner in learners((name, plugins.load("detectors", name)) for name in plugins.available("detectors")).values():
        sampled = [learner.sample(frame) for frame in looks]
        matrix = np.concatenate([rows for _, rows in sampled])
        try:
            baseline = learner.fit({"job": "t/n/r", "time": 0.0, "names": sampled[0][0], "matrix": matrix, "before": b""})
        except ValueError:
            continue  # it learns from steps, of which there are none
        found[baseline.name] = baseline
    return found


def measured(gpus: int, ticks: int) -> tuple[dict[str, float], int]:
    """Detector → processor seconds of a tick (median of its calls, by the share of ticks in which it is asked); and how many claims came of them all."""
    known = baselines(gpus)
    detectors: list[tuple[str, Detector]] = plugin_wiring.detectors(Config())
    seconds: dict[str, list[float]] = {name: [] for name, _ in detectors}
    claims, window = 0, HotWindow(depth_of(detector for _, detector in detectors))
    for frame in frames(gpus, ticks, 2):
        given = window.add(replace(frame, baselines=known))
        for name, detector in detectors:
            if frame.number % _every(detector):
                continue
            began = time.process_time()
            claims += sum(1 for _ in detector.update(given))
            seconds[name].append(time.process_time() - began)
    return {name: float(np.median(seconds[name])) / _every(detector) for name, detector in detectors if seconds[name]}, claims


def _every(detector: Detector) -> int:
    return int(getattr(detector, "every", 1))


def main() -> int:
    """Print the figures beside their goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=80_000)
    parser.add_argument("--ticks", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    others = neighbours()
    found, claims = measured(arguments.gpus, arguments.ticks)
    total = sum(found.values())
    what = f"{arguments.gpus:,} GPUs × {len(GPU_METRICS)} metrics and their nodes × {len(NODE_METRICS)}"
    rows = [Row(f"{what}: processor time of a tick, all {len(found)} detectors", f"{1000 * total:.0f} ms", f"≤ {1000 * GOAL_S:.0f} ms", total <= GOAL_S)]
    rows += [Row(f"of it {name}", f"{1000 * found[name]:.1f} ms") for name in NAMED if name in found]
    rows += [Row("of it all others", f"{1000 * sum(value for name, value in found.items() if name not in NAMED):.1f} ms"), Row("claims", f"{claims}", "0", claims == 0), others()]
    return report(rows, arguments.json, "Detectors of a tick")


if __name__ == "__main__":
    sys.exit(main())
