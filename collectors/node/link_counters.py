"""Which counters of a port become which metric.

InfiniBand and RoCE: `counters` and `hw_counters` of the port (ABI/stable/sysfs-class-infiniband, and the drivers' own). Ethernet:
`statistics` of the interface (ABI/testing/sysfs-class-net-statistics), and of what `ethtool -S` shows the errors of the physical layer,
pauses and congestion marks, by the names that mlx5 and those after it use.
"""

import array
import fcntl
import logging
import re
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .kernel_files import KernelFiles, names_in
from .link_ports import LinkPort

log = logging.getLogger(__name__)

COUNTERS = {
    "received_bytes_per_s": ("counters/port_rcv_data", "statistics/rx_bytes"),
    "sent_bytes_per_s": ("counters/port_xmit_data", "statistics/tx_bytes"),
    "receive_errors_per_s": ("counters/port_rcv_errors", "statistics/rx_errors"),
    "symbol_errors_per_s": ("counters/symbol_error", "ethtool/rx_symbol_err_phy"),
    "integrity_errors_per_s": ("counters/local_link_integrity_errors", "counters/excessive_buffer_overrun_errors"),
    "recoveries_per_s": ("counters/link_error_recovery",),
    "discards_per_s": ("counters/port_xmit_discards", "statistics/rx_missed_errors", r"ethtool/[rt]x_discards_phy"),
    "retries_per_s": ("hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err", "hw_counters/rnr_nak_retry_err"),
    "send_waits_per_s": ("counters/port_xmit_wait",),
    "pauses_per_s": (r"ethtool/[rt]x_(prio[0-7]|global)_pause", r"ethtool/[rt]x_pfc[0-7]?(_frames)?"),
    "congestion_marks_per_s": ("hw_counters/np_ecn_marked_roce_packets", "hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled", "ethtool/rx_ecn_mark"),
}
"""Metric → patterns of the files, or names after `ethtool/`, that it is the sum of."""
WORDS_OF_FOUR_BYTES = frozenset({"counters/port_rcv_data", "counters/port_xmit_data"})
DOWNS = ("counters/link_downed", "carrier_down_count")
"""How often the link went down, of an InfiniBand port and of an interface; the former ends at 255 on old cards."""
_METRIC_OF = [(re.compile(pattern), metric) for metric, patterns in COUNTERS.items() for pattern in patterns]

Counter = tuple[str, str, str]
"""(port, metric, counter)"""

SIOCETHTOOL = 0x8946
"""The ioctl for the counters of an Ethernet driver, as `ethtool -S` shows them (linux/ethtool.h, linux/sockios.h)."""
GET_STRINGS, GET_STATISTICS, GET_SET_SIZES = 0x1B, 0x1D, 0x37
STATISTICS = 1
"""The set of strings that names the counters (ETH_SS_STATS)."""
NAME_BYTES = 32
"""Of each name (ETH_GSTRING_LEN)."""
SPARE = 4096
"""Counters that there is room for beyond those that there were: the kernel writes as many as there are now, whatever fits."""
COUNTERS_MOST = 100_000
"""Of one driver that are read."""

Ioctl = Callable[[socket.socket, int, bytes], object]


@dataclass
class LinkCounters:
    """Those of one port."""

    port: LinkPort
    files: KernelFiles

    def __post_init__(self) -> None:
        self._paths = [(metric, name, path) for name, path in self._found() if (metric := metric_of(name))]
        self._ethtool = EthtoolCounters(self.port.device if self.port.interface is None else self.port.interface.name)
        self._no_ethtool = self.port.interface is None

    def _found(self) -> Iterator[tuple[str, Path]]:
        for folder, below in ((self.port.rdma, "counters"), (self.port.rdma, "hw_counters"), (self.port.interface, "statistics")):
            if folder is not None:
                yield from ((f"{below}/{name}", folder / below / name) for name in names_in(folder / below))

    def read(self) -> dict[Counter, int]:
        """Each counter that can be read; without those that cannot."""
        counts: dict[Counter, int] = {}
        for metric, name, path in self._paths:
            count = self.files.count(path)
            if count is not None:
                counts[self.port.name, metric, name] = 4 * count if name in WORDS_OF_FOUR_BYTES else count
        for name, count in self._driver().items():
            if metric := metric_of(f"ethtool/{name}"):
                counts[self.port.name, metric, name] = count
        return counts

    def _driver(self) -> dict[str, int]:
        if self._no_ethtool:
            return {}
        try:
            return self._ethtool.read()
        except OSError as error:  # its driver has none, or it went away
            self._no_ethtool = True
            log.info("port %s has no counters of its driver: %s", self.port.name, error)
            return {}

    def downs(self) -> int | None:
        """How often its link went down since the driver was loaded; None: not known."""
        found = [self.files.count(folder / name) for folder, name in zip((self.port.rdma, self.port.interface), DOWNS, strict=True) if folder is not None]
        return next((count for count in found if count is not None), None)


def metric_of(counter: str) -> str:
    """'' for one that is not collected.

    >>> metric_of("ethtool/rx_prio3_pause"), metric_of("statistics/collisions")
    ('pauses_per_s', '')
    """
    return next((metric for pattern, metric in _METRIC_OF if pattern.fullmatch(counter)), "")


class EthtoolCounters:
    """Counters of the Ethernet driver of one interface, by the ioctl SIOCETHTOOL. Their names are asked for again when their number has changed."""

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
        return min(struct.unpack_from("=I", answer, 16)[0], COUNTERS_MOST) if known else 0

    def _read_names(self, channel: socket.socket, count: int) -> list[str]:
        answer = self._ask(channel, struct.pack("=III", GET_STRINGS, STATISTICS, count), NAME_BYTES * (count + SPARE))
        parts = (answer[12 + NAME_BYTES * index : 12 + NAME_BYTES * (index + 1)] for index in range(count))
        return [part.split(b"\0")[0].decode("ascii", "replace") for part in parts]

    def _ask(self, channel: socket.socket, question: bytes, room: int) -> bytes:
        """The kernel writes its answer over the question, within a buffer whose address the request holds."""
        buffer = array.array("B", question + bytes(room))
        self._ioctl(channel, SIOCETHTOOL, struct.pack("16sP", self.interface.encode()[:15], buffer.buffer_info()[0]))
        return buffer.tobytes()
