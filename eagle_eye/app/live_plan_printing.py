"""How `eagle-eye plan --live` prints the running elastic jobs and the precomputed plans for their next events."""

from collections.abc import Iterable, Mapping

from rich.console import Console

from eagle_eye.app.printing import TableColumn, print_table, print_text
from eagle_eye.ledger import JobRecord, Throughput
from eagle_eye.types import PrecomputedPlan

UNIT = "WAF is weighted worker-seconds per second: a job on all the workers that it asked for counts as many, times its weight."
COLUMNS = (
    TableColumn("job", name=True), TableColumn("weight", drop=2), TableColumn("workers"), TableColumn("asked for"), TableColumn("where", prose=True),
    TableColumn("measured", prose=True, drop=1),
)  # fmt: skip


def print_live(plans: Iterable[PrecomputedPlan], jobs: Mapping[str, JobRecord], reached: Mapping[tuple[str, int], Throughput], *, wide: bool) -> None:
    """reached: (tenant/name, workers) → what was measured."""
    console, elastic = Console(), {name: record for name, record in jobs.items() if record.demand is not None}
    if not elastic:
        print_text(console, "no elastic job is running, so there are no workers to move (a job is elastic if its script calls eagle_eye.elastic)")
        return
    print_table(console, COLUMNS, _rows(elastic, reached), wide=wide)
    for plan in plans:
        print_text(console, f"if {_event(plan)}: {_response(plan, elastic)}")
        state = "ready" if plan.allowed else "not allowed"
        print_text(console, f"WAF {plan.waf_before:.3g}, then {plan.waf:.3g}; {state}: {plan.why}", indent=4)
    print_text(console, UNIT)


def _rows(elastic: Mapping[str, JobRecord], reached: Mapping[tuple[str, int], Throughput]) -> list[list[str]]:
    rows = []
    for name, record in sorted(elastic.items()):
        demand = record.demand
        if demand is None:
            continue
        short = "/".join(name.split("/")[:2])
        known = [f"{count}: {each.steps_per_s:.3g} steps/s" for (job, count), each in sorted(reached.items()) if job == short and each.steps_per_s]
        rows.append([name, f"{demand.weight:g}", str(demand.now), str(demand.most), _where(demand.seats), "; ".join(known) or "nothing yet"])
    return rows


def _event(plan: PrecomputedPlan) -> str:
    if plan.event == "worker lost":
        return f"{plan.of} loses a worker on {plan.node}"
    return f"{plan.node} is lost" if plan.event == "node lost" else f"a worker of {plan.node} returns"


def _response(plan: PrecomputedPlan, jobs: Mapping[str, JobRecord]) -> str:
    stopped = [name for name, workers in plan.workers.items() if workers < _fewest(jobs.get(name))]
    if stopped and len(stopped) == len(plan.workers):
        return "the job stops" if len(stopped) == 1 else "all jobs stop"
    parts = [f"{job} to {_where(seats)}" for job, seats in plan.seats.items()] + [f"{job} stops" for job in stopped]
    if not plan.seats:
        parts.append("all other jobs keep their remaining workers" if stopped else "all jobs keep their remaining workers")
    return "; ".join(parts)


def _fewest(record: JobRecord | None) -> int:
    """Workers below which it stops."""
    return max(1, record.demand.workers_min) if record is not None and record.demand is not None else 1


def _where(seats: Mapping[str, int]) -> str:
    return ", ".join(f"{count} on {node}" for node, count in sorted(seats.items())) or "nowhere"
