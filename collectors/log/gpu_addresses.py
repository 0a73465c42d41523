"""PCI address → UUID of this node's GPUs, as the driver's files and its own log lines tell: no call into the driver, which may hang.

An address that was known once stays known: a GPU that is lost has no UUID any more.
"""

import re
from pathlib import Path

from collectors.node.driver_gpus import DRIVER, UUID, driver_gpus

from .kernel_messages import pci_address_of

_IN_LINE = re.compile(rf"NVRM: GPU at PCI:([0-9a-fA-F:.]+): ({UUID})")


class GpuAddresses:
    """The map; `refresh` reads the driver's files, `learn` a line."""

    def __init__(self, driver: Path = DRIVER) -> None:
        self._driver = driver
        self._uuids: dict[str, str] = {}

    def refresh(self) -> None:
        """Read the driver's files again; a node without them has none."""
        self._uuids |= {gpu.pci: gpu.uuid for gpu in driver_gpus(self._driver) if gpu.uuid}

    def learn(self, line: str) -> None:
        """`NVRM: GPU at PCI:0000:9b:00: GPU-…`, which the driver writes before the first Xid of a GPU."""
        if (found := _IN_LINE.search(line)) and (address := pci_address_of(found[1])):
            self._uuids[address] = found[2]

    def name_of(self, address: str) -> str:
        """Its UUID; the address itself where that is not known, and '' for none."""
        return self._uuids.get(address, address)
