"""Where this node is: what the configuration, Slurm, labels of Kubernetes and LLDP say, joined. For each value the first that knows it counts."""

from collections.abc import Iterable, Mapping, Sequence

from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.types import NodePlace

from .lldp_neighbors import LldpNeighbor
from .node_labels import NodeLabels
from .slurm_topology import SlurmTopology

LLDP = "lldp"


class PlaceSources:
    """Of one node."""

    def __init__(self, node: str, configured: ConfiguredPlaces, slurm: SlurmTopology, labels: NodeLabels) -> None:
        self._node, self._configured, self._slurm, self._labels = node, configured, slurm, labels

    def place(self, neighbors: Mapping[str, LldpNeighbor], fabric: Sequence[str]) -> NodePlace:
        """`fabric`: the interfaces that training uses; others, such as one for management, hang at a switch of no interest."""
        return joined((self._configured.of(self._node), self._slurm.place_of(self._node), self._labels.place(), place_of_neighbors(neighbors, fabric)))

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be used at the last look, each with its remedy."""
        return tuple(filter(None, (self._slurm.problem, self._labels.problem)))


def joined(places: Iterable[NodePlace]) -> NodePlace:
    """Of several places the first value of each kind; `source` names those that gave one.

    >>> joined([NodePlace(rack="r1", source="configuration"), NodePlace(switch="s1", rack="b1", source="slurm")])
    NodePlace(schema=1, switch='s1', rack='r1', zone='', source='configuration,slurm')
    """
    known = NodePlace()
    for place in places:
        switch, rack, zone = known.switch or place.switch, known.rack or place.rack, known.zone or place.zone
        if (switch, rack, zone) != (known.switch, known.rack, known.zone):
            known = NodePlace(switch=switch, rack=rack, zone=zone, source=f"{known.source},{place.source}".lstrip(","))
    return known


def place_of_neighbors(neighbors: Mapping[str, LldpNeighbor], fabric: Sequence[str]) -> NodePlace:
    """The switch at which all ports of the fabric hang; none where each rail has a switch of its own: no single one takes such a node away."""
    switches = {neighbors[interface].switch for interface in fabric if interface in neighbors}
    return NodePlace(switch=switches.pop(), source=LLDP) if len(switches) == 1 else NodePlace()
