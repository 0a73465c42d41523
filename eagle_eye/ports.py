"""Ports and addresses of this machine."""

import os
import secrets
import socket
from collections import deque
from pathlib import Path

from eagle_eye.errors import ConfigError

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000
"""Below are ports that services are registered for."""
_TRIES = 100
_given: deque[int] = deque(maxlen=8)
"""To this process, last: it listens on none of them yet, and a configuration would have one port twice."""
HIGHEST_PORT = 65_535
RANGE_VARIABLE = "EAGLE_EYE_PORTS"
"""Of the environment: FIRST-LAST, from which free ports are taken. For a firewall, and where many are started at one time: two may choose the same
port in the second until one of them listens on it."""


def address_problem(address: str, example: str = "127.0.0.1:7467") -> str:
    """What keeps a text from being an address, with the remedy; '' if it is one.

    >>> address_problem("head:7467")
    ''
    >>> address_problem("head")
    'write it as host:port, e.g. 127.0.0.1:7467'
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        return f"write it as host:port, e.g. {example}"
    return f"the highest port is {HIGHEST_PORT}" if int(port) > HIGHEST_PORT else ""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now, and, while there are others, none of the last ones that were returned.

    It is outside the range from which the kernel takes ports for connections and for `:0`: from there it would be given to
    another process in the time until ours listens on it (ip_local_port_range, ip(7)); EAGLE_EYE_PORTS names another one. Raises OSError for a host that is
    not ours, ConfigError for a range that is none.
    """
    ports = _named_range() or range(_FIRST, _first_ephemeral())
    drawn = [secrets.choice(ports) for _ in range(_TRIES if ports else 0)]
    for port in sorted(drawn, key=_given.__contains__):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            _given.append(port)
            return port
    with socket.socket() as probe:  # a machine whose whole range is the kernel's
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _named_range() -> range | None:
    text = os.environ.get(RANGE_VARIABLE, "")
    first, _, last = (part.strip() for part in text.partition("-"))
    if not text:
        return None
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit() and 0 < int(first[:6]) <= int(last[:6]) <= HIGHEST_PORT):
        raise ConfigError(f"{RANGE_VARIABLE}={text!r} is no range of ports: write FIRST-LAST, e.g. 20000-20999")
    return range(int(first), int(last) + 1)


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # Linux' default


def own_listen(rendezvous: str) -> str:
    """host:port for a launcher without --listen: the address of the rendezvous if it is on this machine and free, else any port.

    Raises ConfigError when the address of the rendezvous cannot be reached from here.
    """
    host, _, port = rendezvous.rpartition(":")
    if not host:
        return "127.0.0.1:0"
    with socket.socket() as probe:
        try:
            probe.bind((host, int(port)))
        except (OSError, ValueError):
            return f"{_own_address(host)}:0"
    return rendezvous


def _own_address(toward: str) -> str:
    """The address of this machine that faces a host; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((toward, 9))
            address: str = probe.getsockname()[0]
        except OSError as error:
            raise ConfigError(f"--rdzv {toward}: {error}. Name a host that this machine can reach, or this one's address with --listen.") from error
    return address
