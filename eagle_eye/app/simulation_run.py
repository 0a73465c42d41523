"""What `eagle-eye simulate` runs: policies × traces × seeds, with a progress bar; then a table, JSON or an HTML report."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_eye.app.printing import TableColumn, print_table
from eagle_eye.errors import ConfigError
from remediation.simulator import downtime_curve, fault_trace, html_report, job_mix, recovery_policy, trace_generators
from remediation.simulator.simulation import Scenario, SimulationResult, simulate
from remediation.simulator.summary_statistics import PolicySummary, summarize
from remediation.simulator.time_accounting import TimeCategory

SMALL_CLUSTER = 64
"""Up to so many nodes the six tasks of `mix4` fill a cluster, beyond the eight of `eight`."""

LEAST_PERCENT = 0.05
"""Less is not printed."""
SUMMARY_COLUMNS = (
    TableColumn("policy"), TableColumn("WAF, PFLOP/s"), TableColumn("of best", drop=1), TableColumn("effective %"), TableColumn("other GPU time, %", prose=True),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """Options of the command line."""

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
        """One for each group."""
        return [summarize(group) for group in self.groups]


def requested_policies(request: SimulationRequest) -> list[recovery_policy.RecoveryPolicy]:
    """The policies, without the parts that are switched off. Raises ConfigError for a part that none of them has."""
    found = []
    for each in recovery_policy.load_policies(request.policies):
        found.append(each.without(*(part for part in request.without if part in each.parts)))
        if request.ablation:
            found += [each.without(part) for part in each.parts if part not in request.without]
    known = {part for each in found for part in each.parts}
    for part in request.without:
        if part not in known:
            raise ConfigError(f"--without {part}: none of these policies has that part; they have {', '.join(sorted(known)) or 'none'}")
    return found


def run(request: SimulationRequest) -> SimulationRuns:
    """Simulate. Raises ConfigError before the first run for impossible input."""
    policies = requested_policies(request)
    traces = [(name, _seeds(name, request)) for name in request.traces]
    jobs = {nodes: job_mix.read_job_mix(request.tasks or _default_tasks(nodes), nodes, request.gpus_per_node) for _, seeds in traces for nodes in {each.nodes for each in seeds}}
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    )  # fmt: skip
    groups = []
    with bar:
        task = bar.add_task("simulating", total=len(policies) * sum(len(seeds) for _, seeds in traces))
        for name, seeds in traces:
            for each in policies:
                bar.update(task, description=f"{each.label} on {name}")
                group: list[SimulationResult] = []
                for trace in seeds:
                    scenario = Scenario(jobs=jobs[trace.nodes], gpus_per_node=request.gpus_per_node, unit=request.unit, spares=request.spares)
                    group.append(simulate(scenario, each, trace, timeline=not group))
                    bar.advance(task)
                groups.append(group)
    return SimulationRuns(groups)


def _seeds(name: str, request: SimulationRequest) -> list[fault_trace.FaultTrace]:
    """A file is one trace; a generator one for each seed."""
    if name not in trace_generators.GENERATORS and ("." in name or "/" in name):
        return [fault_trace.read_trace([Path(part) for part in name.split("+")])]
    return [trace_generators.generate(name, seed, request.nodes, request.days, request.gpus_per_node) for seed in range(request.seeds)]


def _default_tasks(nodes: int) -> str:
    return "mix4" if nodes <= SMALL_CLUSTER else "eight"


def print_summaries(runs: SimulationRuns, *, wide: bool) -> None:
    """A table for each trace, the best policy first."""
    console = Console()
    by_trace: dict[str, list[PolicySummary]] = {}
    for each in runs.summaries:
        by_trace.setdefault(each.trace, []).append(each)
    for name, summaries in by_trace.items():
        best = max(each.waf.mean for each in summaries)
        console.print(f"[bold]{name}[/], {summaries[0].seeds} seed{'s' if summaries[0].seeds > 1 else ''}")
        print_table(console, SUMMARY_COLUMNS, [_summary_row(each, best) for each in sorted(summaries, key=lambda each: -each.waf.mean)], wide=wide)


def _summary_row(summary: PolicySummary, best: float) -> list[str]:
    share = f"{summary.waf.mean / best:.3f}" if best else ""
    margin = max(summary.waf.high - summary.waf.mean, summary.waf.mean - summary.waf.low)
    waf = f"{summary.waf.mean / 1e15:,.2f}" + (f" ± {margin / 1e15:,.2f}" if summary.seeds > 1 else "")
    return [summary.policy, waf, share, f"{100 * summary.time_shares[TimeCategory.EFFECTIVE.label]:.1f}", _rest(summary)]


def _rest(summary: PolicySummary) -> str:
    """Time that was not effective by category, the most first, in percent; what rounds to 0.0 is not listed."""
    lost = {category.label: 100 * summary.time_shares[category.label] for category in TimeCategory if category is not TimeCategory.EFFECTIVE}
    return ", ".join(f"{label} {share:.1f}" for label, share in sorted(lost.items(), key=lambda each: -each[1]) if share >= LEAST_PERCENT)


def json_lines_of(runs: SimulationRuns) -> Iterator[dict[str, object]]:
    """One object a run, for --json."""
    for group in runs.groups:
        for seed, result in enumerate(group):
            yield {
                "policy": result.policy, "trace": result.trace, "seed": seed, "duration_s": result.duration_s, "gpus": result.gpus,
                "waf_s": result.waf_s, "mean_waf": result.mean_waf, "time_shares": result.time_shares, "jobs": result.jobs, "events": result.events,
                "allocations_asked": result.allocations_asked, "allocations_solved": result.allocations_solved,
            }  # fmt: skip


def check_report_path(path: Path) -> None:
    """Raises ConfigError where the report cannot be written: checked before the simulation, not after it."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ConfigError(f"--html {path}: cannot be written; name a file in a folder that is there and yours")


def write_report(runs: SimulationRuns, request: SimulationRequest, path: Path) -> None:
    """Write the HTML report. Raises ConfigError where it cannot be written."""
    text = html_report.page(runs.summaries, [group[0] for group in runs.groups], downtime_curve.downtime_curve(requested_policies(request)))
    try:
        html_report.write(path, text)
    except OSError as error:
        raise ConfigError(f"--html {path}: cannot be written: {error.strerror}") from error
