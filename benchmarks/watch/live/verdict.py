"""What Eagle Eye told of a job, held against what is true of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.harm.deployment import HarmJob
from benchmarks.watch.live.fault_table import LiveFault, Truth
from eagle_eye.types import Entity, Incident, Kind, Notice, Severity

GENERAL = frozenset({"job slow", "throughput lost", "pause"})
"""That something is the matter, beside or before what: never wrong, and never enough."""
JOB_KINDS = frozenset({Kind.JOB})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of one job."""

    told: tuple[str, ...]
    """Each incident, by its newest revision, and notices about the job's nodes: for a person."""
    right: bool
    """Cause and culprit, in an incident that nothing stronger contradicts; of an innocent twin: nobody was accused and nothing done."""
    cause_right: bool
    accused: tuple[str, ...]
    """Healthy elements, in any revision."""
    evicted: tuple[str, ...]
    """Healthy nodes."""
    restarts: tuple[str, ...]
    """Epochs after the first one of all workers."""


def named(incident: Incident) -> tuple[Entity, ...]:
    """Who is accused; where nobody is, what the finding that leads is about, but the job itself."""
    if incident.culprits:
        return tuple(culprit.entity for culprit in incident.culprits)
    return tuple(dict.fromkeys(part.entity for part in incident.parts if part.kind == incident.parts[0].kind and part.entity.kind not in JOB_KINDS))


def names_right(fault: LiveFault, job: HarmJob, incident: Incident) -> bool:
    """The incident is about what is at fault, and about nothing else."""
    entities = named(incident)
    match fault.truth:
        case Truth.WORKER:
            return bool(entities) and all(each.kind is Kind.WORKER and job.rank_of(each.name) == fault.rank for each in entities)
        case Truth.HOST:
            return bool(entities) and not incident.culprits and all(each.kind is Kind.NODE and each.name in job.nodes for each in entities)
        case Truth.NODE:
            return bool(entities) and all(each.kind is Kind.NODE and each.name == job.nodes[fault.node] for each in entities)
        case Truth.PATH:
            accused = [culprit.entity for culprit in incident.culprits]  # whose exception shows it is a victim
            return all(each.kind is Kind.LINK and each.name.startswith(f"{job.nodes[fault.node]}/") for each in accused)
        case Truth.STORAGE:
            return not incident.culprits and any("small-disk" in line.text for line in incident.evidence)
        case Truth.NOBODY:
            return not incident.culprits


def is_right(fault: LiveFault, job: HarmJob, incident: Incident) -> bool:
    """This revision says what is true."""
    return incident.cause in fault.causes and names_right(fault, job, incident)


def notice_is_right(fault: LiveFault, job: HarmJob, notice: Notice) -> bool:
    """A notice about the node, which is how clocks are told."""
    return notice.name in fault.causes and fault.truth is Truth.NODE and job.nodes[fault.node] in notice.message


def last_revisions(revisions: Iterable[Incident]) -> list[Incident]:
    """Of each incident that stands for itself."""
    return [each for each in {each.id: each for each in revisions}.values() if not each.part_of]


def verdict(fault: LiveFault, job: HarmJob, notices: Sequence[Notice]) -> Verdict:
    """Once all has been told."""
    revisions = job.deployment.incidents(job.name)
    last = last_revisions(revisions)
    wrong = [each for each in last if each.severity is not Severity.INFO and not is_right(fault, job, each) and each.cause not in GENERAL]
    noticed = [each for each in notices if any(node in each.message for node in job.nodes)]
    found = any(is_right(fault, job, each) for each in last) or any(notice_is_right(fault, job, each) for each in noticed)
    accused = tuple(dict.fromkeys(str(culprit.entity) for each in revisions for culprit in each.culprits if not _is_guilty(fault, job, culprit.entity)))
    evicted = tuple(dict.fromkeys(node for layout in job.record.layouts for node in layout.excluded if not _is_on(fault, job, node)))
    restarts = tuple(f"epoch {layout.epoch}, {layout.reason}" for layout in job.record.later_epochs)
    harmless = not accused and not evicted
    return Verdict(
        told=(*map(_line, last), *(f"notice {each.name}: {each.message}" for each in noticed)),
        right=harmless and not wrong and (not restarts if fault.innocent else found),
        cause_right=any(each.cause in fault.causes for each in last) or any(notice_is_right(fault, job, each) for each in noticed),
        accused=accused, evicted=evicted, restarts=restarts,
    )  # fmt: skip


def _is_guilty(fault: LiveFault, job: HarmJob, entity: Entity) -> bool:
    if fault.truth is Truth.WORKER:
        return entity.kind is Kind.WORKER and job.rank_of(entity.name) == fault.rank
    return fault.truth is Truth.NODE and entity.name == job.nodes[fault.node]


def _is_on(fault: LiveFault, job: HarmJob, node: str) -> bool:
    """What lastingly is at fault is on that node."""
    if fault.truth is Truth.WORKER:
        return fault.lasting and node == job.node_of(fault.rank)
    return fault.truth is Truth.NODE and node == job.nodes[fault.node]


def _line(incident: Incident) -> str:
    accused = ", ".join(str(culprit.entity) for culprit in incident.culprits)
    about = ", ".join(map(str, named(incident)))
    who = f"accuses {accused}" if accused else f"about {about}" if about else "about the job"
    return f"{incident.severity} {incident.cause}, {who}{'' if incident.active else ' (over)'}: {incident.evidence[0].text if incident.evidence else ''}"
