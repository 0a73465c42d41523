"""What every collector keeps to, whichever it is: a new file in `collectors/` is tested by being there."""

import re
import threading
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from collectors.agent.agent import Agent, build_collectors
from collectors.agent.job_registry import JobRegistry
from collectors.agent.schedule import CollectorThread, Schedule
from collectors.gpu import GpuCollector
from collectors.site.exporter_table import shipped_metrics
from eagle_eye import plugins
from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.config import Config
from eagle_eye.parallel_ranks import ROLES
from eagle_eye.protocols import Collector
from eagle_eye.types import Event, Reading, StepReading
from eagle_eye.wire import Schemas, decode, encode
from fakes.nvml import FakeNvml
from fakes.nvml_gpu import FakeMigInstance

COLLECTORS = plugins.available("collectors")
UNITS = ("_s", "_bytes", "_percent", "_watts", "_celsius", "_mhz", "_bytes_per_s", "_per_s")
WITHOUT_UNIT = {
    "load_1": "runnable tasks, mean over a minute",
    "processors": "count, as the operating system has it",
    "cpu_quota": "processors that the quota of the worker's cgroup allows",
    "throttle_reasons": "NVML's bit mask",
    "ecc_corrected_total": "count of errors in the GPU's whole life",
    "ecc_uncorrected_total": "the same",
    "ecc_memory_uncorrected_total": "the same, in its memory",
    "ecc_cache_uncorrected_total": "the same, in its caches",
    "ecc_registers_uncorrected_total": "the same, in its registers",
    "ecc_sram_uncorrected_total": "the same, in all memory on the chip",
    "remapped_rows": "count of rows of a GPU's memory",
    "remapped_rows_uncorrected": "the same, because of errors that could not be corrected",
    "remap_pending": "1 or 0",
    "remap_failed": "1 or 0",
    "retired_pages": "count of pages of a GPU's memory",
    "retired_pages_pending": "1 or 0",
    "pcie_generation": "of the PCIe link as it runs",
    "pcie_width": "lanes of the PCIe link as it runs",
    "nvlinks_active": "count of NVLinks",
    "nvlinks_down": "the same, of those that were up",
    "nvlink_worst": "number of the NVLink with the most errors",
    "fabric_state": "NVML_GPU_FABRIC_STATE_…",
    "fabric_healthy": "1 or 0",
    "recovery_action": "nvmlDeviceGpuRecoveryAction_t",
    "mig_enabled": "1 or 0",
    "processes": "count of those that use the GPU",
    **{f"{role}_collectives": "number of the newest collective that was begun, modulo 2^24" for role in ROLES},
    **{f"{role}_collectives_over": "number of the newest that is over, modulo 2^24" for role in ROLES},
    "step": "number of the step",
    "printed_step": "the same, as the script prints it",
    "printed_loss": "as the script prints it",
    "printed_grad_norm": "as the script prints it",
    "printed_learning_rate": "as the script prints it",
    "printed_loss_scale": "factor of a loss scaler",
    "printed_overflow_steps": "count of steps",
    "printed_bad_losses": "count of lines in succession",
    "printed_bad_grad_norms": "count of lines in succession",
    "marks": "count of marks",
    "phase": "index in messages.PHASES",
    "running": "1 in the training loop, else 0",
    "state": "code of the letter of the process state",
    "port_active": "1 while the port's link is up, else 0",
    "rail": "index of the rail, from 0",
    "read_only": "1 while the mount is read-only, else 0",
    "hung": "1 while the mount does not answer, else 0",
    "free_inodes": "count, as the file system has it",
    "disconnected_servers": "count of Lustre servers",
    "processes_blocked": "count of processes",
    "spool_records": "count of records",
    "clock_synchronised": "1 while the clock follows another one, else 0",
    "hang_reported": "1 while xpu_timer says that a kernel has run for longer than its limit, else 0",
}


@pytest.fixture(params=COLLECTORS)
def collector(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    cls = plugins.load("collectors", request.param)
    return plugins.build(cls, {}, {"node": "n1", "run_dir": tmp_path, "clock": SystemClock()})


def test_the_rooms_own_collectors_are_found() -> None:
    assert {"collective", "fabric", "gpu", "host", "job_log", "kernel_log", "nccl_inspector", "nccl_ras", "node_topology", "process", "scheduler", "scrape", "storage", "training"} <= set(COLLECTORS)


def test_it_builds_with_its_defaults_alone(collector: Collector) -> None:
    assert isinstance(type(collector)(), Collector)


def test_every_option_is_explained(collector: Collector) -> None:
    handed_in = {"node", "run_dir", "state_dir"}
    for option in plugins.describe(type(collector)):
        assert option.text or option.name in handed_in or option.name.endswith("_s"), option.name


def test_it_returns_readings_steps_and_events_only_and_does_so_again(collector: Collector) -> None:
    for _ in range(2):
        for found in collector.collect():
            assert isinstance(found, Reading | StepReading | Event)
            if isinstance(found, Reading):
                check_reading(found)


def test_a_gpu_of_the_gpu_collector_is_checked_too() -> None:
    """No machine that runs this has one."""
    nvml = FakeNvml(gpus=2)
    nvml.gpus[0].mig = True
    nvml.gpus[0].instances = [FakeMigInstance("MIG-a")]
    readings = [found for found in GpuCollector(nvml=nvml).collect() if isinstance(found, Reading)]
    assert [reading.source for reading in readings] == ["gpu", "mig"]
    for reading in readings:
        check_reading(reading)


def test_the_metrics_that_are_taken_from_exporters_are_checked_too() -> None:
    for metric in shipped_metrics():
        check_name(metric.name)


def check_reading(reading: Reading) -> None:
    assert reading.source
    assert reading.matrix.dtype == np.float32
    assert reading.matrix.shape == (len(reading.entities), len(reading.names))
    assert len(set(reading.names)) == len(reading.names)
    assert len(set(reading.entities)) == len(reading.entities)
    for name in reading.names:
        check_name(name)


def check_name(name: str) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert name.endswith(UNITS) or name in WITHOUT_UNIT, f"{name}: name its unit, or document it here"


def test_what_it_returns_crosses_the_wire(collector: Collector) -> None:
    schemas = Schemas()
    for found in collector.collect():
        if isinstance(found, Reading | StepReading):
            schema = schemas.schema_of(found)
            assert decode(encode(schema), Schemas()) == schema
        else:
            assert decode(encode(found), schemas) == found


def test_it_leaves_no_thread_and_no_signal_behind(collector: Collector) -> None:
    before = set(threading.enumerate())
    list(collector.collect())
    assert set(threading.enumerate()) <= before, "threads are the agent's: it watches them"


class Raising:
    def collect(self) -> list[Reading]:
        raise RuntimeError("the source is broken")


@pytest.mark.parametrize("name", COLLECTORS)
def test_a_source_that_raises_does_not_touch_it(name: str, tmp_path: Path) -> None:
    """Each collector beside a broken one: it is asked, and the agent tells who is broken."""
    clock = FakeClock(1_700_000_000.5)
    config = Config(run_dir=str(tmp_path), state_dir=str(tmp_path / "state"), collectors={each: {"enabled": each == name} for each in COLLECTORS})
    beside = build_collectors(config, "n1", clock)
    broken = CollectorThread("broken", Raising(), Schedule())
    inbox: Queue[Any] = Queue()
    agent = Agent(
        "n1", [broken, *beside], Discarding(), JobRegistry(tmp_path, tmp_path / "m.json", clock.now()), inbox,
        clock=clock, incarnation="b",
    )  # fmt: skip
    for watched in (broken, *beside):
        watched.start(inbox.put)
    agent.run_once()
    pause = threading.Event()
    for _ in range(10_000):
        agent.run_once()
        if not any(watched.schedule.pending for watched in (broken, *beside)):
            break
        pause.wait(0.001)
    for watched in (broken, *beside):
        watched.close()
    status = agent.status()
    assert status["broken"] == {"health": "failing", "reason": "RuntimeError: the source is broken", "unavailable": ""}
    assert status[name]["health"] == "ok"


class Discarding:
    def write(self, topic: str, key: str, value: bytes, *, keep: bool = False) -> None:
        pass
