"""Reconfiguration after lost nodes against Oobleck's rules: layers copied, iteration time, and how long it takes to decide.

    python -m benchmarks.planner.reconfiguration --data DIRECTORY [--json]

DIRECTORY holds reconfiguration/cases.json, profiles/ and expected/ (the templates that the cases ran with).
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Row, report
from remediation.planner.pipelines.layer_profile import parse_layers
from remediation.planner.pipelines.micro_batch_distribution import GroupPace, distribute
from remediation.planner.pipelines.oobleck_rules import Pipelines, oobleck_pipelines
from remediation.planner.pipelines.pipeline_reconfiguration import (
    CannotReconfigure,
    Reconfiguration,
    ReconfigurationProblem,
    reconfigure,
)
from remediation.planner.pipelines.pipeline_template import PipelineStage, PipelineTemplate, template

SAME = 1e-9
TOTALS = (128, 512, 2048)
"""The cases name no number of micro-batches."""


@dataclass(slots=True)
class Tally:
    """Ours against the peer's."""

    compared: int = 0
    stopped: int = 0
    wrong: int = 0
    """Stopped although every layer survives, or not although one does not."""
    exact: int = 0
    copied: list[tuple[float, float]] = field(default_factory=list)
    times: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def rows(self, what: str, limited: bool) -> list[Row]:
        worse = sum(ours > theirs for ours, theirs in self.copied)
        fewer = sum(ours < theirs for ours, theirs in self.copied)
        later = sum(ours > theirs * (1 + SAME) for ours, theirs in self.times)
        sooner = sum(ours < theirs * (1 - SAME) for ours, theirs in self.times)
        share = statistics.mean(1 - ours / theirs for ours, theirs in self.times)
        ours_sum, peer_sum = (int(sum(pair[side] for pair in self.copied)) for side in (0, 1))
        return [
            Row(
                f"{what}: layers copied", f"fewer in {fewer}, more in {worse} of {self.compared}; {ours_sum} in all",
                "never more" if limited else "", worse == 0 if limited else None, f"Oobleck's rules {peer_sum}", f"{ours_sum / max(1, peer_sum):.2f}",
            ),
            Row(
                f"{what}: iteration time", f"shorter in {sooner}, longer in {later} of {self.compared}; {share:.2%} on average",
                "never longer", later == 0, "Oobleck's rules",
            ),
            Row(f"{what}: time to decide", f"{statistics.median(self.seconds) * 1e3:.1f} ms, {max(self.seconds) * 1e3:.0f} ms at most", "", None, f"{self.exact} answers exact"),
            Row(f"{what}: stops", f"{self.stopped}, {self.wrong} wrong", "none wrong", self.wrong == 0, "a layer that no survivor holds: checkpoint"),
        ]


def main(arguments: list[str]) -> int:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cases = json.loads((options.data / "reconfiguration" / "cases.json").read_text())["cases"]
    templates: dict[str, dict[int, PipelineTemplate]] = {}
    for case in cases:
        if case["profile"] and case["profile"] not in templates:
            templates[case["profile"]] = _templates(options.data, case["profile"])
    rows = [_floor(cases)]
    for within in (True, False):
        tally = Tally()
        for case in cases:
            if case["profile"]:
                for total in TOTALS:
                    _compare(case, templates[case["profile"]], total, within, tally)
        rows += tally.rows("within the rules' copies" if within else "time first", within)
    return report(rows, options.json, f"reconfiguration, every case with {', '.join(map(str, TOTALS))} micro-batches")


def _floor(cases: list[dict[str, Any]]) -> Row:
    equal = sum(_names(case["expected"]) == oobleck_pipelines(_names(case["pipelines"]), set(map(str, case["failed"])), case["n0"]) for case in cases)
    return Row("our floor against what the engine decided", f"{equal} of {len(cases)} equal", "all", equal == len(cases), "Oobleck's ReconfigurationEngine")


def _compare(case: dict[str, Any], templates: dict[int, PipelineTemplate], total: int, within: bool, tally: Tally) -> None:
    usable = {nodes: plan for nodes, plan in templates.items() if case["n0"] <= nodes <= case["nmax_available"]}
    layers = templates[min(templates)].stages[-1].end
    problem = ReconfigurationProblem(
        templates=usable,
        state=[1.0] * layers,
        pipelines=_names(case["pipelines"]),
        micro_batches=total,
        lost=frozenset(map(str, case["failed"])),
    )
    begin = time.perf_counter()
    found = reconfigure(problem, within)
    tally.seconds.append(time.perf_counter() - begin)
    tally.wrong += isinstance(found, CannotReconfigure) == (case["all_layers_survive"] and bool(case["expected"]))
    if isinstance(found, CannotReconfigure):
        tally.stopped += 1
        return
    _add(found, case, usable, total, tally)


def _add(found: Reconfiguration, case: dict[str, Any], usable: dict[int, PipelineTemplate], total: int, tally: Tally) -> None:
    groups = [GroupPace(usable[len(pipeline)].pace, usable[len(pipeline)].fill) for pipeline in case["expected"]]
    tally.compared += 1
    tally.exact += found.exact
    tally.copied.append((found.moved_bytes, case["layers_copied"]))
    tally.times.append((found.time, distribute(groups, total).makespan))


def _templates(data: Path, profile: str) -> dict[int, PipelineTemplate]:
    layers = parse_layers(json.loads((data / "profiles" / f"{profile}.json").read_text()))
    times = layers.latencies(1)
    known = json.loads((data / "expected" / f"{profile}.json").read_text())["one_stage_per_node"]["templates"]
    return {
        plan["num_nodes"]: template(
            plan["num_nodes"],
            [PipelineStage(first, end, 1) for first, end in plan["stages"]],
            [float(times[first:end].sum()) for first, end in plan["stages"]],
            4 * plan["num_nodes"],
        )
        for plan in known
    }


def _names(pipelines: list[list[int]]) -> Pipelines:
    return tuple(tuple(map(str, pipeline)) for pipeline in pipelines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
