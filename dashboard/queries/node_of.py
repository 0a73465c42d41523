"""Which node a thing is on."""

from collections.abc import Mapping

from eagle_eye.types import Entity, Kind


def node_of(entity: Entity, gpus: Mapping[str, str]) -> str:
    """The node of an entity, '' if it has none. gpus: UUID → node.

    >>> node_of(Entity(kind=Kind.WORKER, name="run1/node-a/0"), {})
    'node-a'
    """
    if entity.kind is Kind.NODE:
        return entity.name
    if entity.kind is Kind.GPU:
        return gpus.get(entity.name, "")
    parts = entity.name.split("/")
    return parts[-2] if entity.kind is Kind.WORKER and len(parts) > 1 else ""
