"""Prints for `eagle-eye plan`: the report on a cluster file, and with --live the running elastic jobs and their precomputed plans."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console

from eagle_eye.app.printing import TableColumn, print_table, print_text
from eagle_eye.ledger import JobRecord, Throughput
from eagle_eye.types import PrecomputedPlan
from remediation.planner.decision.decision import IncidentDecision, PricedAlternative
from remediation.planner.files.cluster_allocation import describe_slow_nodes
from remediation.planner.files.plan_report import JobReport, PlanReport

JOB_COLUMNS = (
    TableColumn("job", name=True), TableColumn("nodes"), TableColumn("planned"), TableColumn("PFLOP/s"), TableColumn("weighted", drop=1),
    TableColumn("source", drop=2), TableColumn("layout", prose=True),
)  # fmt: skip
ALTERNATIVE_COLUMNS = (
    TableColumn("alternative"), TableColumn("downtime"), TableColumn("throughput"), TableColumn("GPU-hours lost", drop=1), TableColumn("WAF·s lost"),
)  # fmt: skip
WAF_UNIT = "WAF is weighted worker-seconds per second: a job on all the workers that it asked for counts as many, times its weight."
LIVE_COLUMNS = (
    TableColumn("job", name=True), TableColumn("weight", drop=2), TableColumn("workers"), TableColumn("asked for"), TableColumn("where", prose=True),
    TableColumn("measured", prose=True, drop=1),
)  # fmt: skip


def print_report(report: PlanReport, events: Sequence[str], *, wide: bool) -> None:
    """The allocation, its reasons, and the decision for each job that an event hits. events: texts of --what-if."""
    console = Console()
    after = f" after {', '.join(events)}" if events else ""
    print_text(console, f"Plan{after}: {report.allocation.waf / 1e15:.2f} weighted PFLOP/s, {report.allocation.idle} GPUs idle")
    print_table(console, JOB_COLUMNS, [_job_row(job) for job in report.jobs], wide=wide)
    print_text(console, _calibration(report))
    console.print("[bold]Why[/]")
    for job in report.jobs:
        for text in filter(None, (job.why, job.checkpoint)):
            print_text(console, f"{job.name}: {text}", indent=2)
    for sentence in describe_slow_nodes(report.slow):
        print_text(console, sentence, indent=2)
    for name, decision in report.decisions.items():
        _print_decision(console, name, decision, wide=wide)


def _print_decision(console: Console, job: str, decision: IncidentDecision, *, wide: bool) -> None:
    console.print()
    print_text(console, f"{job}: {decision.best.kind} ({decision.best.how})")
    print_table(console, ALTERNATIVE_COLUMNS, [_alternative_row(one) for one in decision.options], wide=wide)
    print_text(console, "rejected:")
    for kind, why in decision.why_rejected.items():
        print_text(console, f"{kind}: {why}", indent=2)


def _calibration(report: PlanReport) -> str:
    rows, error = report.calibration.measurements, report.calibration.error
    if not rows:
        return "The throughput model is not calibrated: it uses the GPU's data sheet."
    return f"The throughput model is calibrated on {rows} measured layouts (mean error {error:.1%})."


def report_json(report: PlanReport) -> str:
    """One line. Numbers that are not finite are null."""
    record = {
        "waf": report.allocation.waf,
        "value": report.allocation.value,
        "idle_gpus": report.allocation.idle,
        "jobs": [_job_record(job) for job in report.jobs],
        "slow_nodes": [dataclasses.asdict(one) for one in report.slow],
        "decisions": {name: _decision_record(decision) for name, decision in report.decisions.items()},
        "nodes": report.owners,
        "calibration": {
            "measurements": report.calibration.measurements,
            "error": report.calibration.error if math.isfinite(report.calibration.error) else None,
            "coefficients": dataclasses.asdict(report.calibration.coefficients),
        },
    }
    return msgspec.json.encode(record).decode()


def _job_row(job: JobReport) -> list[str]:
    layout = str(job.estimate.layout or "") if job.nodes else "waits"
    source = str(job.estimate.source) if job.nodes else ""
    return [job.name, str(job.before), str(job.nodes), f"{job.estimate.flops / 1e15:.2f}", f"{job.waf / 1e15:.2f}", source, layout]


def _alternative_row(one: PricedAlternative) -> list[str]:
    return [str(one.kind), f"{one.downtime_s:,.1f} s", f"{one.throughput / 1e15:.2f} PFLOP/s", f"{one.gpu_hours:,.1f}", f"{one.cost:.3g}"]


def _job_record(job: JobReport) -> dict[str, Any]:
    estimate = job.estimate
    return {
        "name": job.name,
        "nodes_before": job.before,
        "nodes": job.nodes,
        "flops": estimate.flops,
        "waf": job.waf,
        "source": estimate.source,
        "reach": estimate.reach if math.isfinite(estimate.reach) else None,
        "layout": str(estimate.layout) if estimate.layout else None,
        "why": job.why,
        "checkpoint": job.checkpoint,
    }


def _decision_record(decision: IncidentDecision) -> dict[str, Any]:
    return {
        "best": decision.best.kind,
        "options": [_option_record(one) for one in decision.options],
        "why_rejected": {str(kind): why for kind, why in decision.why_rejected.items()},
    }


def _option_record(one: PricedAlternative) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "how": one.how,
        "downtime_s": one.downtime_s,
        "flops": one.throughput,
        "gpus": one.gpus,
        "lost_work_s": one.lost_work_s,
        "waf_s": one.cost,
        "gpu_hours": one.gpu_hours,
    }


def print_live(plans: Iterable[PrecomputedPlan], jobs: Mapping[str, JobRecord], measured: Mapping[tuple[str, int], Throughput], *, wide: bool) -> None:
    """Table of the elastic jobs, then one paragraph for each precomputed plan. measured: (tenant/name, workers) → its throughput."""
    console, elastic = Console(), {name: record for name, record in jobs.items() if record.demand is not None}
    if not elastic:
        print_text(console, "no elastic job is running, so there are no workers to move (a job is elastic if its script calls eagle_eye.elastic)")
        return
    print_table(console, LIVE_COLUMNS, _live_rows(elastic, measured), wide=wide)
    for plan in plans:
        print_text(console, f"if {_event_text(plan)}: {_response_text(plan, elastic)}")
        state = "ready" if plan.allowed else "not allowed"
        print_text(console, f"WAF {plan.waf_before:.3g}, then {plan.waf:.3g}; {state}: {plan.why}", indent=4)
    print_text(console, WAF_UNIT)


def _live_rows(elastic: Mapping[str, JobRecord], measured: Mapping[tuple[str, int], Throughput]) -> list[list[str]]:
    rows = []
    for name, record in sorted(elastic.items()):
        demand = record.demand
        if demand is None:
            continue
        short = "/".join(name.split("/")[:2])
        known = [f"{count}: {each.steps_per_s:.3g} steps/s" for (job, count), each in sorted(measured.items()) if job == short and each.steps_per_s]
        rows.append([name, f"{demand.weight:g}", str(demand.now), str(demand.most), _where(demand.workers_per_node), "; ".join(known) or "nothing yet"])
    return rows


def _event_text(plan: PrecomputedPlan) -> str:
    if plan.event == "worker lost":
        return f"{plan.of} loses a worker on {plan.node}"
    return f"{plan.node} is lost" if plan.event == "node lost" else f"a worker of {plan.node} returns"


def _response_text(plan: PrecomputedPlan, jobs: Mapping[str, JobRecord]) -> str:
    stopped = [name for name, workers in plan.workers.items() if workers < _workers_min(jobs.get(name))]
    if stopped and len(stopped) == len(plan.workers):
        return "the job stops" if len(stopped) == 1 else "all jobs stop"
    parts = [f"{job} to {_where(workers_per_node)}" for job, workers_per_node in plan.workers_per_node.items()] + [f"{job} stops" for job in stopped]
    if not plan.workers_per_node:
        parts.append("all other jobs keep their remaining workers" if stopped else "all jobs keep their remaining workers")
    return "; ".join(parts)


def _workers_min(record: JobRecord | None) -> int:
    """Workers below which it stops."""
    return max(1, record.demand.workers_min) if record is not None and record.demand is not None else 1


def _where(workers: Mapping[str, int]) -> str:
    return ", ".join(f"{count} on {node}" for node, count in sorted(workers.items())) or "nowhere"
