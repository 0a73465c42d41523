"""Which user of this machine owns the process at the other end of a TCP connection within the machine.

A connection over loopback never leaves its network namespace, so the table of that namespace (/proc/self/net/tcp, tcp6: proc_pid_net(5))
holds the caller's end of it beside ours, with its owner. Not to be known is an answer: a caller whose end is not in the table, or is
there twice, is nobody in particular.
"""

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NET = Path("/proc/self/net")
USER_MAP = Path("/proc/self/uid_map")
OVERFLOW_USER = Path("/proc/sys/kernel/overflowuid")
WHOLE_MAP = ["0", "0", "4294967295"]
"""Of a process in no user namespace but the first."""
WORD_HEX = 8


class SocketAddress(NamedTuple):
    """Address of one end of a connection."""

    host: str
    port: int

    @property
    def plain(self) -> "SocketAddress":
        """IPv4 as IPv4, also where a socket of IPv6 carries it."""
        address = ipaddress.ip_address(self.host.partition("%")[0])
        inner = getattr(address, "ipv4_mapped", None)
        return SocketAddress(str(inner or address), self.port)


def user_of(client: SocketAddress, server_port: int, *, net: Path = NET) -> int | None:
    """The user id of the process that connects from `client` to our port; None if it cannot be told."""
    users = {user for local, remote, user in _connections(net) if local == client.plain and remote.port == server_port}
    if len(users) != 1:
        return None
    user = users.pop()
    return None if user == _overflow_user() else user


def _connections(net: Path) -> Iterator[tuple[SocketAddress, SocketAddress, int]]:
    """(its end, the other end, owner) of every TCP connection. One whose process has closed it already (inode 0) is left out:
    the kernel names root as its owner."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text().splitlines()[1:]
        except OSError:  # no IPv6, or no such file system
            continue
        for fields in map(str.split, lines):
            if fields[9] != "0":
                yield _endpoint(fields[1]).plain, _endpoint(fields[2]).plain, int(fields[7])


def _endpoint(text: str) -> SocketAddress:
    """From the kernel's words: each 32 bits of the address in the machine's own order, then the port.

    >>> _endpoint("0100007F:1D2B")
    SocketAddress(host='127.0.0.1', port=7467)
    """
    host, _, port = text.partition(":")
    words = (int(host[start : start + WORD_HEX], 16).to_bytes(4, sys.byteorder) for start in range(0, len(host), WORD_HEX))
    return SocketAddress(str(ipaddress.ip_address(b"".join(words))), int(port, 16))


def _overflow_user() -> int | None:
    """As whom the kernel shows users that our user namespace does not know; None where it knows all."""
    try:
        if USER_MAP.read_text().split() == WHOLE_MAP:
            return None
        return int(OVERFLOW_USER.read_text())
    except (OSError, ValueError):
        return None
