"""Where a deployment's server and nodes are: all on this machine's loopback, or each in a network namespace of its own."""

import contextlib
from contextlib import AbstractContextManager
from typing import Protocol


class HostNetwork(Protocol):
    """Hosts of one deployment."""

    @property
    def server(self) -> str:
        """Address of the server's host."""
    def address(self, node: int, /) -> str:
        """Of a node's host, by its number in the job."""
    def entered(self, node: int | None, /) -> AbstractContextManager[None]:
        """What this thread starts meanwhile is on that node; None: where the server is."""


class Loopback:
    """One host for all."""

    server = "127.0.0.1"

    def address(self, _node: int, /) -> str:
        return self.server

    def entered(self, _node: int | None, /) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


LOOPBACK = Loopback()


class NetworkPart:
    """The nodes of one job in a network that several jobs share: its first one is `first` there."""

    def __init__(self, network: HostNetwork, first: int) -> None:
        self._network, self._first = network, first
        self.server = network.server

    def address(self, node: int, /) -> str:
        return self._network.address(self._first + node)

    def entered(self, node: int | None, /) -> AbstractContextManager[None]:
        return self._network.entered(None if node is None else self._first + node)
