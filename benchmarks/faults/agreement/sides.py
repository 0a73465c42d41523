"""Who can reach whom, and what follows: which launchers could agree to go on, and who is left behind when everything is whole."""

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from eagle_eye.types import Layout
from remediation.launcher.coordinator.quorum import Electorate, VoteCount, electorate_of, weakest

GRACE_S = 2.0
"""What was ordered before a side lost its majority is done by then, where nothing holds messages or processes up."""
RECOVERY_S = 18.0
"""A side that has a majority, and to which nothing happens any more, trains again within so long."""
SLOW = frozenset({"loss", "delay", "pause", "node pause", "server pause", "kernel"})
"""Faults that hold up what was ordered before."""


class Sides:
    """Of a world, as it is now. `changed` is called at each change of it, `look` now and then."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._alone: dict[tuple[str, int], float] = {}
        """(node, epoch) → since when it is no part of a side that could go on from that epoch."""
        self._groups = 0
        self._since: dict[frozenset[str], float] = {}
        """Side with a majority → since when nothing has happened to it, and it does not train."""

    def changed(self) -> None:
        """Something has happened to somebody."""
        self._since.clear()
        self._groups = 0
        self.look()

    def look(self) -> None:
        """Note who could go on now."""
        if self._groups == len(self._world.groups):
            return
        self._groups = len(self._world.groups)
        for epoch, group in self._world.groups.items():
            for name in group.layout.nodes:
                if self._could_go_on(name, group.layout):
                    self._alone.pop((name, epoch), None)
                else:
                    self._alone.setdefault((name, epoch), self._world.time.now_s)

    def trains(self) -> None:
        """Some side does."""
        self._since.clear()

    # --- what must not happen -------------------------------------------------------------------------------------

    def alone(self, name: str, epoch: int) -> bool:
        """Whether a launcher has been one of too few for longer than an order may be on its way."""
        if any(fault.kind in SLOW for fault in self._world.faults):
            return False
        since = self._alone.get((name, epoch))
        return since is not None and self._world.time.now_s - since > GRACE_S

    def stuck(self) -> frozenset[str]:
        """A side that has had a majority for long enough to train again."""
        now = self._world.time.now_s
        self._since = {side: self._since.get(side, now) for side in self._majorities()}
        return next((side for side, since in self._since.items() if now - since > RECOVERY_S), frozenset())

    def left_behind(self) -> Iterator[str]:
        """Launchers that take no part in a job that is whole: each follows the one that coordinates it."""
        nodes = [node for node in self._world.nodes.values() if node.alive and not node.ended]
        leading = [node for node in nodes if node.part.coordinator is not None]
        if len(leading) != 1:
            yield f"{' and '.join(node.name for node in leading) or 'nobody'} coordinates the job"
            return
        members = leading[0].part.coordinator.members
        for node in nodes:
            member = members.get(node.name)
            if member is None or not member.connected:
                yield f"{node.name} takes no part in the job of {leading[0].name}"

    def overtaken(self) -> Iterator[str]:
        """Launchers that have workers of an epoch after which others have begun one."""
        newest = max(self._world.groups, default=0)
        for node in self._world.nodes.values():
            for worker in node.workers.running if node.alive and node.workers is not None else ():
                if worker.epoch < newest:
                    yield f"workers of epoch {worker.epoch} live on {node.name}, and those of epoch {newest} train"

    # --- who could go on ----------------------------------------------------------------------------------------------

    def _could_go_on(self, name: str, layout: Layout) -> bool:
        world = self._world
        side = {other for other in world.schedule.nodes if self._acts(other) and (other == name or world.links.whole(name, other))}
        count = electorate_of(layout).count(side)
        return count.majority or (count.grantable and world.schedule.server)

    def _majorities(self) -> Iterator[frozenset[str]]:
        """Sides that need nobody else, not even the server."""
        world = self._world
        if not world.groups:
            return
        able = [name for name in world.schedule.nodes if self._acts(name) and self._votes(name)]
        for count in range(len(able), world.schedule.min_nodes - 1, -1):
            for side in combinations(able, count):
                if self._whole(side) and self._agree(side).majority and not any(self._apart(name, side) for name in able):
                    yield frozenset(side)

    def _agree(self, side: Iterable[str]) -> VoteCount:
        world, names = self._world, set(side)
        newest = world.groups[max(world.groups)].layout
        undecided: list[Electorate] = [each for name in names for each in world.nodes[name].votes.undecided if each.epoch > newest.epoch]
        return weakest(each.count(names) for each in (electorate_of(newest), *undecided))

    def _whole(self, side: tuple[str, ...]) -> bool:
        links, data = self._world.links, self._world.data
        return all(links.whole(one, other) and data.whole(one, other) for one, other in combinations(side, 2))

    def _apart(self, name: str, side: tuple[str, ...]) -> bool:
        """Another launcher can reach some of a side, and not all: it may keep them busy."""
        reached = [self._whole((name, other)) for other in side if other != name]
        return name not in side and any(reached)

    def _acts(self, name: str) -> bool:
        node = self._world.nodes.get(name)
        return node is not None and node.alive and not node.ended and not node.loop.paused and not self._world.hurt_machine(name)

    def _votes(self, name: str) -> bool:
        node = self._world.nodes[name]
        return not self._world.disks[name].full and node.votes is not None and not node.votes.unreadable and not (node.workers and node.workers.held)
