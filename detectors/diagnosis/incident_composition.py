"""What the findings of one incident mean: cause, culprits, severity, evidence, rivals."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from eagle_eye.topology import node_of
from eagle_eye.types import (
    Culprit,
    Entity,
    Evidence,
    Finding,
    Incident,
    Kind,
    Severity,
    Topology,
)

from .causes import EVERYWHERE, LASTING, PROGRAM_ON_GPU, RECOVERY_S, WHOLE_NODE, Cause
from .confidence import KILLED, calibrated
from .finding_relations import are_one_fault, cause_of, explains, movers, only_of_the_program, says_the_same, strength
from .narrowest_place import narrowest_place
from .network_place import BROKEN_BY_LINKS, DOWN, SWITCH_DOWN, broken_part
from .path_test_evidence import TESTED, rivals_of, test_lines, without_tests
from .telemetry_doubt import TRUSTED, TelemetryDoubt

PARTS_KEPT = 256
COUNT = "count"
"""Metric of the lines that only count."""
ALIKE_S = 1.0
LINES_PER_MOVER, LINES_PER_VICTIM, MOVERS_SHOWN, VICTIMS_SHOWN = 8, 1, 64, 8
OF_A_SWITCH = frozenset({"node lost", "link down", "link degraded", "link errors"})
"""Causes (causes.py) of which a switch, or the power of a rack, may be the cause in turn."""
WORKERS_SHOWN = 8
TAKEN_AWAY = "all workers of the node were ended by a signal, and nobody told why: a preemption, a shutdown or a person does that, too; ask the scheduler"
"""Evidence beside it."""


def roots_of(parts: Sequence[Finding], topology: Topology) -> list[Finding]:
    """The findings that are the fault: the strongest unexplained one and those of the same cause beside it.

    What was withdrawn counts only if nothing that asks for a repair is left. A job that is not back when all that explained it
    is over has a fault that nobody knows.
    """
    roots = _strongest(parts, topology)
    if any(root.active for root in roots):
        return roots
    last = max((part for part in parts if part.kind in LASTING), key=lambda part: (part.active, part.time), default=None)
    outlived = last is not None and (last.active or last.time > max(root.time for root in roots) + RECOVERY_S)
    return [last] if last is not None and outlived else roots


def _strongest(parts: Sequence[Finding], topology: Topology) -> list[Finding]:
    informing = [part for part in parts if part.active and cause_of(part)[1].severity is Severity.INFO]
    alive = [part for part in parts if part.active and cause_of(part)[1].severity is not Severity.INFO]
    alive = [part for part in alive if not any(strength(other) < strength(part) and explains(other, part, topology) for other in informing)]
    unexplained = movers(alive, topology) if alive else []
    # a finding that is left over from a fault that is withdrawn was its consequence, and still is
    unexplained = [root for root in unexplained if not any(_left_over(part, root, topology) for part in parts)]
    unexplained = unexplained or movers(parts, topology)
    first = unexplained[0]
    return [first, *(root for root in unexplained[1:] if are_one_fault(first, root))]


def _left_over(part: Finding, root: Finding, topology: Topology) -> bool:
    """Nobody is accused by it, or not for its own sake, and what it followed from is withdrawn."""
    if cause_of(root)[1].accuses and not cause_of(part)[1].outlasting:
        return False
    return not part.active and strength(part) < strength(root) and explains(part, root, topology)


def compose(incident: Incident, topology: Topology, doubt: TelemetryDoubt = TRUSTED) -> Incident:
    """The incident as its parts tell it now; id, revision and time are left as they are. `doubt`: about the telemetry of its job."""
    told = sorted(incident.parts, key=lambda part: (part.since, part.id))
    parts = without_tests(told)
    roots = roots_of(parts, topology)
    cause, since = cause_of(roots[0])[1], min(root.since for root in roots)
    blamed, everywhere = _blamed(roots, cause, _beyond(roots, parts, incident.more), topology)
    if blamed and (_all_ended_alike(roots[0], parts, incident.more, topology) or _many_raised_alike(roots[0], parts, topology)):
        blamed, everywhere = (), True
    word = WHOLE_NODE.get(cause.word, cause.word) if _is_node(blamed, roots) else cause.word
    unheard = word == KILLED and _is_node(blamed, roots) and all(part.kind != "kernel.error" for part in parts)
    if word in PROGRAM_ON_GPU and any(only_of_the_program(part) for part in parts):
        word = PROGRAM_ON_GPU[word]
    severity, score = cause.severity, _score(roots, parts)
    if (broken := broken_part(cause.word, since, parts, topology)) is not None:
        blamed, score = (broken,), max(part.score for part in parts if part.kind == DOWN)
        word, severity = (word, severity) if cause.word in BROKEN_BY_LINKS else (SWITCH_DOWN, Severity.SEV3)
    evidence = (*_place_evidence(roots, cause.word, topology), *narrowest_place(roots, parts, cause.word, topology), *doubt.lines(roots, parts), *_evidence(parts, roots, incident.more), *test_lines(told), *_victims(incident))
    if everywhere:
        evidence = (Evidence(text=EVERYWHERE), *evidence)
    if unheard:
        evidence = (Evidence(text=TAKEN_AWAY), *evidence)
    to_blame = {root.id for root in roots}
    ordered = sorted(told, key=lambda part: (part.id not in to_blame, part.kind not in TESTED, part.since, part.id))
    return msgspec.structs.replace(
        incident,
        cause=word,
        culprits=tuple(_culprit(entity, calibrated(word, score, unheard=unheard), score, _left(entity, roots, parts, doubt, topology)) for entity in blamed),
        severity=severity,
        evidence=evidence,
        rivals=rivals_of(cause.rivals, told),
        since=since,
        bill_gpu_hours=max(0.0, incident.time - since) * _workers(incident, topology) / 3600.0,
        active=any(root.active for root in roots),
        parts=tuple(ordered[:PARTS_KEPT]),
        more=dict(Counter(incident.more) + Counter(part.kind for part in ordered[PARTS_KEPT:])),
    )


# --- who ---------------------------------------------------------------------------------------------------------


def _beyond(roots: Sequence[Finding], parts: Sequence[Finding], further: Mapping[str, int]) -> int:
    """Findings of a storm that are only counted, if all that are kept of their kind are among `roots`: then these are, too."""
    kind = roots[0].kind
    return further.get(kind, 0) if sum(part.kind == kind for part in parts) <= len(roots) else 0


def _blamed(roots: Sequence[Finding], cause: Cause, beyond: int, topology: Topology) -> tuple[tuple[Entity, ...], bool]:
    """The narrowest that explains it; and whether it is the same everywhere, which accuses nobody. `beyond`: further places of the fault that are only counted."""
    if cause.severity is Severity.INFO or not cause.accuses:
        return (), False
    entities = tuple(dict.fromkeys(root.entity for root in roots))
    if any(entity.kind is Kind.JOB for entity in entities):
        return (), False
    if len(entities) > 1 and all(entity.kind is Kind.WORKER for entity in entities):
        names = {entity.name for entity in entities}
        job = _of_job(roots[0].job, topology)
        if names >= job or (beyond and len(names) + beyond >= len(job)):
            return (), bool(topology.workers)
        node = node_of(entities[0], topology)
        if cause.of_node and node and names == _on_node(roots[0].job, node, names, topology):
            return (Entity(kind=Kind.NODE, name=node),), False
    return entities, False


def _all_ended_alike(root: Finding, parts: Sequence[Finding], further: Mapping[str, int], topology: Topology) -> bool:
    """All workers of the job ended within a second with the same exit code and no word why; of a storm those that are kept did."""
    if root.kind != "worker.exited" or cause_of(root)[1].word != "worker exited":
        return False
    ended = [part for part in parts if part.kind == root.kind]
    alike = [part for part in ended if part.evidence[0].value == root.evidence[0].value and abs(part.since - root.since) <= ALIKE_S]
    beyond = _beyond(alike, ended, further)
    workers, job = {part.entity.name for part in alike}, _of_job(root.job, topology)
    return len(workers) > 1 and (workers >= job or bool(beyond and len(workers) + beyond >= len(job)))


def _many_raised_alike(root: Finding, parts: Sequence[Finding], topology: Topology) -> bool:
    """Workers on several nodes, or half of the job, raised the same words together: a script's mistake, no machine's.

    What only broken hardware says is left to the machines that say it.
    """
    cause = cause_of(root)[1]
    if cause.severity is Severity.SEV1:
        return False
    alike = [part for part in parts if says_the_same(root, part) and abs(part.since - root.since) <= cause.together_s]
    workers = {part.entity.name for part in alike}
    nodes = {node for part in alike if (node := node_of(part.entity, topology))}
    job = _of_job(root.job, topology) - {""}
    return len(workers) > 1 and (len(nodes) > 1 or (bool(job) and 2 * len(workers & job) >= len(job)))


def _of_job(job: str, topology: Topology) -> set[str]:
    """All workers of a job; one that nobody can match if no layout is known."""
    return _by_job(topology).get(job, {""})


_last: tuple[Topology, dict[str, set[str]]] = (Topology(), {})


def _by_job(topology: Topology) -> dict[str, set[str]]:
    """Job → its workers; of the last topology it is remembered, for one of 100,000 workers is asked many times a second."""
    global _last  # noqa: PLW0603 -- a memory of one pure answer
    if _last[0] is not topology:
        _last = topology, {job: set(workers) for job, workers in topology.jobs.items()}
    return _last[1]


def _on_node(job: str, node: str, suspects: set[str], topology: Topology) -> set[str]:
    """All workers of a job on a node; without a layout, the suspects on it."""
    known = {worker for worker in _of_job(job, topology) if topology.workers.get(worker) == node}
    return known or {worker for worker in suspects if node_of(Entity(kind=Kind.WORKER, name=worker), topology) == node}


def _is_node(blamed: Sequence[Entity], roots: Sequence[Finding]) -> bool:
    return any(entity.kind is Kind.NODE for entity in blamed) and roots[0].entity.kind is Kind.WORKER


def _score(roots: Sequence[Finding], parts: Sequence[Finding]) -> float:
    """The surest detector's word; a little less while nothing else bears it out."""
    surest = max(root.score for root in roots)
    alone = len(parts) == len(roots) == 1
    return round(surest * (0.9 if alone and surest < 1.0 else 1.0), 3)


def _culprit(entity: Entity, confidence: float, score: float, left: float) -> Culprit:
    """`left`: the share of the score that doubt about telemetry leaves; the counts of drills know nothing of it."""
    return Culprit(entity=entity, confidence=round(left * confidence, 3), score=round(left * score, 3))


def _left(entity: Entity, roots: Sequence[Finding], parts: Sequence[Finding], doubt: TelemetryDoubt, topology: Topology) -> float:
    """Of what speaks against it, the finding that is doubted least."""
    if not doubt:
        return 1.0
    place = node_of(entity, topology)
    mine = [root for root in roots if root.entity == entity] or [root for root in roots if place and node_of(root.entity, topology) == place]
    return max((doubt.share(root, parts) for root in mine), default=1.0)


def _workers(incident: Incident, topology: Topology) -> int:
    """Workers that the fault costs; without a layout, those that are named."""
    known = _of_job(incident.job, topology) - {""}
    named = {part.entity.name for part in incident.parts if part.entity.kind is Kind.WORKER}
    return max(len(known or named), 1)


# --- why ---------------------------------------------------------------------------------------------------------


def _evidence(parts: Sequence[Finding], roots: Sequence[Finding], further: Mapping[str, int]) -> tuple[Evidence, ...]:
    """What is the fault first, then what followed from it, each in the order in which it began; of many the first ones and a count."""
    lines: list[Evidence] = []
    to_blame = {root.id for root in roots}
    victims = [part for part in parts if part.id not in to_blame]
    first = [part for part in parts if part.id in to_blame]
    for part in first[:MOVERS_SHOWN]:
        lines += part.evidence[:LINES_PER_MOVER]
    for part in victims[:VICTIMS_SHOWN]:
        lines += part.evidence[:LINES_PER_VICTIM]
    lines += _rest("and beside them", Counter(part.kind for part in first[MOVERS_SHOWN:]))
    storm = Counter(further)
    storm.update(part.kind for part in victims[VICTIMS_SHOWN:])
    return (*lines, *_rest("and as consequences", storm))


def _victims(incident: Incident) -> Iterator[Evidence]:
    """That other jobs show the same of a part that they share."""
    if incident.victims:
        yield Evidence(text=f"one fault with {len(incident.victims)} victims, which share what it is in: {', '.join(incident.victims)}")


def _rest(words: str, more: Counter[str]) -> list[Evidence]:
    told = ", ".join(f"{count} × {kind}" for kind, count in sorted(more.items()))
    return [Evidence(text=f"{words} {told}", metric=COUNT, value=float(more.total()))] if told else []


# --- where


def _place_evidence(roots: Sequence[Finding], cause: str, topology: Topology) -> tuple[Evidence, ...]:
    """Lines about the roots of an incident: nodes that share a switch or a rack that others of the job do not, and workers that send through a link.

    Lines of evidence, and no verdict: a switch has no agent that could say that it is down. None where nothing is known.
    """
    if cause not in OF_A_SWITCH:
        return ()
    return (*_shared_place(roots, topology), *_senders(roots, topology))


def _shared_place(roots: Sequence[Finding], topology: Topology) -> Iterator[Evidence]:
    """The narrowest place that holds all nodes of the fault, and not all of the job."""
    nodes = {node for root in roots if (node := node_of(root.entity, topology))}
    others = {topology.workers[worker] for worker in topology.jobs.get(roots[0].job, ()) if worker in topology.workers} - nodes
    for kind, places in (("switch", topology.nodes), ("rack", topology.racks)):
        place = _only([places.get(node, "") for node in nodes])
        if len(nodes) > 1 and place and any(places.get(node, "") not in ("", place) for node in others):
            beside = sum(places.get(node, "") == place for node in others)
            yield Evidence(text=f"all {len(nodes)} nodes are at {kind} {place}, where {beside or 'no'} other node{'' if beside == 1 else 's'} of the job {'is' if beside == 1 else 'are'}")
            return


def _only(places: Sequence[str]) -> str:
    """The one that they all are; '' for several, or where one is not known."""
    return places[0] if len(set(places)) == 1 else ""


def _senders(roots: Sequence[Finding], topology: Topology) -> Iterator[Evidence]:
    """Workers of the job whose GPUs are next to a link of the fault."""
    links = {root.entity.name for root in roots if root.entity.kind is Kind.LINK}
    found = list(_workers_at(links, roots[0].job, topology)) if links else []
    for worker, link in found[:WORKERS_SHOWN]:
        yield Evidence(text=f"worker {worker} sends through {link}, the port next to its GPU")
    if len(found) > WORKERS_SHOWN:
        yield Evidence(text=f"and so do {len(found) - WORKERS_SHOWN} other workers through theirs")


def _workers_at(links: set[str], job: str, topology: Topology) -> Iterator[tuple[str, str]]:
    ports: Mapping[str, str] = topology.gpu_ports
    for worker in topology.jobs.get(job, ()) if ports else ():
        link = ports.get(topology.worker_gpus.get(worker, ""), "")
        if link in links:
            yield worker, link
