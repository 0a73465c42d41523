"""What a job did to itself: an epoch that its coordinator began is matched with the incidents that it answers."""

from eagle_eye.types import Incident, Plan, Target, digest_of

from .cases import Case
from .jobs import Begun, Job
from .ladder import SEVERITIES
from .policy import Policy


def fault_epoch(since: float, events: frozenset[str], job: Job) -> int:
    """The epoch in which a fault happened, also if the one that answers it was heard of first."""
    answers = [begun.epoch for begun in job.begun if begun.reason != "start" and _after(begun, since, events)]
    return min(answers) - 1 if answers else job.epoch


def answer_to(case: Case, job: Job) -> Begun | None:
    """The newest epoch that ended what the incident is about; None if there is none yet."""
    if not case.treatment.epoch_cures:
        return None
    later = [begun for begun in job.begun if begun.epoch > case.epoch]
    return later[-1] if later else None


def events_of(incident: Incident) -> frozenset[str]:
    """Ids of the events that prove the incident."""
    return frozenset(line.event for line in incident.evidence if line.event)


def plan_of(case: Case, begun: Begun, job: Job, now: float, policy: Policy) -> Plan:
    """The job's own repair, as a plan: nobody sent it, but it is written down like any other."""
    lost = begun.reason == "node lost"
    workers = tuple(culprit.entity.name for culprit in case.incident.culprits if culprit.entity.kind == "worker")
    nodes = tuple(culprit.entity.name for culprit in case.incident.culprits if culprit.entity.kind == "node")
    action = "restart_without_node" if lost else "restart_worker"
    target = Target(
        job=case.job, epoch=begun.epoch - 1, basis=job.basis, exclude=nodes if lost else (), workers=workers
    )
    return Plan(
        id=digest_of(case.incident.id, action, begun.epoch),
        incident=case.incident.id,
        action=action,
        targets=(target,),
        made=now,
        expires=now + policy.expires_s,
        severity=SEVERITIES[action],
        own=True,
        reason=f"the coordinator began epoch {begun.epoch} by itself: {begun.reason}",
    )


def _after(begun: Begun, since: float, events: frozenset[str]) -> bool:
    return (bool(begun.cause) and begun.cause in events) or begun.time > since
