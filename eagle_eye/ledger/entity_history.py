"""What the ledger knows of the GPUs, nodes, links, mounts and switches that an incident accuses: earlier incidents that named them, over all jobs, and whether
they came back from an eviction. A worker has no history of its own: its node's counts, and its GPU's where the evidence names it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eagle_eye.durations import rounded_duration_text
from eagle_eye.topology import ON_GPU, node_of
from eagle_eye.types import Entity, Incident, Kind, Topology

from .records import IncidentRecord, PastCordon

if TYPE_CHECKING:
    from .ledger import Ledger

DAY_S = 86_400.0
DAYS = 30
READ = 1000
"""Incidents of one entity; of one with more the newest are counted."""
ENTITIES_SHOWN = 8
"""Of a storm that accuses a whole cluster."""
CAUSES_SHOWN = 3
_BY_NAME = Topology()
"""In which nothing is known but what a name says."""


class EntityHistory(NamedTuple):
    """Of one entity, in the DAYS before an incident."""

    entity: Entity
    earlier: tuple[IncidentRecord, ...]
    """Incidents that named it, newest first."""
    cordon: PastCordon | None
    """Its newest cordon that is over."""


def entity_histories(ledger: "Ledger", record: IncidentRecord) -> tuple[EntityHistory, ...]:
    """Of each accused entity of which there is something to say."""
    histories = (_history(ledger, record, entity) for entity in accused_of(record.incident)[:ENTITIES_SHOWN])
    return tuple(history for history in histories if history.earlier or history.cordon is not None)


def history_text(history: EntityHistory, record: IncidentRecord) -> str:
    """One sentence, without the names of jobs: they may be another tenant's."""
    sentences = []
    if history.earlier:
        ago = rounded_duration_text(max(0.0, record.opened - history.earlier[0].opened))
        sentences.append(f"{_ordinal(len(history.earlier) + 1)} incident in {DAYS} days, the last one {ago} before; so far {_causes(history.earlier)}")
    if history.cordon is not None:
        ago = rounded_duration_text(max(0.0, record.opened - history.cordon.released))
        sentences.append(f"back from an eviction for {ago}, released by {history.cordon.person or 'the plan that undid it'}")
    return f"{history.entity}: {'; '.join(sentences)}"


def _causes(records: Sequence[IncidentRecord]) -> str:
    counted = Counter(record.incident.cause for record in records).most_common()
    named = [f"{count} {cause}" for cause, count in counted[:CAUSES_SHOWN]]
    others = sum(count for _, count in counted[CAUSES_SHOWN:])
    return ", ".join([*named, f"{others} of other causes"] if others else named)


def accused_of(incident: Incident) -> tuple[Entity, ...]:
    """The accused entities, each once, the nodes in which they are, as far as their names say it, and the GPUs on which the evidence says that they compute."""
    named = [entity for culprit in incident.culprits for entity in _with_node(culprit.entity)]
    return tuple(dict.fromkeys((*named, *_gpus_of(incident))))


def _gpus_of(incident: Incident) -> Iterator[Entity]:
    """Of accused workers: where nobody is accused, none."""
    workers = {culprit.entity for culprit in incident.culprits if culprit.entity.kind is Kind.WORKER}
    lines = (line for part in incident.parts if part.entity in workers for line in part.evidence) if incident.parts else iter(incident.evidence if workers else ())
    for line in lines:
        if line.metric.startswith(ON_GPU):
            yield Entity(kind=Kind.GPU, name=line.metric.removeprefix(ON_GPU))


def _with_node(entity: Entity) -> Iterator[Entity]:
    if entity.kind not in (Kind.WORKER, Kind.JOB):
        yield entity
    if node := node_of(entity, _BY_NAME):
        yield Entity(kind=Kind.NODE, name=node)


def _history(ledger: "Ledger", record: IncidentRecord, entity: Entity) -> EntityHistory:
    since = record.opened - DAYS * DAY_S
    named = ledger.incidents(naming=entity.name, since=since, until=record.opened, limit=READ)
    earlier = tuple(each for each in named if each.incident.id != record.incident.id and not each.incident.part_of and entity in accused_of(each.incident))
    cordons = ledger.past_cordons(entity.name) if entity.kind is Kind.NODE else ()
    return EntityHistory(entity, earlier, next((cordon for cordon in cordons if since <= cordon.released <= record.opened), None))


def _ordinal(number: int) -> str:
    """
    >>> _ordinal(2), _ordinal(3), _ordinal(11), _ordinal(21), _ordinal(112)
    ('2nd', '3rd', '11th', '21st', '112th')
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
