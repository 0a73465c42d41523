"""What an agent costs its node: 8 GPUs × 60 metrics a second, 8 rings at 10 Hz, process groups of 8 workers at 1 Hz, logs at 1 MB/s.

    python -m benchmarks.collect.agent_cost
    python -m benchmarks.collect.agent_cost --seconds 60 --hours 0.1

    python -m benchmarks.collect.agent_cost --only software

First a real agent (`eagle-eye agent` with all collectors but kernel_log, the embedded stream) for --seconds beside a process that writes what eight workers
write and answers its heartbeats as a leader does; then its collectors, batches and records for --hours of a made-up clock in one process, whose memory is looked at. NVML is the stand-in of
the tests: what the driver takes is not in it, what the stand-in takes is. Last the collector `software` alone, on this machine's own files.
"""

import argparse
import asyncio
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.queues import Queue as ProcessQueue
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from queue import Queue

import psutil
from rich.progress import Progress

from benchmarks.collect.busy_node import JOB, LOG_BYTES, NODE, TENTH_S, WORKERS, BusyNode, run_in_real_time
from benchmarks.collect.gpu_cost import moving
from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from collectors.agent.agent import Agent, build_collectors, run_agent
from collectors.agent.job_registry import JobRegistry
from collectors.agent.schedule import CollectorResult, CollectorThread
from collectors.gpu import GpuCollector
from collectors.software import SoftwareCollector
from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.config import Config, load
from eagle_eye.rpc.control_server import ControlServer
from tests.fakes.control_channel import RecordingHandler
from tests.fakes.nvml import FakeNvml

GPUS = 8
GOAL_PERCENT, GOAL_MB, GOAL_GROWTH = 3.0, 150.0, 0.05
"""Of one core; resident; growth of the second half of the hour, as a share, that is still called flat."""
SETTLE_S = 10.0
LOOKS = 100
PEER = "dcgm-exporter: 131 % of a core seen by a user (quoted, for GPUs alone)"
CONFIG = """\
[server]
listen = "127.0.0.1:1"
http = ""

[collectors.kernel_log]
enabled = false
"""


class InlineCollector(CollectorThread):
    """Runs in the thread that asks, so that a made-up clock waits for it."""

    def start(self, report: Callable[[CollectorResult], object]) -> None:
        self._report = report

    def request(self) -> None:
        self._report(CollectorResult(self.name, tuple(self.collector.collect())))


class RecordCounter:
    """Takes records as a stream would, and counts them."""

    def __init__(self) -> None:
        self.records = self.bytes = 0

    def write(self, _topic: str, _key: str, value: bytes, *, keep: bool = False) -> None:
        """One record."""
        del keep
        self.records += 1
        self.bytes += len(value)


# --- a real agent ------------------------------------------------------------------------------------------------


def agent_process(folder: str, settings: str, server: str) -> None:
    """The agent, with the stand-in for NVML and a session to this server, until SIGTERM."""
    nvml, stop = FakeNvml(gpus=GPUS), threading.Event()
    sys.modules["pynvml"] = nvml  # type: ignore[assignment]  # the module's border
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def move() -> None:
        while not stop.wait(1.0):
            moving(nvml)

    threading.Thread(target=move, daemon=True).start()
    run_agent(_config(Path(folder), settings), stop, node=NODE, server=server)


def workers_process(folder: str, servers: "ProcessQueue[str]", over: ProcessEvent) -> None:
    """What the workers write, in real time, and a leader, whose address is put into `servers` when both are there."""
    node = BusyNode(Path(folder) / "run", SystemClock())
    node.start()
    try:
        with leader() as server:
            servers.put(server)
            run_in_real_time(node, over.is_set)
    finally:
        node.stop()


@contextmanager
def leader() -> Iterator[str]:
    """The address of a control channel that holds sessions, as a leader's does."""
    loop, server = asyncio.new_event_loop(), ControlServer(RecordingHandler(), term=1)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield f"127.0.0.1:{server.port}"
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _config(folder: Path, settings: str = "") -> Config:
    file = folder / "eagle-eye.toml"
    file.write_text(CONFIG + settings)
    return load(file, state_dir=str(folder / "state"), run_dir=str(folder / "run"))


@contextmanager
def beside_workers(folder: str, settings: str = "") -> Iterator[psutil.Process]:
    """The process of an agent with these settings beyond CONFIG, beside workers at work."""
    context = multiprocessing.get_context("spawn")
    servers, over = context.Queue(), context.Event()
    workers = context.Process(target=workers_process, args=(folder, servers, over))
    workers.start()
    try:
        agent = context.Process(target=agent_process, args=(folder, settings, servers.get()))
        agent.start()
        try:
            yield psutil.Process(agent.pid)
        finally:
            agent.terminate()
            agent.join()
    finally:
        over.set()
        workers.join()


def real(seconds: int) -> tuple[float, float]:
    """(percent of one core, resident MB at the end) of the agent and the processes that it starts."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="eagle-eye-agent-") as folder, beside_workers(folder) as agent:
        clock.sleep(SETTLE_S)
        before, began = _processor_s(agent), clock.monotonic()
        with Progress(transient=True, disable=not sys.stderr.isatty()) as progress:
            for _ in progress.track(range(seconds), description="a real agent, seconds"):
                clock.sleep(1.0)
        percent = 100 * (_processor_s(agent) - before) / (clock.monotonic() - began)
        return percent, sum(each.memory_info().rss for each in (agent, *agent.children(recursive=True))) / 1e6


def _processor_s(process: psutil.Process) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


# --- an hour of a made-up clock ----------------------------------------------------------------------------------


def simulated(seconds: int) -> tuple[list[float], RecordCounter]:
    """(resident MB after each hundredth of the time, what was written)."""
    clock, nvml, writer, inbox = FakeClock(), FakeNvml(gpus=GPUS), RecordCounter(), Queue[CollectorResult]()
    megabytes: list[float] = []
    with tempfile.TemporaryDirectory(prefix="eagle-eye-agent-") as folder:
        config, node = _config(Path(folder)), BusyNode(Path(folder) / "run", clock)
        node.start()
        try:
            jobs = JobRegistry(config.run, Path(folder) / "agent.json", clock.now())
            collectors = _inline(config, clock, nvml)
            agent = Agent(NODE, collectors, writer, jobs, inbox, clock=clock, incarnation="bench")  # type: ignore[arg-type]  # no notices come
            for each in collectors:
                each.start(inbox.put)
            with Progress(transient=True, disable=not sys.stderr.isatty()) as progress:
                for tenth in progress.track(range(seconds * 10), description="an agent on a made-up clock, tenths of a second"):
                    node.tenth()
                    if tenth % 10 == 0:
                        moving(nvml)
                    clock.advance(TENTH_S)
                    agent.run_once()
                    if tenth % max(1, seconds // 10) == 0:
                        megabytes.append(psutil.Process().memory_info().rss / 1e6)
        finally:
            node.stop()
    return megabytes, writer


def _inline(config: Config, clock: FakeClock, nvml: FakeNvml) -> list[CollectorThread]:
    """All collectors but the storage's, whose process has a clock of its own."""
    made = [each for each in build_collectors(config, NODE, clock) if each.name != "storage"]
    return [
        InlineCollector(each.name, GpuCollector(nvml=nvml, clock=clock) if each.name == "gpu" else each.collector, each.schedule) for each in made
    ]  # fmt: skip


# --- what has changed on the node --------------------------------------------------------------------------------


def software() -> list[Row]:
    """Of the collector's looks at this machine's kernel, drivers and settings, and of its rounds between them."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory(prefix="eagle-eye-software-") as folder:
        run = Path(folder) / "run"
        node = BusyNode(run, clock)
        node.start()
        try:
            collector = SoftwareCollector(node=NODE, run_dir=run, state_dir=Path(folder) / "state", clock=clock)
            collector.collect()
            looks = [_collected(collector, clock, collector.look_s) for _ in range(LOOKS)]
            rounds = [_collected(collector, clock, 0.0) for _ in range(LOOKS)]
        finally:
            node.stop()
    look, between = statistics.median(looks), statistics.median(rounds)
    share = 100 * (look / collector.look_s + between / collector.interval_s)
    return [
        Row(
            f"`software`: a look (every {collector.look_s:g} s), a round without one (every {collector.interval_s:g} s); {collector.knows}",
            f"{look * 1e3:.2f} ms, at most {max(looks) * 1e3:.2f}; {between * 1e3:.2f} ms: {share:.4f} % of a core",
        )
    ]  # fmt: skip


def _collected(collector: SoftwareCollector, clock: FakeClock, passed_s: float) -> float:
    """Processor seconds."""
    clock.advance(passed_s)
    began = time.process_time()
    collector.collect()
    return time.process_time() - began


# --- the figures -------------------------------------------------------------------------------------------------


def rows(seconds: int, hours: float) -> list[Row]:
    """Measure both."""
    percent, resident = real(seconds)
    found = [
        Row(f"a real agent for {seconds} s: share of one core", f"{percent:.2f} %", f"≤ {GOAL_PERCENT:g} %", percent <= GOAL_PERCENT, PEER, f"{percent / 131:.3f}×"),
        Row("its resident memory, its storage probe's included", f"{resident:.0f} MB", f"≤ {GOAL_MB:g} MB", resident <= GOAL_MB),
    ]  # fmt: skip
    megabytes, writer = simulated(int(hours * 3600))
    half = megabytes[len(megabytes) // 2]
    growth = megabytes[-1] / half - 1
    return [
        *found,
        Row(
            f"{hours:g} h of a made-up clock: memory, half-way → end", f"{half:.0f} → {megabytes[-1]:.0f} MB ({growth:+.1%})",
            f"flat (≤ {GOAL_GROWTH:.0%})", growth <= GOAL_GROWTH,
        ),
        Row("written meanwhile", f"{writer.records:,} records, {writer.bytes / 1e6:.0f} MB of {JOB.split('/')[0]}'s telemetry; logs {hours * 3600 * LOG_BYTES / 1e9:.1f} GB, {WORKERS} workers"),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of the real agent (60)")
    parser.add_argument("--hours", type=float, default=1.0, help="of the made-up clock (1)")
    parser.add_argument("--only", choices=("software",), help="this part alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.only == "software":
        return report(software(), options.json, "the collector of changes")
    if options.seconds < 1 or options.hours <= 0.01:
        parser.error("--seconds is at least 1, and --hours more than 0.01")
    os.environ.pop("EAGLE_EYE_GROUPS", None)
    steal = neighbours()
    return report([*rows(options.seconds, options.hours), *software(), steal()], options.json, "an agent beside eight workers")


if __name__ == "__main__":
    sys.exit(main())
