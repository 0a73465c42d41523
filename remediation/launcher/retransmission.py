"""What the kernels at both ends of a connection say of a host: that it acknowledges nothing any more, or that nobody listens there.

Data that is sent again and again in vain shows that the machine, or the network to it, is gone.

A peer in a pause, or one that is stopped, acknowledges: its kernel does. Read from /proc/net/tcp and tcp6 (man 5 proc_net_tcp), of the
network that launcher and workers share.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED, SENDS_AGAIN = "01", "01"
FEWEST = 3
"""Attempts without an answer: 1.4 s at the kernel's shortest time-out of 0.2 s, which doubles."""

ANSWER_S = 0.5
"""How long a host may take to answer."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def unacknowledged(host: str, tables: tuple[Path, ...] = TABLES) -> bool:
    """Whether any established connection to a host waits for an acknowledgement in vain; False where nothing can be read."""
    wanted = _addresses(host)
    return any(remote in wanted and attempts >= FEWEST for remote, attempts in _sent_again(tables))


def _sent_again(tables: tuple[Path, ...]) -> Iterator[tuple[Address, int]]:
    """(remote address, attempts) of the connections whose retransmission timer runs."""
    for table in tables:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == ESTABLISHED and fields[5].partition(":")[0] == SENDS_AGAIN:
                    yield _address(fields[2].partition(":")[0]), int(fields[6], 16)


def _address(text: str) -> Address:
    """Words of 32 bits in the machine's byte order."""
    words = [text[start : start + 8] for start in range(0, len(text), 8)]
    packed = b"".join(int(word, 16).to_bytes(4, "little") for word in words)
    found = ipaddress.ip_address(packed)
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _addresses(host: str) -> set[Address]:
    with contextlib.suppress(OSError, ValueError):
        return {ipaddress.ip_address(str(found[4][0]).partition("%")[0]) for found in socket.getaddrinfo(host, None)}
    return set()


async def refused(address: str) -> bool:
    """Whether the host of an address says that nobody listens there. One that says nothing proves nothing, and a stopped process still listens."""
    host, port = host_of(address), int(address.rpartition(":")[2])
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


def host_of(address: str) -> str:
    """Of a `host:port`."""
    return address.rpartition(":")[0].strip("[]")


Unacknowledged = Callable[[str], bool]
"""Host → whether what is sent to it is not acknowledged."""
Refused = Callable[[str], Awaitable[bool]]
"""host:port → whether nobody listens there."""
