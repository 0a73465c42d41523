"""PCI addresses of GPUs, from the driver's files and its log."""

from pathlib import Path

from collectors.log.gpu_addresses import GpuAddresses

UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"
INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 501\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nBus Location: \t 0000:9b:00.0\nDevice Minor: \t 4\n"


def driver(folder: Path, uuid: str) -> Path:
    (folder / "gpus" / "0000:9b:00.0").mkdir(parents=True, exist_ok=True)
    (folder / "gpus" / "0000:9b:00.0" / "information").write_text(INFORMATION.format(uuid=uuid))
    return folder


def test_the_drivers_files_name_the_gpu_of_an_address(tmp_path: Path) -> None:
    gpus = GpuAddresses(driver(tmp_path, UUID))
    gpus.refresh()
    assert (gpus.name_of("0000:9b:00.0"), gpus.name_of("0000:18:00.0"), gpus.name_of("")) == (UUID, "0000:18:00.0", "")


def test_a_gpu_that_is_lost_keeps_its_name(tmp_path: Path) -> None:
    gpus = GpuAddresses(driver(tmp_path, UUID))
    gpus.refresh()
    driver(tmp_path, "GPU-????????-????-????-????-????????????")
    gpus.refresh()
    assert gpus.name_of("0000:9b:00.0") == UUID


def test_the_drivers_own_line_names_it_where_there_are_no_files(tmp_path: Path) -> None:
    gpus = GpuAddresses(tmp_path / "none")
    gpus.refresh()
    gpus.learn(f"NVRM: GPU at PCI:0000:9b:00: {UUID}")
    assert gpus.name_of("0000:9b:00.0") == UUID
