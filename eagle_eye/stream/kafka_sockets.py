"""Sockets of kafka-python that are closed for certain, not by the garbage collector.

kafka-python (3.0) leaves open the socket of an attempt to connect that failed, and of a TLS handshake that failed; a
producer whose constructor fails leaves its network client open. What it offers us to change that: a class of sockets is
chosen by the scheme of the option `proxy_url`, the class of TLS sockets by our own SSL context, and the network client
of a producer is made by the option `kafka_client`.
"""

import itertools
import socket
import ssl
from typing import Any

from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket

SCHEME = "eagle-eye"
PROXY_URL = f"{SCHEME}://direct"
"""Value of kafka-python's `proxy_url` with which it makes its sockets here. No proxy is used."""


class OwnedSockets:
    """All sockets of one connection. An attempt that has just connected when the network loop ends hands its socket to nobody."""

    def __init__(self) -> None:
        self.proxy_url = f"{PROXY_URL}-{next(_NUMBERS)}"
        """The value of kafka-python's option for this connection alone."""
        self._open: list[socket.socket] = []
        _OWNERS[self.proxy_url] = self

    def add(self, made: socket.socket) -> None:
        """One more; those that are closed are forgotten."""
        self._open = [*(each for each in self._open if each.fileno() >= 0), made]

    def close(self) -> None:
        """Once the network loop has ended: close what it has left open."""
        _OWNERS.pop(self.proxy_url, None)
        for each in self._open:
            each.close()


_NUMBERS = itertools.count()
_OWNERS: dict[str, OwnedSockets] = {}
"""By proxy_url."""


class DirectSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """Makes the sockets of one attempt to connect to a broker; closes them if it fails or is given up."""

    SCHEMES = (SCHEME,)

    def __init__(self, proxy_url: str | None = None) -> None:
        self.made: list[socket.socket] = []
        self._owner = _OWNERS.get(proxy_url or "")

    def socket(self, *arguments: Any) -> socket.socket:
        """One more socket; kafka-python connects it."""
        self.made.append(socket.socket(*arguments))
        if self._owner is not None:
            self._owner.add(self.made[-1])
        return self.made[-1]

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        """A connected socket. Raises kafka-python's errors and OSError; then it is closed."""
        try:
            return await super().connect(*arguments, **options)
        except BaseException:  # also GeneratorExit: the attempt ends with the network loop
            for made in self.made:
                made.close()
            raise


class HandshakeSocket(ssl.SSLSocket):
    """A TLS socket that is closed when its handshake fails."""

    def do_handshake(self, block: bool = False) -> None:
        """As that of ssl.SSLSocket."""
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise  # it goes on when more has arrived
        except BaseException:
            self.close()
            raise


class OwningClient(KafkaNetClient):  # type: ignore[misc]  # kafka-python has no types
    """A producer's network client. Its thread closes it when it ends, and with it whatever socket an attempt to connect has left open."""

    def __init__(self, **settings: Any) -> None:
        self.sockets = OwnedSockets()
        super().__init__(**{**settings, "proxy_url": self.sockets.proxy_url})

    def close(self, node_id: Any = None) -> None:
        """The connections to one broker; None: all of them, and the network loop."""
        super().close(node_id)
        if node_id is None:
            self.sockets.close()


class NetworkClients:
    """A producer's `kafka_client`: makes its network client, and closes it where the producer's constructor failed."""

    def __init__(self) -> None:
        self._made: list[OwningClient] = []

    def __call__(self, **settings: Any) -> OwningClient:
        """Called by KafkaProducer."""
        self._made.append(OwningClient(**settings))
        return self._made[-1]

    def close(self) -> None:
        """Release its sockets. Called where no producer has taken it over."""
        for made in self._made:
            made.close()
