"""What the agents of a job's nodes say of where they are, and of the ports next to their GPUs: `node.place` and `node.devices` events, folded into the
job's layout.

An event is told once: the owner of the partition writes the layout down again and again, and who begins to read later has the places from there.
"""

from collections.abc import Iterable, Mapping

import msgspec

from .node_devices import gpus_told
from .types import Event, Kind, Layout, NodePlace, RankPlacement

NODE_PLACE = "node.place"
"""Event of the agent: switch, rack and zone of its node, and who says so."""
NODES_KEPT = 50_000
LONGEST = 400
"""Characters of a name (types.entity.Name)."""


def place_told(event: Event) -> NodePlace | None:
    """The place in a `node.place` event; None where it is not the node's own agent that speaks, or where a name cannot be one."""
    told = [event.attributes.get(name, "") for name in ("switch", "rack", "zone", "source")]
    if event.entity.kind is not Kind.NODE or event.entity.name != event.node or any(len(name) > LONGEST or "\0" in name for name in told):
        return None
    switch, rack, zone, source = told
    return NodePlace(switch=switch, rack=rack, zone=zone, source=source)


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


class NodePlaces:
    """Of one job's nodes."""

    def __init__(self) -> None:
        self.changed = False
        """Something was told since the last layout was made of it."""
        self._places: dict[str, NodePlace] = {}
        self._ports: dict[str, dict[str, str]] = {}
        """Node → UUID of a GPU → the link next to it."""

    def take(self, event: Event) -> None:
        """An event of one of NODES_KEPT nodes; more are not kept."""
        place = place_told(event)
        if place is not None and self._places.get(event.node) != place and (event.node in self._places or len(self._places) < NODES_KEPT):
            self._places[event.node], self.changed = place, True

    def take_devices(self, event: Event) -> None:
        """The same of the ports next to its GPUs."""
        gpus = gpus_told(event)
        ports = None if gpus is None else {gpu.uuid: f"{event.node}/{gpu.port}" for gpu in gpus if gpu.uuid and gpu.port}
        if ports is not None and self._ports.get(event.node) != ports and (event.node in self._ports or len(self._ports) < NODES_KEPT):
            self._ports[event.node], self.changed = ports, True

    def recall(self, layout: Layout) -> None:
        """What a layout holds that an owner has written down: it counts where the node itself has said nothing since."""
        for node in (*layout.nodes, *layout.launchers) if layout.places else ():
            if node in layout.places and len(self._places) < NODES_KEPT:
                self._places.setdefault(node, layout.places[node])
        recalled: dict[str, dict[str, str]] = {}
        for place in layout.placements:
            if place.gpu and place.port.startswith(f"{place.node}/"):
                recalled.setdefault(place.node, {})[place.gpu] = place.port
        self._ports = {**recalled, **self._ports} if len(recalled) + len(self._ports) <= 2 * NODES_KEPT else self._ports

    def on(self, layout: Layout) -> Layout:
        """The layout with the places of its nodes, and the ports of its workers' GPUs."""
        self.changed = False
        places = {node: self._places[node] for node in dict.fromkeys((*layout.nodes, *layout.launchers)) if node in self._places}
        placements = tuple(_with_port(place, self._ports) for place in layout.placements) if self._ports else layout.placements
        if places == layout.places and placements == layout.placements:
            return layout
        return msgspec.structs.replace(layout, places=places, placements=placements)


def _with_port(place: RankPlacement, ports: Mapping[str, Mapping[str, str]]) -> RankPlacement:
    port = ports[place.node].get(place.gpu, "") if place.node in ports else place.port
    return place if port == place.port else msgspec.structs.replace(place, port=port)
