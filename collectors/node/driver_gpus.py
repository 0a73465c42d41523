"""GPUs of this node as the driver's files in /proc list them: no call into its library, which may hang."""

import re
from dataclasses import dataclass
from pathlib import Path

from .kernel_files import KernelFiles, count_of, names_in
from .link_ports import PCI

DRIVER = Path("/proc/driver/nvidia")
_FIELD = re.compile(r"^([A-Za-z ]+):[ \t]+(.*?)[ \t]*$", re.MULTILINE)
UUID = r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""Pattern of a GPU's name, as the driver writes it in its files and in the kernel's log."""


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """One GPU."""

    pci: str
    """As the kernel writes it, such as 0000:9b:00.0."""
    uuid: str
    """'' of one that is lost."""
    instances: int = 0
    """MIG: how many GPU instances it is divided into."""


def driver_gpus(driver: Path = DRIVER) -> list[DriverGpu]:
    """By PCI address, which is the order of NVML's indices; without those that the driver was told to leave alone."""
    files, found = KernelFiles(), []
    for name in names_in(driver / "gpus"):
        told = dict(_FIELD.findall(files.text(driver / "gpus" / name / "information") or ""))
        if PCI.fullmatch(name.lower()) and told and told.get("GPU Excluded") != "Yes":
            uuid, minor = told.get("GPU UUID", ""), count_of(told.get("Device Minor"))
            instances = [each for each in names_in(driver / "capabilities" / f"gpu{minor}" / "mig") if re.fullmatch(r"gi[0-9]+", each)]
            found.append(DriverGpu(name.lower(), uuid if re.fullmatch(UUID, uuid) else "", len(instances)))
    return sorted(found, key=lambda gpu: gpu.pci)
