"""The path of ten thousand nodes' telemetry: from their sockets through Kafka into frames and detectors, and what idle nodes and confirmations cost.

    python -m benchmarks.collect.path_at_size                                everything: 10,000 nodes, five minutes of lag
    python -m benchmarks.collect.path_at_size --nodes 500 --seconds 20       a quick look
    python -m benchmarks.collect.path_at_size --only frames partition idle   processor time alone: robust on a busy machine
    python -m benchmarks.collect.path_at_size --seconds 45 --period 5        each producer writes every five seconds: for a machine of two cores
    python -m benchmarks.collect.path_at_size --only sockets --history       the servers also write the history, as they do by default
    python -m benchmarks.collect.path_at_size --only sockets --jobs 1 --consumers 1 --fetchers 2     all nodes in one job, which one process evaluates

frames: wire bytes → one Frame of 10,000 nodes × 8 GPUs × 60 numbers and, of each of the 80,000 workers, 8 process groups × 3 numbers, on one core.
fetchers: what one job of all nodes costs the process that evaluates it, by part, and what fetchers take over; the largest job that it holds.
partition: the whole cluster in one partition, as one job that also reports its steps: frames, the shipped detectors, diagnosis and snapshot on one core.
idle: nodes without a job in the shipped detectors, a record of each every second: time a tick and memory of each.
sockets: as many producers, each with a connection of its own to a broker (Tansu, in memory), 8 jobs on 8 partitions, 4 `eagle-eye server --role
detect` beside one that leads; the lag is what lies in the topic and is not judged and committed yet. Each producer asks what was confirmed as
often as an agent does.

The peer of the lag: NVSentinel's analyzer, 57 events a second (its authors' figure). That of frames: one msgpack object a sample, a tenth × 10.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from rich.progress import Progress

from benchmarks.cluster.brokers import Tansu
from benchmarks.cluster.telemetry import CONFIG
from benchmarks.collect.one_core import frame_rows, idle_rows, partition_rows
from benchmarks.collect.one_job import job_rows
from benchmarks.collect.paper_agents import (
    GPU_NAMES,
    GPUS,
    GROUP_NAMES,
    SCHEMAS,
    PaperNode,
    Told,
    layout_of,
    nodes_of,
    write,
)
from benchmarks.report import Row, report
from eagle_eye import wire
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import load
from eagle_eye.errors import StreamUnavailable
from eagle_eye.history.factory import open_history
from eagle_eye.ports import free_port
from eagle_eye.stream import OBSERVATIONS, RUNNER_GROUP, Stream
from eagle_eye.stream.factory import open_stream

NODES, JOBS, CONSUMERS = 10_000, 8, 4
LAG_S = 2.0
MEMORY_BYTES = 4 << 30
ASKS = 200.0
IDLE_NODES = 2_000
WITHOUT_HISTORY, WITH_HISTORY = "[history]\nenabled = false", "[history]\nfile_s = 10.0"
PARTS = ("frames", "partition", "fetchers", "idle", "sockets")
MIB = 1 << 20


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status says whether the goals were met."""
    about, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=NODES, help=f"nodes, and producers with a socket each ({NODES})")
    parser.add_argument("--seconds", type=int, default=300, help="of the measurement of the lag (300)")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two records of a producer (1)")
    parser.add_argument("--consumers", type=int, default=CONSUMERS, help=f"detecting processes ({CONSUMERS})")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs, each in a partition of its own ({JOBS})")
    parser.add_argument("--fetchers", type=int, default=-1, help="fetchers of each partition (as stream.fetchers; -1: as many as the rate asks for)")
    parser.add_argument("--history", action="store_true", help="the detecting processes write the history, too, each in a process of its own")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument("--json", action="store_true", help="the same rows as JSON")
    options = parser.parse_args(arguments)
    if not 1 <= options.jobs <= options.nodes:
        parser.error(f"--nodes {options.nodes}: the {options.jobs} jobs need a node each")
    rows: list[Row] = []
    with Progress(transient=True) as bar:
        if "idle" in options.only:  # first: its memory is that of a process that has not grown yet
            rows += idle_rows(min(options.nodes, IDLE_NODES), bar)
        if "frames" in options.only:
            rows += frame_rows(options.nodes, bar)
        if "partition" in options.only:
            rows += partition_rows(options.nodes, bar)
        if "fetchers" in options.only:
            rows += job_rows(options.nodes, bar)
        if "sockets" in options.only:
            offered = SocketLoad(options.nodes, options.jobs, options.seconds, options.period, options.consumers, options.fetchers, options.history)
            rows += socket_rows(offered, bar)
    rows.append(Row("load average of the machine's processors, at the end", "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()), peer=f"{os.cpu_count()} processors"))
    return report(rows, json=options.json, title=f"The path at size: {options.nodes:,} nodes")


# --- sockets -----------------------------------------------------------------------------------------------------------------


class SocketLoad(NamedTuple):
    """What is run."""

    nodes: int
    jobs: int
    seconds: int
    period_s: float
    consumers: int
    fetchers: int
    history: bool

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.nodes / self.period_s

    def config(self, broker: str) -> str:
        """Of the servers."""
        text = CONFIG.format(port=free_port(), brokers=broker, partitions=self.jobs).replace("[stream]\n", f"[stream]\nfetchers = {self.fetchers}\n")
        return text.replace(WITHOUT_HISTORY, WITH_HISTORY) if self.history else text


@dataclass
class Course:
    """What was seen of the run with sockets."""

    told: Told = field(default_factory=Told)
    lags: list[int] = field(default_factory=list)
    """Records behind, once a second."""
    unanswered: int = 0
    """How often the broker did not say for ten seconds how far everybody is."""
    consumers_cpu: list[float] = field(default_factory=list)
    """Processor seconds a second, of each."""
    broker_cpu: float = 0.0
    children_cpu: float = 0.0
    """Of all their fetchers and history processes together; the same."""
    memory: list[int] = field(default_factory=list)
    """Bytes of each server and its children at its worst, the one that leads last."""
    history_rows: int = 0


def socket_rows(offered: SocketLoad, bar: Progress) -> list[Row]:
    """Sockets, broker, servers."""
    with tempfile.TemporaryDirectory(prefix="eagle-eye-size-") as folder, Tansu() as broker:
        course = measure(Path(folder), broker, offered, SystemClock(), bar)
    told, rate = course.told, offered.rate
    steady = course.lags[len(course.lags) // 5 :]
    worst, median = max(steady, default=0) / rate, float(np.median(steady or [0])) / rate
    asks, largest = told.asks / max(told.seconds, 1e-9), max(course.memory, default=0)
    numbers_s = rate * GPUS * (len(GPU_NAMES) + len(GROUP_NAMES))
    cpu = sum(course.consumers_cpu)
    return [
        Row(f"{offered.nodes:,} sockets, {offered.jobs} jobs, {offered.consumers} consumers, a record of each every {offered.period_s:g} s: lag over {len(course.lags)} s", f"worst {worst:.1f} s, median {median:.1f} s" + (f"; {course.unanswered} times unknown" if course.unanswered else ""), f"≤ {LAG_S:g} s", worst <= LAG_S and not course.unanswered),
        Row("records acknowledged", f"{told.acknowledged:,} of {told.written:,} ({rate:,.0f} and {numbers_s / 1e6:.1f} M numbers a second); the producers at most {told.late_s:.1f} s late", "all", told.acknowledged == told.written, "NVSentinel's analyzer: 57 events/s", f"{told.acknowledged / max(told.seconds, 1e-9) / 57:,.0f}×"),
        Row("memory of the largest server; of all", f"{largest / MIB:,.0f} MiB; {sum(course.memory) / MIB:,.0f} MiB", f"≤ {MEMORY_BYTES >> 30} GiB", sum(course.memory) <= MEMORY_BYTES),
        Row("looks at what is confirmed, of all agents together", f"{asks:.0f} a second, at most {told.most_asks} in one; two requests each", f"≤ {ASKS:.0f} a second", told.most_asks <= ASKS),
        Row("processor time of a second: consumers (each), their fetchers and history, broker, producers", f"{cpu:.2f} s ({', '.join(f'{each:.2f}' for each in course.consumers_cpu)}), {course.children_cpu:.2f} s, {course.broker_cpu:.2f} s, {told.processor_s / max(told.seconds, 1e-9):.2f} s"),
        *([Row("rows of the history", f"{course.history_rows:,}", "some", course.history_rows > 0)] if offered.history else []),
    ]  # fmt: skip


def measure(folder: Path, broker: Tansu, offered: SocketLoad, clock: Clock, bar: Progress) -> Course:
    """One run in a folder of its own."""
    config_file = folder / "eagle-eye.toml"
    config_file.write_text(offered.config(broker.address))
    cluster = LocalCluster(folder=folder, config_file=config_file, clock=clock, state_dir=folder / "state")
    stream = open_stream(load(config_file, state_dir=str(cluster.state_dir)), clock)
    context, course = multiprocessing.get_context("spawn"), Course()
    here, there = context.Pipe()
    try:
        nodes = nodes_of(_jobs(stream), offered.nodes)
        _announce(stream, nodes, clock)
        leader = cluster.start_further("lead", "--role", "lead")
        watchers = [cluster.start_further(f"detect-{index}", "--role", "detect") for index in range(offered.consumers)]
        writer = context.Process(target=write, args=(broker.address, nodes, offered.seconds, offered.period_s, there), daemon=True)
        writer.start()
        task = bar.add_task("servers and sockets", total=offered.seconds)
        _settle(cluster, stream, clock)
        assert here.recv() == "ready"
        here.send("go")
        servers = [psutil.Process(each.pid) for each in (*watchers, leader)]
        _follow(course, broker, stream, servers, lambda: here.poll(1.0), clock, lambda text: bar.update(task, advance=1, description=text))
        course.told = here.recv()
        bar.remove_task(task)
        course.history_rows = _history_rows(config_file, cluster.state_dir) if offered.history else 0
    finally:
        cluster.stop()
        stream.close()
    return course


def _jobs(stream: Stream) -> list[tuple[str, int]]:
    """One job for each partition."""
    names: dict[int, str] = {}
    for index in range(10_000):
        name = f"bench/size-{index}/run-{index}"
        names.setdefault(stream.partition_of(OBSERVATIONS, name), name)
    return [(names[partition], partition) for partition in sorted(names)]


def _announce(stream: Stream, nodes: Sequence[PaperNode], clock: Clock) -> None:
    for job in dict.fromkeys(node.job for node in nodes):
        layout = layout_of(job, [node for node in nodes if node.job == job], clock.now())
        stream.append(OBSERVATIONS, [*((job, wire.encode(schema)) for schema in SCHEMAS), (job, wire.encode(layout))])


def _settle(cluster: LocalCluster, stream: Stream, clock: Clock) -> None:
    """Until every partition has an owner that has begun to judge."""
    while any(stream.committed(RUNNER_GROUP, OBSERVATIONS, each) is None for each in range(stream.partitions(OBSERVATIONS))):
        cluster.check()
        clock.sleep(0.1)


def _follow(course: Course, broker: Tansu, stream: Stream, servers: Sequence[psutil.Process], over: Callable[[], bool], clock: Clock, tell: Callable[[str], None]) -> None:
    used, broker_used, children_used, began = [_cpu(each) for each in servers], broker.cpu_s, _cpu_of_children(servers), clock.monotonic()
    course.memory = [0] * len(servers)
    while not over():
        try:
            course.lags.append(_lag(stream))
        except StreamUnavailable:  # the broker has no processor time: who writes and who reads wait for it as well
            course.unanswered += 1
            continue
        course.memory = [max(before, _memory(each)) for before, each in zip(course.memory, servers, strict=True)]
        tell(f"lag {course.lags[-1]:,} records")
    passed = clock.monotonic() - began
    course.consumers_cpu = [(_cpu(each) - before) / passed for each, before in zip(servers[:-1], used[:-1], strict=True)]
    course.broker_cpu = (broker.cpu_s - broker_used) / passed
    course.children_cpu = (_cpu_of_children(servers) - children_used) / passed


def _lag(stream: Stream) -> int:
    return sum(stream.end(OBSERVATIONS, each) - (stream.committed(RUNNER_GROUP, OBSERVATIONS, each) or 0) for each in range(stream.partitions(OBSERVATIONS)))


def _cpu(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def _cpu_of_children(servers: Sequence[psutil.Process]) -> float:
    return sum(_cpu(child) for server in servers for child in server.children())


def _memory(server: psutil.Process) -> int:
    return sum(int(each.memory_info().rss) for each in (server, *server.children()))


def _history_rows(config_file: Path, state_dir: Path) -> int:
    history = open_history(load(config_file, state_dir=str(state_dir)))
    counts = (history.ask(table, "SELECT count(*) AS rows FROM {rows}", since=0.0, until=4e9) for table in history.tables())
    return sum(int(count.column("rows")[0].as_py()) for count in counts if count is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
