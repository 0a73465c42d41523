"""One fault that hits several jobs: incidents of different jobs that name the same switch, node, link or mount at the same time are marked as one with several victims.

Each job keeps an incident of its own, for each is repaired by itself, and who may see one job's need not see the other's. Only incidents of the jobs that are diagnosed together
(one partition of the stream) are compared.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from eagle_eye.types import Finding, Incident, Kind, Topology

from .incident_composition import compose
from .telemetry_doubt import TRUSTED, doubts_of

TOGETHER_S = 30.0
"""What shared parts show of one fault begins so close together: a mount that hangs is noticed when it is used."""
OTHER_TENANT = "a job of another tenant"
"""In place of a name that is not for everybody's eyes."""
_Part = tuple[str, str, str]
"""Kind, name, and the cause where it is not a culprit."""
PARTS = (Kind.SWITCH, Kind.NODE, Kind.LINK, Kind.MOUNT)
"""What several jobs can share."""


def with_victims(revised: Sequence[Incident], opened: Sequence[Incident], topology: Topology) -> Iterator[Incident]:
    """The revised incidents, and revisions of those that turn out to share their fault; `opened`: all that were open before."""
    known = {each.id: each.revision for each in opened}
    present = {each.id: each for each in opened} | {each.id: each for each in revised}
    active = [each for each in present.values() if each.active and not each.part_of]
    told = dict.fromkeys(each.id for each in revised)
    by_part = _by_part(active) if len({each.job for each in active}) > 1 else {}
    doubts = doubts_of(((each.job, each.parts) for each in active), topology) if by_part else {}
    for one in active if by_part else ():
        group = _with_same_parts(one, by_part) if one.id in told else []
        jobs = {each.job for each in (one, *group)}
        for each in (one, *group) if group else ():
            now = present[each.id]
            victims = tuple(sorted({*now.victims, *(_name(job, now.job) for job in jobs)}))
            if victims != now.victims:
                revision = now.revision + (now.revision == known.get(now.id))
                present[each.id] = compose(msgspec.structs.replace(now, victims=victims, revision=revision), topology, doubts.get(now.job, TRUSTED))
                told[each.id] = None
    yield from (present[name] for name in told)


def _by_part(incidents: Sequence[Incident]) -> dict[_Part, list[Incident]]:
    """Of a storm over hundreds of jobs each is compared with those alone that name the same."""
    found: dict[_Part, list[Incident]] = {}
    for incident in incidents:
        for part in shared_parts(incident):
            found.setdefault(part, []).append(incident)
    return found


def _with_same_parts(one: Incident, by_part: Mapping[_Part, Sequence[Incident]]) -> list[Incident]:
    """Incidents of other jobs that name the same at about the same time."""
    alike = {each.id: each for part in shared_parts(one) for each in by_part[part]}
    return [each for each in alike.values() if each.job != one.job and abs(each.since - one.since) <= TOGETHER_S]


def shared_parts(incident: Incident) -> frozenset[_Part]:
    """What an incident names that other jobs may share: its culprit, else what the findings that are its fault are about, with the cause."""
    culprits = {(str(culprit.entity.kind), culprit.entity.name, "") for culprit in incident.culprits if culprit.entity.kind in PARTS}
    return frozenset(culprits or {(str(root.entity.kind), _shared_name(root), incident.cause) for root in _roots(incident) if root.entity.kind in PARTS})


def _roots(incident: Incident) -> Iterator[Finding]:
    """The first parts are the fault."""
    return (part for part in incident.parts if part.kind == incident.parts[0].kind)


def _shared_name(root: Finding) -> str:
    """A mount is the same on all nodes by its place there."""
    return root.entity.name.partition("/")[2] if root.entity.kind is Kind.MOUNT else root.entity.name


def _name(job: str, of: str) -> str:
    return job if job.partition("/")[0] == of.partition("/")[0] else OTHER_TENANT
