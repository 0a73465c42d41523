"""Ports and addresses of this machine."""

import socket

from eagle_eye.errors import ConfigError


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
