"""Switch > node > gpu and worker: who is part of whom.

>>> topology = Topology(nodes={"a": "leaf-1", "b": "leaf-1"}, gpus={"GPU-1": "a"})
>>> gpu = Entity(kind=Kind.GPU, name="GPU-1")
>>> [str(entity) for entity in path(gpu, topology)]
['gpu GPU-1', 'node a', 'switch leaf-1']
>>> contains(Entity(kind=Kind.SWITCH, name="leaf-1"), gpu, topology)
True
"""

from collections.abc import Iterable, Sequence

from .types import Entity, Kind, Layout, Topology


def with_layout(topology: Topology, layout: Layout) -> Topology:
    """The topology with the nodes, GPUs and workers that a layout speaks of; what is known already stays."""
    nodes = {**dict.fromkeys(layout.nodes, ""), **topology.nodes}
    gpus = {**topology.gpus, **{place.gpu: place.node for place in layout.places if place.gpu}}
    workers = {**topology.workers, **{place.worker: place.node for place in layout.places}}
    return Topology(nodes=nodes, gpus=gpus, workers=workers)


def merged(topologies: Iterable[Topology]) -> Topology:
    """One topology out of those of several jobs; a known switch wins over an unknown one."""
    nodes: dict[str, str] = {}
    gpus: dict[str, str] = {}
    workers: dict[str, str] = {}
    for topology in topologies:
        for node, switch in topology.nodes.items():
            nodes[node] = switch or nodes.get(node, "")
        gpus.update(topology.gpus)
        workers.update(topology.workers)
    return Topology(nodes=nodes, gpus=gpus, workers=workers)


def node_of(entity: Entity, topology: Topology) -> str:
    """Node that an entity is in, '' if it is wider than a node or unknown."""
    if entity.kind is Kind.NODE:
        return entity.name
    if entity.kind is Kind.GPU:
        return topology.gpus.get(entity.name, "")
    if entity.kind is Kind.WORKER:
        return node_of_worker(entity.name)
    return ""


def node_of_worker(worker: str) -> str:
    """Node in a worker's name (run/node/slot), '' if it is none."""
    parts = worker.split("/")
    return parts[1] if len(parts) == 3 else ""


def path(entity: Entity, topology: Topology) -> tuple[Entity, ...]:
    """The entity and everything around it, from narrow to wide."""
    around = [entity]
    node = node_of(entity, topology)
    if node and entity.kind is not Kind.NODE:
        around.append(Entity(kind=Kind.NODE, name=node))
    switch = topology.nodes.get(node, "")
    if switch:
        around.append(Entity(kind=Kind.SWITCH, name=switch))
    return tuple(around)


def contains(wide: Entity, narrow: Entity, topology: Topology) -> bool:
    """True if `narrow` is `wide` or a part of it."""
    return wide in path(narrow, topology)


def narrowest_common(entities: Sequence[Entity], topology: Topology) -> Entity | None:
    """The narrowest entity that contains all of these; None if there is none or nothing was given."""
    if not entities:
        return None
    others = [set(path(entity, topology)) for entity in entities[1:]]
    return next((wide for wide in path(entities[0], topology) if all(wide in other for other in others)), None)
