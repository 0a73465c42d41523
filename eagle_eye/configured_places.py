"""Where nodes are by the configuration: the tables [[topology.nodes]]."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from .config import NodesConfig, TopologyConfig
from .hostlist import hosts_of
from .types import NodePlace

SOURCE = "configuration"


class ConfiguredPlaces:
    """Looks nodes up, by their names and by these without a domain."""

    def __init__(self, topology: TopologyConfig | None = None) -> None:
        self._tables = () if topology is None else topology.nodes
        self._hosts: dict[str, list[int]] = {}
        self._patterns: list[tuple[str, int]] = []
        for number, table in enumerate(self._tables):
            for host in hosts_of(table.hosts):
                if "*" in host or "?" in host:
                    self._patterns.append((host, number))
                else:
                    self._hosts.setdefault(host, []).append(number)

    def of(self, node: str) -> NodePlace:
        """Its place; without a source if no table names it."""
        tables = tuple(self._of(node))
        switch, rack, zone = _first(table.switch for table in tables), _first(table.rack for table in tables), _first(table.zone for table in tables)
        return NodePlace(switch=switch, rack=rack, zone=zone, source=SOURCE if switch or rack or zone else "")

    def rails(self, node: str) -> tuple[str, ...]:
        """Its ports in the order of their rails; () if no table names them."""
        return next((table.rails for table in self._of(node) if table.rails), ())

    def _of(self, node: str) -> Iterator[NodesConfig]:
        names = (node, node.partition(".")[0])
        numbers = {number for name in names for number in self._hosts.get(name, ())}
        numbers |= {number for pattern, number in self._patterns if any(fnmatchcase(name, pattern) for name in names)}
        return (self._tables[number] for number in sorted(numbers))


def _first(values: Iterable[str]) -> str:
    return next((value for value in values if value), "")
