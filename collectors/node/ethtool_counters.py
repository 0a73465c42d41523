"""Counters of an Ethernet driver by the ioctl SIOCETHTOOL, as `ethtool -S` shows them (linux/ethtool.h, linux/sockios.h)."""

import array
import fcntl
import socket
import struct
from collections.abc import Callable

SIOCETHTOOL = 0x8946
GET_STRINGS, GET_STATISTICS, GET_SET_SIZES = 0x1B, 0x1D, 0x37
STATISTICS = 1
"""The set of strings that names them (ETH_SS_STATS)."""
NAME_BYTES = 32
"""Of each (ETH_GSTRING_LEN)."""
SPARE = 4096
"""Counters that there is room for beyond those that there were: the kernel writes as many as there are now, whatever fits."""
MOST = 100_000

Ioctl = Callable[[socket.socket, int, bytes], object]


class EthtoolCounters:
    """Those of one interface. Their names are asked for again when their number has changed."""

    def __init__(self, interface: str, ioctl: Ioctl = fcntl.ioctl) -> None:
        self.interface, self._ioctl = interface, ioctl
        self._names: list[str] = []

    def read(self) -> dict[str, int]:
        """Every counter of the driver by its name. Raises OSError: no such interface, or a driver without counters."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            count = self._count(channel)
            if count != len(self._names):
                self._names = self._read_names(channel, count)
            answer = self._ask(channel, struct.pack("=II", GET_STATISTICS, count), 8 * (count + SPARE))
        values = struct.unpack_from(f"={count}Q", answer, 8)
        return dict(zip(self._names, values, strict=True))

    def _count(self, channel: socket.socket) -> int:
        answer = self._ask(channel, struct.pack("=IIQ", GET_SET_SIZES, 0, 1 << STATISTICS), 4)
        known = struct.unpack_from("=Q", answer, 8)[0] & (1 << STATISTICS)
        return min(struct.unpack_from("=I", answer, 16)[0], MOST) if known else 0

    def _read_names(self, channel: socket.socket, count: int) -> list[str]:
        answer = self._ask(channel, struct.pack("=III", GET_STRINGS, STATISTICS, count), NAME_BYTES * (count + SPARE))
        parts = (answer[12 + NAME_BYTES * index : 12 + NAME_BYTES * (index + 1)] for index in range(count))
        return [part.split(b"\0")[0].decode("ascii", "replace") for part in parts]

    def _ask(self, channel: socket.socket, question: bytes, room: int) -> bytes:
        """The kernel writes its answer over the question, within a buffer whose address the request holds."""
        buffer = array.array("B", question + bytes(room))
        self._ioctl(channel, SIOCETHTOOL, struct.pack("16sP", self.interface.encode()[:15], buffer.buffer_info()[0]))
        return buffer.tobytes()
