"""How `eagle-eye plan FILE` prints the plan report: tables and sentences, or one JSON object."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console

from eagle_eye.app.printing import TableColumn, print_table, print_text
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
