"""Through which network interface a node's workers are reached by those of other nodes: the one its launcher listens on."""

import socket
from collections.abc import Mapping

from eagle_eye.access.listen_address import is_loopback

VARIABLE = "GLOO_SOCKET_IFNAME"


def facing_the_others(environment: Mapping[str, str], address: str) -> dict[str, str]:
    """The environment of the workers of a launcher at `address` (host:port), with the interface that gloo is to use.

    gloo by itself takes the address that the host's name resolves to, which on many machines is one of loopback. What the
    user has chosen stays; where all launchers are on loopback nothing is to be chosen here.
    """
    found = dict(environment)
    if VARIABLE not in found and not is_loopback(address) and (name := interface_of(address)):
        found[VARIABLE] = name
    return found


def interface_of(address: str) -> str:
    """Name of the interface that bears the host of a `host:port`; '' if none of this machine's does."""
    import psutil

    host = address.rpartition(":")[0].strip("[]")
    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return ""
    for name, ends in psutil.net_if_addrs().items():
        if any(end.address.partition("%")[0] in wanted for end in ends):
            return name
    return ""
