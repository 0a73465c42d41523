"""Where this launcher's node is: told to the coordinator with the request to join, and again when it has changed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from eagle_eye.config import TopologyConfig
from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.place_file import read_place
from eagle_eye.types import NodePlace

LOOK_S = 30.0
"""As often as the agent looks."""


class OwnPlace:
    """As the node's agent has found it, which knows the configuration, too; by the configuration alone where no agent has."""

    def __init__(self, node: str, run_dir: Path, topology: TopologyConfig) -> None:
        self._node, self._run_dir = node, run_dir
        self._configured = ConfiguredPlaces(topology).of(node)
        self._told = NodePlace()

    def now(self) -> NodePlace:
        """To be told to the coordinator."""
        self._told = self._found()
        return self._told

    async def watch(self, report: Callable[[str, dict[str, Any]], None]) -> None:
        """Until cancelled: an agent may be started after us, and a cable moved."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._found() != self._told:
                report("place", {"place": msgspec.to_builtins(self.now()), "lasting": True})

    def _found(self) -> NodePlace:
        found = read_place(self._run_dir, self._node)
        return self._configured if found == NodePlace() else found
