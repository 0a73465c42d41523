"""Versions and settings of a node that decide how fast and how well training runs there, from files of the kernel and its drivers alone. What cannot be read is left out."""

import os
from collections.abc import Iterator
from pathlib import Path

from eagle_eye.changes import changed_words

from .kernel_files import KernelFiles, names_in

KERNEL_COMMAND = "kernel command line"
_FILES = {
    "kernel": "{proc}/sys/kernel/osrelease",
    KERNEL_COMMAND: "{proc}/cmdline",
    "numa_balancing": "{proc}/sys/kernel/numa_balancing",
    "nvidia driver": "{sys}/module/nvidia/version",
    "nvidia peermem": "{sys}/module/nvidia_peermem/version",
    "mlx5 driver": "{sys}/module/mlx5_core/version",
    "bnxt driver": "{sys}/module/bnxt_en/version",
    "efa driver": "{sys}/module/efa/version",
    "gdrcopy driver": "{sys}/module/gdrdrv/version",
    "lustre": "{sys}/fs/lustre/version",
    "bios": "{sys}/class/dmi/id/bios_version",
    "cpu microcode": "{sys}/devices/system/cpu/cpu0/microcode/version",
    "cpu governor": "{sys}/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "transparent huge pages": "{sys}/kernel/mm/transparent_hugepage/enabled",
}
"""What → its file: one value each."""
_GPU_LINES = {"Video BIOS": "gpu vbios", "GPU Firmware": "gpu firmware"}
"""A line of /proc/driver/nvidia/gpus/*/information → what."""
_UNKNOWN = frozenset({"", "N/A"})
KUBERNETES = "KUBERNETES_SERVICE_HOST"
"""A variable that each container of Kubernetes has."""
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
"""Files of Docker and Podman."""
_WITHOUT = ("BOOT_IMAGE=", "initrd=")
"""Words of the kernel's command line that name its file: the kernel's version says it."""


def software_versions(proc: Path, sysfs: Path, root: Path, files: KernelFiles) -> dict[str, str]:
    """What → its version or setting, as far as this node has it. `root`: of our own files, which may be a container's."""
    found = {what: files.text(Path(file.format(proc=proc, sys=sysfs))) for what, file in _FILES.items()}
    if (huge := found["transparent huge pages"]) is not None:  # always [madvise] never
        found["transparent huge pages"] = huge.partition("[")[2].partition("]")[0]
    if (command := found[KERNEL_COMMAND]) is not None:
        found[KERNEL_COMMAND] = " ".join(word for word in command.split() if not word.startswith(_WITHOUT))
    host = _host_root(proc, root)
    found["os"] = _os_release(files.text(host / "etc" / "os-release")) if host is not None else None
    found |= dict(_of_devices(proc, sysfs, files))
    return {what: value for what, value in found.items() if value not in _UNKNOWN and value is not None}


def changed_values(what: str, before: str, after: str) -> tuple[str, str]:
    """What differs of a value: of the kernel's command line the words."""
    return changed_words(before.split(), after.split()) if what == KERNEL_COMMAND else (before, after)


def _host_root(proc: Path, root: Path) -> Path | None:
    """Where the node's own files are; None in a container that does not see them: an image that is newer is no change of the node."""
    if KUBERNETES not in os.environ and not any((root / mark).exists() for mark in _CONTAINER_MARKS):
        return root
    outside = proc / "1" / "root"
    try:
        return None if outside.samefile(root) else outside
    except OSError:
        return None


def _os_release(text: str | None) -> str:
    """
    >>> _os_release('NAME="Ubuntu"\\nPRETTY_NAME="Ubuntu 22.04.4 LTS"')
    'Ubuntu 22.04.4 LTS'
    """
    lines = (line.partition("=") for line in (text or "").splitlines())
    return next((value.strip("\"'") for name, _, value in lines if name == "PRETTY_NAME"), "")


def _of_devices(proc: Path, sysfs: Path, files: KernelFiles) -> Iterator[tuple[str, str]]:
    adapters = sysfs / "class" / "infiniband"
    yield "nic firmware", _joined({name: files.text(adapters / name / "fw_ver") or "" for name in names_in(adapters)})
    gpus = proc / "driver" / "nvidia" / "gpus"
    informed = {name: _lines(files.text(gpus / name / "information")) for name in names_in(gpus)}
    for line, what in _GPU_LINES.items():
        yield what, _joined({name: lines.get(line, "") for name, lines in informed.items()})


def _lines(text: str | None) -> dict[str, str]:
    """`name: value` of each line."""
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in (text or "").splitlines())}


def _joined(versions: dict[str, str]) -> str:
    """The version that all devices have; where they differ, each version with its devices. A device that says nothing now is no change.

    >>> _joined({"mlx5_0": "28.39", "mlx5_1": "28.39"}), _joined({"mlx5_0": "28.39", "mlx5_1": "28.40"}), _joined({"mlx5_0": ""})
    ('28.39', '28.39 of mlx5_0, 28.40 of mlx5_1', '')
    """
    devices: dict[str, list[str]] = {}
    for name, version in versions.items():
        if version not in _UNKNOWN and "?" not in version:  # the driver writes ??.?? where it has not asked yet
            devices.setdefault(version, []).append(name)
    return next(iter(devices), "") if len(devices) < 2 else ", ".join(f"{version} of {' '.join(names)}" for version, names in devices.items())
