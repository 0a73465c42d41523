"""Which port of the network each GPU is next to, by the tree of PCI bridges and the NUMA nodes that /sys shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .kernel_files import KernelFiles
from .link_ports import PCI, LinkPort

ROOT = "pci"
"""With what the folder of a host bridge begins (pci0000:00)."""
NO_NODE = -1
"""As the kernel writes it of a device that has no NUMA node, or on a machine with one alone."""


class PciPlace(NamedTuple):
    """Where a device is in the tree."""

    bridges: tuple[str, ...]
    """From the host bridge to the one that it is behind."""
    numa: int
    """NUMA node; NO_NODE: not known."""


class Nearness(NamedTuple):
    """Of two devices: more is nearer."""

    bridges: int
    """That they share: 0 of two host bridges, 1 of one, more behind one switch."""
    same_numa: bool


def gpu_place(sysfs: Path, pci: str) -> PciPlace:
    """Of the device at a PCI address."""
    return place_of((sysfs / "bus" / "pci" / "devices" / pci).resolve())


def place_of(device: Path) -> PciPlace:
    """Of a device by its folder below /sys/devices, such as …/pci0000:15/0000:15:01.0/0000:16:00.0."""
    parts = [part for part in device.parts if part.startswith(ROOT) or PCI.fullmatch(part)]
    text = KernelFiles().text(device / "numa_node") or ""
    return PciPlace(tuple(parts[:-1]), int(text) if text.isascii() and text.isdigit() and len(text) < 6 else NO_NODE)


def nearness(one: PciPlace, other: PciPlace) -> Nearness:
    """How near two devices are."""
    shared = 0
    for mine, its in zip(one.bridges, other.bridges, strict=False):
        if mine != its:
            break
        shared += 1
    return Nearness(shared, one.numa == other.numa != NO_NODE)


def nearest_ports(gpus: Sequence[PciPlace], ports: Sequence[LinkPort]) -> list[str]:
    """For each GPU the name of the port next to it; '' without ports. Where several GPUs are equally near to several ports they share these in their order."""
    places = [place_of(port.hardware) for port in ports]
    served: dict[tuple[int, ...], int] = {}
    names = []
    for gpu in gpus:
        near = [nearness(gpu, place) for place in places]
        equal = tuple(index for index, each in enumerate(near) if each == max(near))
        turn = served[equal] = served.get(equal, -1) + 1
        names.append(ports[equal[turn % len(equal)]].name if equal else "")
    return names
