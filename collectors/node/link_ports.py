"""Ports of this node's network cards, as /sys shows them: InfiniBand, RoCE and Ethernet.

A RoCE port and its Ethernet interface are one port. Left out: interfaces without hardware (loopback, bridges, bonds), and
IPoIB interfaces, whose port is there already.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .kernel_files import KernelFiles, count_of, names_in

PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
INFINIBAND = "32"
"""Hardware type of an IPoIB interface (ARPHRD_INFINIBAND of linux/if_arp.h)."""
ACTIVE = frozenset({"4", "5"})
"""ACTIVE, and ACTIVE_DEFER of a port that retrains (`state`, ABI/stable/sysfs-class-infiniband)."""
UP = 1
"""IFF_UP of linux/if.h: the administrator wants the interface up."""


@dataclass(frozen=True, slots=True)
class LinkPort:
    """One port."""

    name: str
    """mlx5_0:1, or eth0"""
    device: str
    number: int
    """Of the port, from 1."""
    hardware: Path
    """The folder of its PCI function."""
    rdma: Path | None = None
    """Folder of the InfiniBand or RoCE port."""
    interface: Path | None = None
    """Folder of the Ethernet interface."""
    number_of_interface: int = 0
    """The kernel's: another interface may get the name, and has counters of its own. 0: it has none."""

    @property
    def pci(self) -> str:
        """PCI address; '' if it has none."""
        found = [part for part in self.hardware.parts if PCI.fullmatch(part)]
        return found[-1] if found else ""

    @property
    def order(self) -> tuple[str, int, str]:
        """By PCI address, then by port."""
        return (self.pci or str(self.hardware), self.number, self.name)


class PortState(NamedTuple):
    """How a port is at one moment."""

    active: bool | None
    """None: not known."""
    bytes_per_s: float
    """Rate that its link runs at; NaN: not known."""
    words: str
    """As the kernel tells it."""


UNKNOWN = PortState(None, math.nan, "")


def find_ports(sysfs: Path) -> list[LinkPort]:
    """Every port, in the order of `LinkPort.order`."""
    interfaces = list(_interfaces(sysfs / "class" / "net"))
    ports = []
    for port in _rdma_ports(sysfs / "class" / "infiniband"):
        own = next((each for each in interfaces if _is_of(each, port)), None)
        if own is not None:
            interfaces.remove(own)
        ports.append(LinkPort(port.name, port.device, port.number, port.hardware, port.rdma, own.interface if own else None, own.number_of_interface if own else 0))
    return sorted([*ports, *interfaces], key=lambda port: port.order)


def _rdma_ports(folder: Path) -> Iterator[LinkPort]:
    for device in names_in(folder):
        for number in names_in(folder / device / "ports"):
            if number.isascii() and number.isdigit():
                yield LinkPort(f"{device}:{number}", device, int(number), (folder / device / "device").resolve(), folder / device / "ports" / number)


def _interfaces(folder: Path) -> Iterator[LinkPort]:
    files = KernelFiles()
    for name in names_in(folder):
        interface = folder / name
        if (interface / "device").exists() and files.text(interface / "type") != INFINIBAND:
            number = (files.count(interface / "dev_port") or 0) + 1
            yield LinkPort(name, name, number, (interface / "device").resolve(), None, interface, files.count(interface / "ifindex") or 0)


def _is_of(interface: LinkPort, port: LinkPort) -> bool:
    """Whether an interface is the Ethernet side of a RoCE port. One of a bond is a port of its own: the bond may live on without it."""
    assert port.rdma is not None
    assert interface.interface is not None
    if (interface.hardware, interface.number) != (port.hardware, port.number) or (interface.interface / "master").exists():
        return False
    return KernelFiles().text(port.rdma / "link_layer") == "Ethernet"


def state_of(port: LinkPort, files: KernelFiles) -> PortState:
    """What the kernel says of it now."""
    found = _rdma_state(port.rdma, files) if port.rdma is not None else None
    if found is None or found.active is None:
        return _interface_state(port.interface, files) if port.interface is not None else found or UNKNOWN
    return found


def _rdma_state(folder: Path, files: KernelFiles) -> PortState:
    """`state` is "4: ACTIVE", `phys_state` "5: LinkUp", `rate` "400 Gb/sec (4X NDR)"."""
    state, physical, rate = (files.text(folder / name) or "" for name in ("state", "phys_state", "rate"))
    number, colon, _ = state.partition(":")
    active = number in ACTIVE if colon and count_of(number) is not None else None
    return PortState(active, _bytes_per_s(rate.partition(" Gb/sec")[0], 1e9), f"state {state}, physical state {physical}")


def _interface_state(folder: Path, files: KernelFiles) -> PortState:
    state, carrier = files.text(folder / "operstate") or "", files.text(folder / "carrier") or ""
    active = None if not state else state == "up" or (state == "unknown" and carrier == "1")
    flags = (files.text(folder / "flags") or "").removeprefix("0x")
    off = bool(re.fullmatch(r"[0-9a-f]{1,8}", flags)) and not int(flags, 16) & UP
    return PortState(active, _bytes_per_s(files.text(folder / "speed") or "", 1e6), f"state {state}{', switched off by an administrator' if off else ''}")


def _bytes_per_s(number: str, unit: float) -> float:
    """`number` units of bits per second; NaN for what is none: an interface without a link says -1."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", number):
        return math.nan
    return float(number) * unit / 8 or math.nan
