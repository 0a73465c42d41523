"""Bytes that the TCP connections of a process have carried, from the kernel (sock_diag(7), struct tcp_info of linux/tcp.h).

They tell a slow collective from one that nobody else enters: what gloo receives shows in no counter of the process.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
"""NETLINK_SOCK_DIAG of linux/netlink.h, and the one request that it knows."""
DUMP = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP: all sockets that match."""
ESTABLISHED = 1 << 1
INFO = 2
"""INET_DIAG_INFO of linux/inet_diag.h: the number of the attribute, and its bit is one less."""
HEAD = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, number, port."""
REQUEST = struct.Struct("=BBBBI48x")
"""struct inet_diag_req_v2: family, protocol, extensions, padding, states; any id."""
INODE_AT, ATTRIBUTES_AT = 68, 72
"""In struct inet_diag_msg, and behind it."""
ATTRIBUTE = struct.Struct("=HH")
BYTES_AT, BYTES = 120, struct.Struct("=QQ")
"""tcpi_bytes_acked and tcpi_bytes_received."""
WAIT_S = 0.5
CHUNK = 1 << 16


def tcp_bytes(pid: int) -> int:
    """Sent and acknowledged, or received, over all that are open now. 0 where the kernel does not tell, or the process has a network of its own."""
    try:
        own = set(_inodes(pid))
        return sum(carried for family in (socket.AF_INET, socket.AF_INET6) for inode, carried in _connections(family) if inode in own) if own else 0
    except (OSError, struct.error):  # a sandbox without netlink, a kernel that says something else
        return 0


def _inodes(pid: int) -> Iterator[int]:
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError, ValueError):
            name = os.readlink(entry.path)  # noqa: PTH115 - one entry of many
            if name.startswith("socket:["):
                yield int(name[8:-1])


def _connections(family: int) -> Iterator[tuple[int, int]]:
    """(inode, bytes) of all that are established. Raises OSError and struct.error."""
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, ESTABLISHED)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG) as kernel:
        kernel.settimeout(WAIT_S)
        kernel.send(HEAD.pack(HEAD.size + len(request), SOCK_DIAG_BY_FAMILY, DUMP, 1, 0) + request)
        while True:
            for kind, body in messages(kernel.recv(CHUNK)):
                if kind != SOCK_DIAG_BY_FAMILY:  # the end, or an error
                    return
                yield carried(body)


def messages(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each in a chunk of netlink's. Raises struct.error."""
    at = 0
    while at + HEAD.size <= len(chunk):
        length, kind, *_ = HEAD.unpack_from(chunk, at)
        yield kind, chunk[at + HEAD.size : at + max(length, HEAD.size)]
        at += max(length + 3 & ~3, HEAD.size)


def carried(body: bytes) -> tuple[int, int]:
    """(inode, bytes) of one connection; no bytes where the kernel is too old to count them. Raises struct.error."""
    (inode,) = struct.unpack_from("=I", body, INODE_AT)
    at = ATTRIBUTES_AT
    while at + ATTRIBUTE.size <= len(body):
        length, kind = ATTRIBUTE.unpack_from(body, at)
        if kind == INFO and length >= ATTRIBUTE.size + BYTES_AT + BYTES.size:
            return inode, sum(BYTES.unpack_from(body, at + ATTRIBUTE.size + BYTES_AT))
        at += max(length + 3 & ~3, ATTRIBUTE.size)
    return inode, 0
