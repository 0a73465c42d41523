"""How `eagle-eye plan` shows a plan: tables for people, one JSON object for programs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console

from eagle_eye.app.printing import plain_table
from remediation.planner.decision.decision import IncidentDecision, PricedAlternative
from remediation.planner.files.cluster_allocation import describe_slow_nodes
from remediation.planner.files.plan_report import JobReport, PlanReport


def print_prospect(prospect: PlanReport, happens: Sequence[str]) -> None:
    """The plan, its reasons, the decisions."""
    console = Console()
    console.print(f"[bold]Plan{' after ' + ', '.join(happens) if happens else ''}[/]: {prospect.allocation.waf / 1e15:.2f} weighted PFLOP/s, {prospect.allocation.idle} GPUs free")
    console.print(_jobs(prospect.jobs))
    console.print(f"[dim]{_basis(prospect)}[/]", highlight=False)
    console.print("[bold]Why[/]")
    for job in prospect.jobs:
        console.print(f"  {job.name}: {job.why}", highlight=False)
    for job in prospect.jobs:
        if job.checkpoint:
            console.print(f"  {job.name}: {job.checkpoint}", highlight=False)
    for sentence in describe_slow_nodes(prospect.slow):
        console.print(f"  {sentence}", highlight=False)
    for name, decision in prospect.decisions.items():
        console.print(f"\n[bold]{name}[/]: {decision.best.kind} - {decision.best.how}", highlight=False)
        console.print(_options(decision))
        for kind, why in decision.why_rejected.items():
            console.print(f"  not to {kind}: {why}", highlight=False)


def _basis(prospect: PlanReport) -> str:
    rows, error = prospect.calibration.measurements, prospect.calibration.error
    if not rows:
        return "The performance model is not calibrated: it expects what the data sheet lets one expect."
    return f"The performance model is calibrated on {rows} measured layouts, which it meets to {error:.1%}."


def prospect_json(prospect: PlanReport) -> str:
    """One line. Numbers that are not finite are null."""
    record = {
        "waf": prospect.allocation.waf,
        "value": prospect.allocation.value,
        "idle_gpus": prospect.allocation.idle,
        "jobs": [_job_record(job) for job in prospect.jobs],
        "slow_nodes": [dataclasses.asdict(one) for one in prospect.slow],
        "decisions": {name: _decision_record(decision) for name, decision in prospect.decisions.items()},
        "nodes": prospect.owners,
        "calibration": {
            "measurements": prospect.calibration.measurements,
            "error": prospect.calibration.error if math.isfinite(prospect.calibration.error) else None,
            "coefficients": dataclasses.asdict(prospect.calibration.coefficients),
        },
    }
    return msgspec.json.encode(record).decode()


def _jobs(jobs: Sequence[JobReport]) -> Any:
    table = plain_table("job", "nodes now", "planned", "PFLOP/s", "weighted", "from", "layout")
    for job in jobs:
        layout = str(job.estimate.layout or "") if job.nodes else "waits"
        source = str(job.estimate.source) if job.nodes else ""
        table.add_row(job.name, str(job.before), str(job.nodes), f"{job.estimate.flops / 1e15:.2f}", f"{job.waf / 1e15:.2f}", source, layout)
    return table


def _options(decision: IncidentDecision) -> Any:
    table = plain_table("what", "downtime", "throughput", "GPU-hours", "WAF·s")
    for one in decision.options:
        throughput = f"{one.throughput / 1e15:.2f} PFLOP/s"
        table.add_row(one.kind, f"{one.downtime_s:,.1f} s", throughput, f"{one.gpu_hours:,.1f}", f"{one.cost:.3g}")
    return table


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
