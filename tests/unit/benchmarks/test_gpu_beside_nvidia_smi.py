"""The comparison with nvidia-smi, over a stand-in for each side."""

from pathlib import Path

import pytest

from benchmarks.collect import gpu_beside_nvidia_smi
from benchmarks.collect.gpu_beside_nvidia_smi import NO_GPU, NvidiaSmi, main, rows, watch
from collectors.gpu import GpuCollector
from fakes.nvml import FakeNvml

SCRIPT = """#!/bin/sh
case "$1" in *temperature.memory*) echo 'Field "temperature.memory" is not a valid field to query.'; exit 2;; esac
echo "$1" | tr ',=' '\\n\\n' | sed -e '/^--query/d' -e 's/^uuid$/GPU-00000000/' -e 's/^utilization.gpu$/98/' -e 's/^memory.used$/61000/' \\
    -e 's/^memory.reserved$/440/' -e 's/^power.draw$/305.50/' -e 's/^temperature.gpu$/55/' -e 's/^[a-z_.]*$/[N\\/A]/' | paste -s -d ',' | sed 's/,/, /g'
"""


@pytest.fixture
def smi(tmp_path: Path) -> NvidiaSmi:
    command = tmp_path / "nvidia-smi"
    command.write_text(SCRIPT)
    command.chmod(0o755)
    return NvidiaSmi(str(command))


def test_numbers_within_a_unit_agree_and_the_worst_stands_first(smi: NvidiaSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_beside_nvidia_smi, "PAUSE_S", 0.01)
    assert "temperature.memory" not in smi.queries, "what it does not know is not asked for"
    agreements, taken = watch(GpuCollector(nvml=FakeNvml(gpus=1)), smi, 0.1)
    first, *others = [row for row in rows(agreements, taken, taken) if row.met is not None]
    assert (first.what.split(",")[0], first.met) == ("power_watts", False)
    assert first.peer == "ours 300 and 300, theirs 305.5"
    assert {row.what.split(",")[0]: row.met for row in others} == {"utilisation_percent": True, "memory_used_bytes": True, "temperature_celsius": True}


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_beside_nvidia_smi, "GpuCollector", lambda **options: GpuCollector(nvml=FakeNvml(gpus=0), **options))
    assert main(["--minutes", "1"]) == NO_GPU
    assert "this node has no GPU" in capsys.readouterr().err
