"""The decision about one incident: all alternatives by cost, the cheapest first, and why each other one was rejected."""

from dataclasses import dataclass

from .alternatives import AlternativeKind, ImpossibleAlternative, PricedAlternative, alternatives
from .incident_case import IncidentCase, TransitionCosts

__all__ = ["AlternativeKind", "ImpossibleAlternative", "IncidentCase", "IncidentDecision", "PricedAlternative", "TransitionCosts", "decide"]


@dataclass(frozen=True, slots=True)
class IncidentDecision:
    """All alternatives of an incident, ranked."""

    options: tuple[PricedAlternative, ...]
    """All that are possible, by rising cost; of equal ones the one that changes least."""
    impossible: tuple[ImpossibleAlternative, ...]
    why_rejected: dict[AlternativeKind, str]
    """One sentence for each kind but the chosen one."""

    @property
    def best(self) -> PricedAlternative:
        """The cheapest. There always is one: doing nothing is possible in every incident."""
        return self.options[0]


def decide(case: IncidentCase, costs: TransitionCosts | None = None) -> IncidentDecision:
    """Rank all alternatives by cost. Raises ConfigError from templates that contradict the case."""
    found = alternatives(case, costs or TransitionCosts())
    possible = sorted((one for one in found if isinstance(one, PricedAlternative)), key=lambda one: one.cost)
    impossible = [one for one in found if isinstance(one, ImpossibleAlternative)]
    best = possible[0]
    reasons = {one.kind: _why_rejected(one, best, case) for one in possible[1:]}
    reasons.update({one.kind: f"Not possible: {one.why}." for one in impossible})
    return IncidentDecision(tuple(possible), tuple(impossible), reasons)


def _why_rejected(one: PricedAlternative, best: PricedAlternative, case: IncidentCase) -> str:
    if one.cost == best.cost:
        return f"Costs as much as to {best.kind}, which changes less."
    against: list[str] = []
    though: list[str] = []
    if one.downtime_s != best.downtime_s:
        (against if one.downtime_s > best.downtime_s else though).append(f"{one.downtime_s:,.1f} s of downtime against {best.downtime_s:,.1f} s")
    if one.throughput != best.throughput:
        worse = one.throughput < best.throughput
        (against if worse else though).append(f"{one.throughput / case.healthy:.1%} of the throughput afterwards against {best.throughput / case.healthy:.1%}")
    if one.lost_work_s != best.lost_work_s:
        (against if one.lost_work_s > best.lost_work_s else though).append(f"{one.lost_work_s:,.0f} s of work again against {best.lost_work_s:,.0f} s")
    if not against:
        against.append("more on spares or on the way back")
    despite = f"; despite {', '.join(though)}" if though else ""
    return f"Costs {one.cost - best.cost:.3g} WAF·s ({one.gpu_hours - best.gpu_hours:,.2f} GPU-hours) more: {', '.join(against)}{despite}."
