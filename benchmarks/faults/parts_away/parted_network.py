"""A host for the server and one for each node, in network namespaces: Eagle Eye's own network can be parted while the workers' is not."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.faults.parts_away.outage import NODES
from tests.servers.network import TRAINING_INTERFACE, Network

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


class PartedNetwork:
    """A `HostNetwork`. Needs root and iproute2; raises RuntimeError without them."""

    def __init__(self, nodes: int = NODES) -> None:
        self._network = Network(nodes, training=True)
        self.server = self._network.server

    def address(self, node: int, /) -> str:
        return self._network.address(node)

    @contextmanager
    def entered(self, node: int | None, /) -> Iterator[None]:
        """As `HostNetwork`; workers that are started there meet on the network of the training."""
        before = os.environ.get(INTERFACE_VARIABLE)
        os.environ[INTERFACE_VARIABLE] = TRAINING_INTERFACE
        try:
            with self._network.entered(node):
                yield
        finally:
            del os.environ[INTERFACE_VARIABLE]
            if before is not None:
                os.environ[INTERFACE_VARIABLE] = before

    @contextmanager
    def parted(self) -> Iterator[None]:
        """No launcher reaches another one; all reach the server."""
        self._network.part()
        try:
            yield
        finally:
            self._network.unite()

    @contextmanager
    def cut(self, *nodes: int) -> Iterator[None]:
        """These reach nobody."""
        for node in nodes:
            self._network.cut(node)
        try:
            yield
        finally:
            for node in nodes:
                self._network.mend(node)

    @contextmanager
    def slowed(self, node: int, mbit: float) -> Iterator[None]:
        """The training's link of this node carries so many Mbit/s, each way."""
        self._network.slow(node, mbit)
        try:
            yield
        finally:
            self._network.fast(node)

    @contextmanager
    def lossy(self, node: int, share: float) -> Iterator[None]:
        """Of what this node's workers send such a share is lost; 1: all of it, while they get what is sent to them."""
        self._network.lose(node, share)
        try:
            yield
        finally:
            self._network.lose_nothing(node)

    def close(self) -> None:
        """Take it away, and whatever still runs there."""
        self._network.close()
