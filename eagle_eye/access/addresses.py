"""Addresses, host:port: several in one setting, and who can reach one that we listen on."""

import ipaddress

from eagle_eye.errors import ControlError


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


def refuse_open(address: str, *, secured: bool, insecure: bool) -> None:
    """ControlError for a control channel that anybody could use. `secured`: it asks for certificates."""
    if not (secured or insecure or is_loopback(address)):
        raise ControlError(
            f"{address!r} can be reached from other machines, and anybody there could command jobs: set access.ca_file, "
            "access.certificate_file and access.key_file (`eagle-eye certs` makes them), listen on 127.0.0.1, or set "
            "server.insecure if this network is yours alone"
        )


def addresses_of(text: str) -> tuple[str, ...]:
    """The addresses of a setting: host:port, several with commas, in the order in which they are tried.

    >>> addresses_of("a:1, b:2")
    ('a:1', 'b:2')
    """
    return tuple(address for address in (part.strip() for part in text.split(",")) if address)
