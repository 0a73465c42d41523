"""Which user of this machine owns the process at the other end of a TCP connection within the machine.

A connection over loopback never leaves its network namespace, so its kernel table holds the caller's end of it beside ours, with its owner.
It is asked for that one connection (sock_diag(7)); where a sandbox forbids that the whole table is read (/proc/self/net/tcp, tcp6:
proc_pid_net(5)). Not to be known is an answer: a caller whose end is not there, or is there twice, is nobody in particular.
"""

import ipaddress
import socket
import struct
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
SOCK_DIAG = 4
"""NETLINK_SOCK_DIAG of linux/netlink.h."""
SOCK_DIAG_BY_FAMILY = 20
LISTEN = 10
"""TCP_LISTEN of linux/tcp_states.h."""
ANY_STATE = 0xFFFFFFFF
ANY_COOKIE = (ANY_STATE, ANY_STATE)
HEAD = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, number, port."""
REQUEST = struct.Struct("=BBBBI")
"""struct inet_diag_req_v2 up to its id: family, protocol, extensions, padding, states."""
PORTS = struct.Struct("!HH16s16s")
"""struct inet_diag_sockid: ports and addresses of both ends; then interface and cookie."""
REST = struct.Struct("=III")
OWNER = struct.Struct("=II")
"""User and inode, the end of struct inet_diag_msg."""
OWNER_AT = 64
"""Where it begins in that."""
WAIT_S = 1.0
Owner = tuple[int, int]
"""User and inode. Inode 0: the process has closed it, and the kernel may name root as its owner."""


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
    """The user id of the process that connects from `client` to our port; None if it cannot be told. Blocks for some microseconds,
    without sock_diag as long as it takes to read the table."""
    owners = _asked(client.plain, server_port) if net == NET else None
    if owners is None:
        owners = set(_listed(client.plain, server_port, net))
    users = {user for user, inode in owners if inode}
    if len(users) != 1:
        return None
    user = users.pop()
    return None if user == _overflow_user() else user


def _asked(client: SocketAddress, server_port: int) -> set[Owner] | None:
    """Who owns the one connection, between two equal addresses as those within loopback are; None where the kernel does not say."""
    address = ipaddress.ip_address(client.host)
    ends = PORTS.pack(client.port, server_port, address.packed, address.packed) + REST.pack(0, *ANY_COOKIE)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # of IP
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, ANY_STATE) + ends
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG) as kernel:
            kernel.settimeout(WAIT_S)
            kernel.send(HEAD.pack(HEAD.size + len(request), SOCK_DIAG_BY_FAMILY, 1, 1, 0) + request)
            answer = kernel.recv(8192)
    except OSError:  # a sandbox without netlink, a kernel without inet_diag
        return None
    if len(answer) < HEAD.size + OWNER_AT + OWNER.size or HEAD.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None  # mostly ENOENT
    if answer[HEAD.size + 1] == LISTEN:  # the connection is gone, and somebody listens on its port
        return set()
    user, inode = OWNER.unpack_from(answer, HEAD.size + OWNER_AT)
    return {(user, inode)}


def _listed(client: SocketAddress, server_port: int, net: Path) -> Iterator[Owner]:
    """The owners of all connections from that end to that port of ours, in the tables of both families."""
    port = f":{client.port:04X} "
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text().splitlines()[1:]
        except OSError:  # no IPv6, or no such file system
            continue
        for fields in (line.split() for line in lines if port in line):
            if _address(fields[1]).plain == client and _address(fields[2]).port == server_port:
                yield int(fields[7]), int(fields[9])


def _address(text: str) -> SocketAddress:
    """From the kernel's words: each 32 bits of the address in the machine's own order, then the port.

    >>> _address("0100007F:1D2B")
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
