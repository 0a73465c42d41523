"""What changed before an incident: of its job, and of the nodes that it accuses; where it accuses none, of all nodes of its job. Shown, never judged."""

from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

from eagle_eye.changes import KEPT_S, ObservedChange, difference_text
from eagle_eye.durations import rounded_duration_text
from eagle_eye.types import Entity, Kind, Layout

from .entity_history import accused_of
from .records import IncidentRecord

if TYPE_CHECKING:
    from .ledger import Ledger

LATE_S = 660.0
"""A change may be seen so long after it was made, and reported: nodes look every ten minutes."""
SURE_S = 3600.0
"""A change that was made within a longer time is shown with both ends of it."""
SHOWN = 20
"""Sentences; what is older is counted."""
NODES_SHOWN = 4


def changes_before(ledger: "Ledger", record: IncidentRecord) -> tuple[str, ...]:
    """A sentence for each, the newest first; the same on several nodes is one."""
    since, until = record.incident.since - KEPT_S, record.opened + LATE_S
    names, others, told = _entities(ledger, record)
    found = [each for each in ledger.changes([*names, *others], since, until, job=told) if _made(each) <= record.opened]
    beside = frozenset(others)
    groups: dict[tuple[str, ...], list[ObservedChange]] = {}
    for change in found:
        if change.entity.name not in beside:
            groups.setdefault((change.entity.kind, change.what, change.before, change.after, change.job if change.entity.kind is Kind.JOB else ""), []).append(change)
    elsewhere = {(change.what, change.after) for change in found if change.entity.name in beside}
    sentences = [_sentence(group, record) + _reach(group, names, len(others), elsewhere, record) for group in groups.values()]
    return (*sentences[:SHOWN], *([f"{len(sentences) - SHOWN} more"] if len(sentences) > SHOWN else []))


def _made(change: ObservedChange) -> float:
    """When it was made at the earliest: what a job is started with, by its start."""
    return change.seen if change.entity.kind is Kind.JOB else change.known


def _entities(ledger: "Ledger", record: IncidentRecord) -> tuple[list[str], list[str], str]:
    """Names of the nodes and of the job; the other nodes of its layout, where some are accused; and the job, where nobody knows any more which nodes it had: then those count that told it."""
    job = record.incident.job
    kept = ledger.job_record(job) if job else None
    layout = kept.layout if kept is not None else None
    accused = dict.fromkeys(node for entity in accused_of(record.incident) for node in _nodes_of(entity, layout))
    nodes = list(accused or (layout.nodes if layout is not None else _nodes_of_owner(ledger, job)))
    others = [node for node in layout.nodes if node not in accused] if accused and layout is not None else []
    return [*nodes, *([job.rpartition("/")[0]] if job.count("/") == 2 else [])], others, "" if nodes else job


def _nodes_of_owner(ledger: "Ledger", job: str) -> tuple[str, ...]:
    """Of a job that is over."""
    owner = ledger.job_owners().get(job) if job else None
    return owner.nodes if owner is not None else ()


def _nodes_of(entity: Entity, layout: Layout | None) -> Iterator[str]:
    if entity.kind is Kind.NODE:
        yield entity.name
    elif entity.kind is Kind.GPU and layout is not None:
        yield from (place.node for place in layout.placements if place.gpu == entity.name)
    elif entity.kind is Kind.SWITCH and layout is not None:
        yield from (node for node, place in layout.places.items() if place.switch == entity.name)


def _sentence(group: Sequence[ObservedChange], record: IncidentRecord) -> str:
    newest = group[0]
    if newest.entity.kind is Kind.JOB:
        who = f"job, run {newest.job.rpartition('/')[2]}"
    else:
        nodes = [change.entity.name for change in group]
        shown = ", ".join(nodes[:NODES_SHOWN]) + (", …" if len(nodes) > NODES_SHOWN else "")
        who = shown if len(nodes) == 1 else f"{len(nodes)} nodes ({shown})"
    return f"{who}: {difference_text(newest.what, newest.before, newest.after)}, {_when(group, record.incident.since)}"


def _reach(group: Sequence[ObservedChange], names: Sequence[str], others: int, elsewhere: Set[tuple[str, str]], record: IncidentRecord) -> str:
    """Whether it was made, before the incident began, on exactly the nodes that are accused; '' where it was made on others of the job (`elsewhere`: what, after), too."""
    accused = {name for name in names if "/" not in name}  # the other name is tenant/name of the job
    before = all(change.seen <= record.incident.since for change in group)
    if not others or not before or {change.entity.name for change in group} != accused or (group[0].what, group[0].after) in elsewhere:
        return ""
    return f"; on exactly the accused node{'' if len(accused) == 1 else 's'}, and {f'on none of the {others} others' if others > 1 else 'not on the other'} of the job"


def _when(group: Sequence[ObservedChange], began: float) -> str:
    first, last = min(map(_made, group)), max(change.seen for change in group)
    if last > began:
        return f"seen {rounded_duration_text(last - began)} after it began"
    ago = rounded_duration_text(began - last)
    return f"{ago} before" if last - first <= SURE_S else f"between {rounded_duration_text(began - first)} and {ago} before"
