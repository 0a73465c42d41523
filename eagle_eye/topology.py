"""Switch > node > gpu and worker: who is part of whom.

>>> topology = Topology(nodes={"a": "leaf-1", "b": "leaf-1"}, gpus={"GPU-1": "a"})
>>> node_of(Entity(kind=Kind.GPU, name="GPU-1"), topology)
'a'
"""

from collections.abc import Iterable

from .types import Entity, Kind, Layout, Topology

ON_GPU = "on_gpu:"
"""Begins the metric of a line of evidence that says on which GPU a worker computes; its UUID follows."""


def with_layout(topology: Topology, layout: Layout) -> Topology:
    """The topology with the nodes, GPUs, workers and the job that a layout speaks of; what is known already stays."""
    switches = {**dict.fromkeys(layout.nodes, ""), **{node: place.switch for node, place in layout.places.items()}}
    nodes = {**switches, **{node: switch or switches.get(node, "") for node, switch in topology.nodes.items()}}
    gpus = {**topology.gpus, **{place.gpu: place.node for place in layout.placements if place.gpu}}
    workers = {**topology.workers, **{place.worker: place.node for place in layout.placements}}
    worker_gpus = {**topology.worker_gpus, **{place.worker: place.gpu for place in layout.placements if place.gpu}}
    racks = {**{node: place.rack for node, place in layout.places.items() if place.rack}, **topology.racks}
    gpu_ports = {**topology.gpu_ports, **{place.gpu: place.port for place in layout.placements if place.gpu and place.port}}
    jobs = {**topology.jobs, layout.job: layout.workers}
    return Topology(nodes=nodes, racks=racks, gpus=gpus, workers=workers, worker_gpus=worker_gpus, gpu_ports=gpu_ports, jobs=jobs)


def merged(topologies: Iterable[Topology]) -> Topology:
    """One topology out of those of several jobs; a known switch wins over an unknown one."""
    nodes: dict[str, str] = {}
    racks: dict[str, str] = {}
    gpus: dict[str, str] = {}
    workers: dict[str, str] = {}
    worker_gpus: dict[str, str] = {}
    gpu_ports: dict[str, str] = {}
    jobs: dict[str, tuple[str, ...]] = {}
    for topology in topologies:
        for node, switch in topology.nodes.items():
            nodes[node] = switch or nodes.get(node, "")
        racks.update(topology.racks)
        gpus.update(topology.gpus)
        workers.update(topology.workers)
        worker_gpus.update(topology.worker_gpus)
        gpu_ports.update(topology.gpu_ports)
        jobs.update(topology.jobs)
    return Topology(nodes=nodes, racks=racks, gpus=gpus, workers=workers, worker_gpus=worker_gpus, gpu_ports=gpu_ports, jobs=jobs)


def node_of(entity: Entity, topology: Topology) -> str:
    """Node that an entity is in, '' if it is wider than a node or unknown."""
    if entity.kind is Kind.NODE:
        return entity.name
    if entity.kind is Kind.GPU:
        return topology.gpus.get(entity.name, "")
    if entity.kind is Kind.WORKER:
        return node_of_worker(entity.name)
    if entity.kind in (Kind.LINK, Kind.MOUNT):
        return entity.name.partition("/")[0]
    return ""


def gpu_of(entity: Entity, topology: Topology) -> str:
    """UUID of the GPU that an entity is or has, '' if it is none or unknown."""
    if entity.kind is Kind.GPU:
        return entity.name
    return topology.worker_gpus.get(entity.name, "") if entity.kind is Kind.WORKER else ""


def node_of_worker(worker: str) -> str:
    """Node in a worker's name (run/node/slot), '' if it is none."""
    parts = worker.split("/")
    return parts[1] if len(parts) == 3 else ""
