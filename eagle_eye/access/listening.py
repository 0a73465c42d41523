"""Who can reach an address that we listen on."""

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether a `host:port` (or `unix:path`) is reachable from this machine alone."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
