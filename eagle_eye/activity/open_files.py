"""Open files and sockets of a process, a socket with its other end: /proc/PID/fd, fdinfo and net. Asks no file system anything."""

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

MOST = 4096
"""Descriptors of a process that are looked at."""
LARGEST = 64 << 20
"""Bytes of a table of sockets."""
TCP_STATES = (
    "", "established", "connecting", "accepting", "closing", "closing", "closing", "closed", "closed by the other end", "closing", "listens", "closing",
)  # fmt: skip
"""By number (include/net/tcp_states.h of Linux)."""
ACCESS = ("reads", "writes", "reads and writes", "")
KINDS = {"socket": "socket", "pipe": "pipe", "anon_inode": "kernel object"}


class SocketEnds(NamedTuple):
    """A socket: its own end and the other one, each host:port or a path; '' where it has none."""

    protocol: str
    local: str
    remote: str
    state: str = ""

    def __str__(self) -> str:
        way = f"{self.local} → {self.remote}" if self.remote else self.local or "without a name"
        return f"{self.protocol} {way}{f', {self.state}' if self.state and self.state != 'established' else ''}"


class OpenFile(NamedTuple):
    """One descriptor of a process."""

    descriptor: int
    kind: str
    """file, device, pipe, socket, or kernel object (an event, a timer, epoll)."""
    target: str
    """A path, the two ends of a socket, or the kernel's name."""
    access: str = ""
    """reads, writes, or both."""
    position: int | None = None
    """Bytes from the beginning of a file."""
    ends: SocketEnds | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


def open_files(pid: int, sockets: "SocketTable | None" = None) -> tuple[OpenFile, ...]:
    """All of a process, by number; none if it is gone, or this user may not know."""
    try:
        numbers = sorted(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
    except (OSError, ValueError):
        return ()
    table = sockets or SocketTable(pid)
    return tuple(found for number in numbers[:MOST] if (found := open_file(pid, number, table)) is not None)


def open_file(pid: int, descriptor: int, sockets: "SocketTable") -> OpenFile | None:
    """One descriptor; None if it is closed."""
    try:
        target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 - one entry of many
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()[:3])
        flags, position = int(fields["flags"], 8), int(fields["pos"])
    except (OSError, KeyError, ValueError):
        return None
    name, colon, rest = target.partition(":")
    kind = KINDS.get(name, "file") if colon else "device" if target.startswith("/dev/") and not target.startswith("/dev/shm/") else "file"  # noqa: S108
    ends = sockets.ends(int(rest.strip("[]"))) if kind == "socket" and rest.strip("[]").isdigit() else None
    text = str(ends) if ends is not None else rest.strip("[]") if kind != "file" and colon else target
    access = ACCESS[flags & os.O_ACCMODE] if kind in ("file", "device", "pipe") else ""
    return OpenFile(descriptor, kind, text, access, position if kind == "file" else None, ends)


class SocketTable:
    """The sockets of the network that a process is in; read when it is first asked for."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: Mapping[int, SocketEnds] | None = None

    def ends(self, inode: int) -> SocketEnds | None:
        """Of the socket with that number; None for a kind that is not listed, such as netlink."""
        if self._known is None:
            self._known = dict(_sockets(self._pid))
        return self._known.get(inode)


def _sockets(pid: int) -> Iterator[tuple[int, SocketEnds]]:
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _rows(pid, name):
            yield from parse_socket(name.rstrip("6"), fields)
    for fields in _rows(pid, "unix"):
        if len(fields) > 6 and fields[6].isdigit():
            yield int(fields[6]), SocketEnds("unix", fields[7] if len(fields) > 7 else "", "")


def _rows(pid: int, name: str) -> Iterator[list[str]]:
    try:
        with open(f"/proc/{pid}/net/{name}", "rb") as file:  # noqa: PTH123 - bounded
            lines = file.read(LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return
    yield from (line.split() for line in lines[1:])


def parse_socket(protocol: str, fields: list[str]) -> Iterator[tuple[int, SocketEnds]]:
    """A line of proc_pid_net(5)'s tcp or udp; nothing for a torn one."""
    try:
        local, remote, state, inode = _address(fields[1]), _address(fields[2]), int(fields[3], 16), int(fields[9])
    except (IndexError, ValueError, struct.error):
        return
    connected = not remote.endswith(":0")
    told = TCP_STATES[state] if protocol == "tcp" and state < len(TCP_STATES) else ""
    yield inode, SocketEnds(protocol, local, remote if connected else "", told)


def _address(text: str) -> str:
    """The kernel writes words of 32 bits in the machine's order.

    >>> _address("0100007F:7530")
    '127.0.0.1:30000'
    """
    words, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[place : place + 8], 16)) for place in range(0, len(words), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    if raw[:12] == bytes(10) + b"\xff\xff":  # IPv4 through a socket of IPv6
        return f"{socket.inet_ntop(socket.AF_INET, raw[12:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
