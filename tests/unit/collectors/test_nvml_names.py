"""Every name of NVML that we use is in the real package, and the fake has its arguments and structures."""

import ctypes
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from collectors.nvml import nvlink_fabric as fabric
from collectors.nvml.driver import NvmlDriver
from collectors.nvml.field_reader import LAYOUT, FieldReader
from collectors.nvml.fields import FieldId, FieldKind, FieldMetric
from eagle_eye.xids import RECOVERY_ACTIONS
from fakes.nvml import FakeNvml
from fakes.nvml_gpu import CONSTANTS, STRUCTURES

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (*(ROOT / "collectors" / "nvml").glob("*.py"), ROOT / "collectors" / "gpu.py", ROOT / "eagle_eye" / "gpu_devices.py")
NAME = re.compile(r"\b(?:nvml[A-Z]\w+|NVML_[A-Z]\w+|c_nvml\w+)\b(?!…)")
EXPLAINED = {"NVML_NVLINK_STATE_", "NVML_FI_DEV_", "NVML_VALUE_TYPE_", "nvmlDeviceGpuRecoveryAction_t", "nvmlMemory_t", "nvmlReturn"}
"""Beginnings of names and C's own types, in docstrings; a member of a structure."""


@pytest.fixture
def pynvml() -> ModuleType:
    return pytest.importorskip("pynvml")


def test_every_name_that_is_used_is_in_the_real_package(pynvml: ModuleType) -> None:
    used = {name for source in SOURCES for name in NAME.findall(source.read_text())} - EXPLAINED
    assert len(used) > 40
    assert {name for name in used if not hasattr(pynvml, name) and not any(known.startswith(name) for known in vars(pynvml))} == set()


def test_the_numbers_of_the_fields_are_those_of_the_real_package(pynvml: ModuleType) -> None:
    newest = {field.name: field.value for field in FieldId if not field.name.endswith("_575")}
    assert {name: getattr(pynvml, f"NVML_FI_DEV_{name}", None) for name in newest} == newest


def test_the_advice_and_the_health_mask_are_those_of_the_real_package(pynvml: ModuleType) -> None:
    assert list(RECOVERY_ACTIONS) == [
        pynvml.NVML_GPU_RECOVERY_ACTION_NONE, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET, pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
        pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P, pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET,
    ]  # fmt: skip
    words = ("DEGRADED_BW", "ROUTE_RECOVERY", "ROUTE_UNHEALTHY", "ACCESS_TIMEOUT_RECOVERY")
    assert [getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{word}") for word in words] == list(fabric.COMPLAINTS)
    assert {getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_{word}_TRUE") for word in words} == {fabric.TRUE}
    assert pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION == fabric.CONFIGURATION_SHIFT
    assert pynvml.NVML_GPU_FABRIC_STATE_COMPLETED == fabric.COMPLETED
    assert (pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY, pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY) == (fabric.HEALTHY, fabric.UNHEALTHY)
    assert pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY == fabric.LIMITED


def test_the_fake_speaks_the_words_of_the_real_package(pynvml: ModuleType) -> None:
    assert {name: getattr(pynvml, name) for name in CONSTANTS} == CONSTANTS
    with pytest.raises(pynvml.NVMLError):
        FakeNvml().nvmlDeviceGetCount()


def test_the_fake_takes_the_arguments_of_the_real_package(pynvml: ModuleType) -> None:
    functions = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    ours = {name: list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:] for name in functions}
    theirs = {name: list(inspect.signature(getattr(pynvml, name)).parameters) for name in functions}
    assert {name: (ours[name], theirs[name]) for name in functions if ours[name] != theirs[name][: len(ours[name])]} == {}


def test_the_fakes_structures_are_those_of_the_real_package(pynvml: ModuleType) -> None:
    for name, ours in STRUCTURES.items():
        assert [field[0] for field in ours._fields_] == [field[0] for field in getattr(pynvml, name)._fields_], name


def test_the_layout_of_a_value_is_that_of_the_real_package(pynvml: ModuleType) -> None:
    value = pynvml.c_nvmlFieldValue_t
    assert ctypes.sizeof(value) == LAYOUT.size
    offsets = [getattr(value, name).offset for name, _ in value._fields_]
    assert offsets == [0, 4, 8, 16, 24, 28, 32]


@pytest.mark.parametrize(("kind", "member", "number"), [(0, "dVal", 0.5), (1, "uiVal", 7), (2, "ulVal", 7), (3, "ullVal", 1 << 40), (4, "sllVal", -7), (5, "siVal", -7), (6, "usVal", 7)])
def test_each_type_of_value_is_read_as_it_was_written(kind: int, member: str, number: float) -> None:
    nvml = FakeNvml(gpus=1)
    (value,) = (nvml.c_nvmlFieldValue_t * 1)()  # type: ignore[attr-defined]
    value.valueType = kind
    value.value.dVal = -1e300  # what the call before left in the other bytes
    setattr(value.value, member, number)
    nvml.nvmlDeviceGetFieldValues = lambda handle, fieldIds: (type(value) * 1)(value)  # type: ignore[assignment, method-assign]  # noqa: N803
    driver = NvmlDriver(nvml)
    driver.open()
    reader = FieldReader(driver, "GPU 0", [FieldMetric("watts", (FieldId.POWER_AVERAGE,), FieldKind.GAUGE)], ())
    reader.read(driver.call("nvmlDeviceGetHandleByIndex", "", 0), 1.0, slow=False)
    assert reader.values() == {"watts": number}


def test_without_the_package_the_fake_has_structures_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml = FakeNvml(gpus=1)
    driver = NvmlDriver(nvml)
    driver.open()
    handle = driver.call("nvmlDeviceGetHandleByIndex", "", 0)
    (value,) = driver.call("nvmlDeviceGetFieldValues", "", handle, [(185, 0)])
    assert (value.value.ullVal, type(value).__name__) == (300_000, "FieldValue")
    assert driver.version() == (590, 44)
