"""What a name contains: the unit of a metric, the node of an entity."""

from collections.abc import Mapping

from eagle_eye.types import Entity, Kind

UNITS = {
    "_bytes_per_s": "B/s", "_per_s": "1/s", "_percent": "%", "_watts": "W", "_celsius": "°C", "_mhz": "MHz", "_bytes": "B", "_seconds": "s",
    "_s": "s", "_ratio": "", "_joules": "J", "_milliwatts": "mW", "_millijoules": "mJ", "_kib": "KiB", "_mib": "MiB",
}  # fmt: skip


def unit_of(metric: str) -> str:
    """The unit of a metric, by the end of its name; '' if the name has no unit.

    >>> unit_of("power_watts"), unit_of("net_sent_bytes_per_s"), unit_of("loss")
    ('W', 'B/s', '')
    """
    return next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "")


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
