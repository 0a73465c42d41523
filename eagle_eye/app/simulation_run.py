"""What `eagle-eye simulate` runs: policies × traces × seeds, with a bar; then a table, JSON or a page."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_eye.app.printing import plain_table
from eagle_eye.errors import ConfigError
from remediation.simulator import downtime_curve, fault_trace, html_report, job_mix, recovery_policy, trace_generators
from remediation.simulator.simulation import Scenario, SimulationResult, simulate
from remediation.simulator.summary_statistics import PolicySummary, summarize
from remediation.simulator.time_accounting import TimeCategory

SMALL_CLUSTER = 64
"""Up to so many nodes the six tasks of `mix4` fill a cluster, beyond the eight of `eight`."""

SHOWN = 0.05
"""Percent; less is not printed."""


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """What the command line asked for."""

    policies: Sequence[str]
    traces: Sequence[str]
    tasks: str = ""
    seeds: int = 5
    nodes: int | None = None
    days: float | None = None
    gpus_per_node: int = 8
    unit: int = 1
    spares: int = 0
    without: Sequence[str] = ()
    ablation: bool = False


@dataclass(frozen=True)
class SimulationRuns:
    """Runs by trace and policy, seeds in order."""

    groups: Sequence[Sequence[SimulationResult]]

    @property
    def summaries(self) -> list[PolicySummary]:
        """One a group."""
        return [summarize(group) for group in self.groups]


def requested_policies(wanted: SimulationRequest) -> list[recovery_policy.RecoveryPolicy]:
    """With what they go without. Raises ConfigError for a part that none of them has."""
    found = []
    for each in recovery_policy.load_policies(wanted.policies):
        found.append(each.without(*(part for part in wanted.without if part in each.parts)))
        if wanted.ablation:
            found += [each.without(part) for part in each.parts if part not in wanted.without]
    known = {part for each in found for part in each.parts}
    for part in wanted.without:
        if part not in known:
            raise ConfigError(f"--without {part}: none of these policies has that part; they have {', '.join(sorted(known)) or 'none'}")
    return found


def run(wanted: SimulationRequest) -> SimulationRuns:
    """All of it. Raises ConfigError before the first run where the input cannot be."""
    policies = requested_policies(wanted)
    lives = [(name, _seeds(name, wanted)) for name in wanted.traces]
    jobs = {nodes: job_mix.read_job_mix(wanted.tasks or _usual_tasks(nodes), nodes, wanted.gpus_per_node) for _, seeds in lives for nodes in {each.nodes for each in seeds}}
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    )  # fmt: skip
    groups = []
    with bar:
        task = bar.add_task("simulating", total=len(policies) * sum(len(seeds) for _, seeds in lives))
        for name, seeds in lives:
            for each in policies:
                bar.update(task, description=f"{each.label} on {name}")
                group: list[SimulationResult] = []
                for life in seeds:
                    scenario = Scenario(jobs=jobs[life.nodes], gpus_per_node=wanted.gpus_per_node, unit=wanted.unit, spares=wanted.spares)
                    group.append(simulate(scenario, each, life, timeline=not group))
                    bar.advance(task)
                groups.append(group)
    return SimulationRuns(groups)


def _seeds(name: str, wanted: SimulationRequest) -> list[fault_trace.FaultTrace]:
    """A file is one life; a generator one for each seed."""
    if name not in trace_generators.GENERATORS and ("." in name or "/" in name):
        return [fault_trace.read_trace([Path(part) for part in name.split("+")])]
    return [trace_generators.generate(name, seed, wanted.nodes, wanted.days, wanted.gpus_per_node) for seed in range(wanted.seeds)]


def _usual_tasks(nodes: int) -> str:
    return "mix4" if nodes <= SMALL_CLUSTER else "eight"


def print_summaries(outcome: SimulationRuns) -> None:
    """A table for each trace, the best first."""
    console = Console()
    by_trace: dict[str, list[PolicySummary]] = {}
    for each in outcome.summaries:
        by_trace.setdefault(each.trace, []).append(each)
    for name, summaries in by_trace.items():
        best = max(each.waf.mean for each in summaries)
        table = plain_table("policy", "WAF, PFLOP/s", "of the best", "effective %", "the rest of the GPUs' time, %")
        for each in sorted(summaries, key=lambda each: -each.waf.mean):
            share = f"{each.waf.mean / best:.3f}" if best else ""
            margin = max(each.waf.high - each.waf.mean, each.waf.mean - each.waf.low)
            waf = f"{each.waf.mean / 1e15:,.2f}" + (f" ± {margin / 1e15:,.2f}" if each.seeds > 1 else "")
            table.add_row(each.policy, waf, share, f"{100 * each.time_shares[TimeCategory.EFFECTIVE.label]:.1f}", _rest(each))
        console.print(f"[bold]{name}[/], {summaries[0].seeds} seed{'s' if summaries[0].seeds > 1 else ''}")
        console.print(table)


def _rest(summary: PolicySummary) -> str:
    """Where the time went that was not effective, most first; what rounds to nothing is left out."""
    lost = {category.label: 100 * summary.time_shares[category.label] for category in TimeCategory if category is not TimeCategory.EFFECTIVE}
    return ", ".join(f"{word} {share:.1f}" for word, share in sorted(lost.items(), key=lambda each: -each[1]) if share >= SHOWN)


def json_lines_of(outcome: SimulationRuns) -> Iterator[dict[str, object]]:
    """One object a run, for --json."""
    for group in outcome.groups:
        for seed, result in enumerate(group):
            yield {
                "policy": result.policy, "trace": result.trace, "seed": seed, "duration_s": result.duration_s, "gpus": result.gpus,
                "waf_s": result.waf_s, "mean_waf": result.mean_waf, "time_shares": result.time_shares, "jobs": result.jobs, "events": result.events,
                "allocations_asked": result.allocations_asked, "allocations_solved": result.allocations_solved,
            }  # fmt: skip


def check_report_path(path: Path) -> None:
    """Raises ConfigError where no file can be written: said before the long work, not after it."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ConfigError(f"--html {path}: cannot be written; name a file in a folder that is there and yours")


def write_report(outcome: SimulationRuns, wanted: SimulationRequest, path: Path) -> None:
    """The HTML file. Raises ConfigError where it cannot be written."""
    text = html_report.page(outcome.summaries, [group[0] for group in outcome.groups], downtime_curve.downtime_curve(requested_policies(wanted)))
    try:
        html_report.write(path, text)
    except OSError as error:
        raise ConfigError(f"--html {path}: cannot be written: {error.strerror}") from error
