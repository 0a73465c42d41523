"""What the agents of a job's nodes say of where they are: `node.place` events, folded into the job's layout.

An event is told once: the owner of the partition writes the layout down again and again, and who begins to read later has the places from there.
"""

from collections.abc import Mapping

import msgspec

from .types import Event, Kind, Layout, NodePlace

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


class NodePlaces:
    """Of one job's nodes."""

    def __init__(self) -> None:
        self.changed = False
        """Something was told since the last layout was made of it."""
        self._places: dict[str, NodePlace] = {}

    def take(self, event: Event) -> None:
        """An event of one of NODES_KEPT nodes; more are not kept."""
        place = place_told(event)
        if place is None or self._places.get(event.node) == place or (event.node not in self._places and len(self._places) >= NODES_KEPT):
            return
        self._places[event.node] = place
        self.changed = True

    def recall(self, layout: Layout) -> None:
        """What a layout holds that an owner has written down: it counts where the node itself has said nothing since."""
        for node in (*layout.nodes, *layout.launchers) if layout.places else ():
            if node in layout.places and len(self._places) < NODES_KEPT:
                self._places.setdefault(node, layout.places[node])

    def on(self, layout: Layout) -> Layout:
        """The layout with the places of its nodes."""
        self.changed = False
        places = _of_nodes(layout, self._places)
        return layout if places == layout.places else msgspec.structs.replace(layout, places=places)


def _of_nodes(layout: Layout, places: Mapping[str, NodePlace]) -> dict[str, NodePlace]:
    return {node: places[node] for node in dict.fromkeys((*layout.nodes, *layout.launchers)) if node in places}
