"""The GPUs of this machine as NVML lists them: index, UUID and PCI address of each, and which of them a program is to see.

>>> devices = (GpuDevice(0, "GPU-aa", "0000:17:00.0"), GpuDevice(1, "GPU-bb", "0000:65:00.0"))
>>> [device.index for device in visible_devices(devices, "1,0")]
[1, 0]
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DOMAIN = re.compile(r"^0000(?=[0-9a-f]{4}:)")
"""NVML writes eight digits of a PCI domain, the kernel four."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU."""

    index: int
    """NVML's, in the order of PCI addresses."""
    uuid: str
    """'' if it cannot be asked any more."""
    pci: str
    """As the kernel's log writes it, such as 0000:65:00.0; '' if unknown."""


def gpu_devices(nvml: Any) -> tuple[GpuDevice, ...]:
    """All of them; `nvml` is the module `pynvml`. Raises NVMLError where there is no driver."""
    nvml.nvmlInit()
    try:
        return tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> GpuDevice:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return GpuDevice(index, text_of(nvml.nvmlDeviceGetUUID(handle)), pci_address(nvml, handle))
    except nvml.NVMLError:  # lost: its index stays taken
        return GpuDevice(index, "", "")


def pci_address(nvml: Any, handle: Any) -> str:
    """PCI address of a GPU; '' where the driver does not say."""
    try:
        return pci_text(nvml.nvmlDeviceGetPciInfo(handle))
    except (nvml.NVMLError, AttributeError):
        return ""


def pci_text(info: Any) -> str:
    """The address in an `nvmlPciInfo_t`, as the kernel's log writes it."""
    return _DOMAIN.sub("", text_of(info.busId).lower())


def text_of(name: str | bytes) -> str:
    """Packages before 11.515 return bytes."""
    return name.decode() if isinstance(name, bytes) else name


def visible_devices(devices: Sequence[GpuDevice], wanted: str | None) -> tuple[GpuDevice, ...]:
    """What CUDA_VISIBLE_DEVICES leaves of them, in its order; None: it is not set. As for CUDA, nothing after a name that is unknown is seen."""
    if wanted is None:
        return tuple(devices)
    found: list[GpuDevice] = []
    for name in (word.strip() for word in wanted.split(",")):
        device = next((each for each in devices if name == str(each.index) or (name.startswith("GPU-") and each.uuid.startswith(name))), None)
        if device is None:
            break
        found.append(device)
    return tuple(found)
