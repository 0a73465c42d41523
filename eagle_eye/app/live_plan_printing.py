"""How `eagle-eye plan --live` shows the jobs that run and the answers that stand ready for them."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape

from eagle_eye.app.printing import plain_table
from eagle_eye.ledger import JobRecord, Throughput
from eagle_eye.types import PrecomputedPlan

UNIT = "WAF counts weighted worker-seconds a second: a job on all the workers that it asked for makes as many, times its weight."


def print_live(plans: Iterable[PrecomputedPlan], jobs: Mapping[str, JobRecord], reached: Mapping[tuple[str, int], Throughput]) -> None:
    """reached: (tenant/name, workers) → what was measured."""
    console, elastic = Console(), {name: facts for name, facts in jobs.items() if facts.demand is not None}
    if not elastic:
        console.print("no elastic job runs: nothing can be shared out (a job is elastic if its script calls eagle_eye.elastic)")
        return
    console.print(_jobs(elastic, reached))
    for plan in plans:
        console.print(f"if {_event(plan)}: {_answer(plan, elastic)}", highlight=False, markup=False, soft_wrap=True)
        allowed = "stands ready" if plan.allowed else "may not be done"
        console.print(f"    WAF {plan.waf_before:.3g}, then {plan.waf:.3g}; {allowed}: {plan.why}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"[dim]{UNIT}[/]", highlight=False)


def _jobs(elastic: Mapping[str, JobRecord], reached: Mapping[tuple[str, int], Throughput]) -> object:
    table = plain_table("job", "weight", "workers", "asked for", "where", "measured")
    for name, facts in sorted(elastic.items()):
        demand = facts.demand
        if demand is None:
            continue
        short = "/".join(name.split("/")[:2])
        known = [f"{count}: {each.steps_per_s:.3g} steps/s" for (job, count), each in sorted(reached.items()) if job == short and each.steps_per_s]
        table.add_row(escape(name), f"{demand.weight:g}", str(demand.now), str(demand.most), escape(_where(demand.seats)), "; ".join(known) or "nothing yet")
    return table


def _event(plan: PrecomputedPlan) -> str:
    if plan.event == "worker lost":
        return f"{plan.of} loses a worker on {plan.node}"
    return f"{plan.node} is lost" if plan.event == "node lost" else f"a worker of {plan.node} returns"


def _answer(plan: PrecomputedPlan, jobs: Mapping[str, JobRecord]) -> str:
    stopped = [name for name, workers in plan.workers.items() if workers < _fewest(jobs.get(name))]
    if stopped and len(stopped) == len(plan.workers):
        return "the job stops" if len(stopped) == 1 else "all jobs stop"
    words = [f"{job} to {_where(seats)}" for job, seats in plan.seats.items()] + [f"{job} stops" for job in stopped]
    if not plan.seats:
        words.append("everybody else goes on with what is left" if stopped else "everybody goes on with what is left")
    return "; ".join(words)


def _fewest(facts: JobRecord | None) -> int:
    """Workers without which it stops."""
    return max(1, facts.demand.workers_min) if facts is not None and facts.demand is not None else 1


def _where(seats: Mapping[str, int]) -> str:
    return ", ".join(f"{count} on {node}" for node, count in sorted(seats.items())) or "nowhere"
