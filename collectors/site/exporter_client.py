"""One page of an exporter, or of another service, over HTTP, with a limit for everything: bytes, time, no redirect, no compression.

The time and the bytes are limited below `http.client`, at the socket: whatever an endpoint sends (headers without end, one byte a second, chunks), a page
ends at its deadline. Only the look-up of a host's name is the resolver's own affair; an address needs none.
"""

import http.client
import io
import socket
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

from eagle_eye.clock import Clock

PAGE_BYTES = 8 << 20
"""Of one page with its headers; 10,000 series have 2 MB."""
PORTS = {"http": 80, "https": 443}
REQUEST_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "Connection": "close", "User-Agent": "eagle-eye-agent"}


class PageError(Exception):
    """An endpoint gave no page; the message says why, and what to do where that is known."""


class StatusError(PageError):
    """It answered with another HTTP status than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answers with HTTP status {status}")
        self.status = status


class _PageTooLong(OSError):
    pass


class ExporterAddress(NamedTuple):
    """Where an exporter is asked."""

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @property
    def name(self) -> str:
        """As events and the log name it."""
        return f"{self.host}:{self.port}{self.path}"


def parse_endpoint(url: str) -> ExporterAddress:
    """Raises ValueError for what is no plain address of a page."""
    parts = urlsplit(url)
    port = parts.port or PORTS.get(parts.scheme)
    if parts.username is not None or parts.password is not None:
        raise ValueError("an endpoint must not hold a password: the log and events name it")
    if port is None or not parts.hostname:
        raise ValueError(f"endpoint {url!r}: write http://HOST:PORT/metrics")
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError(f"endpoint {url!r}: its path holds a character that is not allowed there")
    return ExporterAddress(url, parts.scheme == "https", parts.hostname, port, path)


class _BoundedStream(io.RawIOBase):
    """What a socket sends, until a deadline and up to PAGE_BYTES."""

    def __init__(self, connected: socket.socket, deadline: float, clock: Clock) -> None:
        self._socket, self._deadline, self._clock, self._count = connected, deadline, clock, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # any buffer: the two that are there
        self._socket.settimeout(_left(self._deadline, self._clock))
        count = self._socket.recv_into(buffer)
        self._count += count
        if self._count > PAGE_BYTES:
            raise _PageTooLong
        return count


class _BoundedSocket:
    """What `http.client` needs of a socket."""

    def __init__(self, connected: socket.socket, deadline: float, clock: Clock) -> None:
        self._socket, self._deadline, self._clock = connected, deadline, clock

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(_left(self._deadline, self._clock))
        self._socket.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedStream(self._socket, self._deadline, self._clock))

    def close(self) -> None:
        """It is called before the page is read; whoever opened the socket closes it."""


def _left(deadline: float, clock: Clock) -> float:
    """Seconds. Raises TimeoutError."""
    left = deadline - clock.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def fetch_page(endpoint: ExporterAddress, seconds: float, clock: Clock, *, headers: Mapping[str, str] = MappingProxyType({}), tls: ssl.SSLContext | None = None) -> bytes:
    """The body of the page. Raises PageError, at the latest after `seconds` (and what the look-up of a name takes).

    `headers`: beside the usual ones. `tls`: whom https trusts; None: the system's authorities.
    """
    deadline = clock.monotonic() + seconds
    try:
        with _connected(endpoint, deadline, clock, tls) as connected:
            connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
            connection.sock = _BoundedSocket(connected, deadline, clock)  # it has what is used of one
            connection.request("GET", endpoint.path, headers={**REQUEST_HEADERS, **headers})
            with connection.getresponse() as response:
                _check(response)
                return response.read()
    except _PageTooLong:
        raise PageError(f"it sends more than {PAGE_BYTES >> 20} MiB; let it export less") from None
    except TimeoutError:
        raise PageError(f"no whole page within {seconds:g} s") from None
    except http.client.IncompleteRead as error:
        raise PageError(f"the page ended early, after {len(error.partial)} bytes") from None
    except (http.client.HTTPException, ValueError) as error:
        raise PageError(f"its answer is no HTTP: {type(error).__name__}") from None
    except OSError as error:
        raise PageError(f"it cannot be reached: {error.strerror or error}; check that it runs and listens there") from None


def _connected(endpoint: ExporterAddress, deadline: float, clock: Clock, tls: ssl.SSLContext | None) -> socket.socket:
    """Raises OSError."""
    connected = socket.create_connection((endpoint.host, endpoint.port), _left(deadline, clock))
    try:
        if endpoint.secure:
            connected.settimeout(_left(deadline, clock))
            connected = (tls or ssl.create_default_context()).wrap_socket(connected, server_hostname=endpoint.host)
    except BaseException:
        connected.close()
        raise
    return connected


def _check(response: http.client.HTTPResponse) -> None:
    """Raises PageError unless it is the page of an exporter."""
    if response.status in (301, 302, 303, 307, 308):
        raise PageError(f"it redirects to {response.getheader('Location', '')[:200]!r}; name that address, redirects are not followed")
    if response.status != 200:
        raise StatusError(response.status)
    encoding = response.getheader("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise PageError(f"it sends {encoding[:40]!r} unasked: compressed pages are not read")
    if response.getheader("Content-Type", "").strip().lower().startswith("text/html"):
        raise PageError("it sends an HTML page; name the path of the metrics, often /metrics")
    if (response.length or 0) > PAGE_BYTES:
        raise _PageTooLong
