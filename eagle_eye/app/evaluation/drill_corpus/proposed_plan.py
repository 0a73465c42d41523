"""The plan that the engine would propose for an incident, before anybody has tried anything: the same tables, the same builder, the same guard of evidence."""

from eagle_eye.types import Incident, Layout, Mode, Plan, Refuse, Situation, Topology
from remediation.engine.job_state import JobState
from remediation.engine.plan_builder import NoPlan, PlanRequest, make
from remediation.guards.weak_evidence import WeakEvidence
from remediation.policy.affected_nodes import isolated
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import escalation_of

EVICTION = "evict_node"


def proposed(incident: Incident, layout: Layout, topology: Topology) -> Plan | None:
    """None: nothing would be done, or the guard of evidence refuses it.

    Where costs are weighed the strongest repair counts: what a restart costs is not known here, so the worst is taken. The incident counts as settled.
    """
    escalation = escalation_of(incident.cause, incident.severity)
    if not escalation.levels:
        return None
    level = escalation.levels[-1] if escalation.cost_weighed else escalation.levels[0]
    job = JobState(name=incident.job, layout=layout, epoch=layout.epoch)
    plan = make(PlanRequest(action=level, own=False, incident=incident, attempts=(), now=incident.time), job, EngineSettings())
    if isinstance(plan, NoPlan):
        return None
    situation = Situation(mode=Mode.AUTO, incident=incident, open=(incident,), outcomes=(), running=(), plans={}, approvals=(), nodes=len(layout.nodes), now=incident.time, topology=topology)
    return None if isinstance(WeakEvidence()(plan, situation), Refuse) else plan


def evicted(incident: Incident, layout: Layout, topology: Topology) -> tuple[str, ...]:
    """Nodes that this plan would take out of a job."""
    plan = proposed(incident, layout, topology)
    return isolated(plan) if plan is not None and plan.action == EVICTION else ()
