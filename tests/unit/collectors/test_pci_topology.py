"""Ports next to GPUs, by the tree of PCI bridges."""

from pathlib import Path

import pytest

from collectors.node.driver_gpus import DriverGpu, driver_gpus
from collectors.node.link_ports import find_ports
from collectors.node.pci_topology import gpu_place, nearest_ports
from fakes.sysfs import Sysfs

SWITCH_A, SWITCH_B = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17", "pci0000:85/0000:85:01.0/0000:86:00.0/0000:87"


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def nearest(sysfs: Sysfs, *gpus: str) -> list[str]:
    return nearest_ports([gpu_place(sysfs.root, pci) for pci in gpus], find_ports(sysfs.root))


def test_a_gpu_is_next_to_the_port_behind_the_same_switch(sysfs: Sysfs) -> None:
    for device, pci, behind in (("mlx5_0", "0000:18:00.0", f"{SWITCH_A}:00.0"), ("mlx5_1", "0000:88:00.0", f"{SWITCH_B}:00.0")):
        sysfs.card(pci, behind, 0)
        sysfs.rdma(device, pci)
    sysfs.card("0000:1b:00.0", f"{SWITCH_A}:02.0", 0)
    sysfs.card("0000:9b:00.0", f"{SWITCH_B}:03.0", 0)
    assert nearest(sysfs, "0000:9b:00.0", "0000:1b:00.0") == ["mlx5_1:1", "mlx5_0:1"]


def test_gpus_that_are_equally_near_to_several_ports_share_them(sysfs: Sysfs) -> None:
    for device, pci in (("mlx5_0", "0000:18:00.0"), ("mlx5_1", "0000:19:00.0")):
        sysfs.card(pci, f"{SWITCH_A}:00.0", 0)
        sysfs.rdma(device, pci)
    gpus = [f"0000:1{digit}:00.0" for digit in "abcd"]
    for pci in gpus:
        sysfs.card(pci, f"{SWITCH_A}:00.0", 0)
    assert nearest(sysfs, *gpus) == ["mlx5_0:1", "mlx5_1:1", "mlx5_0:1", "mlx5_1:1"]


def test_behind_other_host_bridges_the_numa_node_decides(sysfs: Sysfs) -> None:
    for device, pci, root, numa in (("mlx5_0", "0000:18:00.0", "pci0000:15", 0), ("mlx5_1", "0000:88:00.0", "pci0000:85", 1)):
        sysfs.card(pci, root, numa)
        sysfs.rdma(device, pci)
    sysfs.card("0000:a1:00.0", "pci0000:a0", 1)
    sysfs.card("0000:a2:00.0", "pci0000:a1", -1)
    assert nearest(sysfs, "0000:a1:00.0", "0000:a2:00.0", "0000:ff:00.0") == ["mlx5_1:1", "mlx5_0:1", "mlx5_1:1"], "of the others nothing is known: they share"


def test_without_a_port_there_is_none(sysfs: Sysfs) -> None:
    sysfs.card("0000:1b:00.0", "pci0000:15", 0)
    assert nearest(sysfs, "0000:1b:00.0") == [""]


UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"


def gpu(driver: Path, pci: str, text: str) -> None:
    (driver / "gpus" / pci).mkdir(parents=True)
    (driver / "gpus" / pci / "information").write_text(text)


def test_the_drivers_files_list_its_gpus_in_nvmls_order(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:9b:00.0", f"Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {UUID}\nDevice Minor: \t 4\nGPU Excluded:\t No\n")
    gpu(tmp_path, "0000:1b:00.0", "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n")
    gpu(tmp_path, "0000:2b:00.0", f"GPU UUID: \t {UUID}\nDevice Minor: \t 1\nGPU Excluded:\t Yes\n")
    gpu(tmp_path, "nonsense", f"GPU UUID: \t {UUID}\n")
    gpu(tmp_path, "0000:3b:00.0", "")
    for name in ("gi1", "gi2", "config"):
        (tmp_path / "capabilities" / "gpu4" / "mig" / name).mkdir(parents=True)
    assert driver_gpus(tmp_path) == [DriverGpu("0000:1b:00.0", ""), DriverGpu("0000:9b:00.0", UUID, 2)]
    assert driver_gpus(tmp_path / "none") == []
