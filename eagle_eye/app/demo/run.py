"""The demo: a real job on two nodes of this machine, broken from outside again and again, and healed by Eagle Eye alone."""

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

from ...clock import Clock
from ...errors import EagleEyeError
from ...rpc.client import call
from ...rpc.messages import Release
from ...stream.embedded import EmbeddedStream
from .. import drills
from ..drills import Struck, Truth
from ..local_cluster import LocalCluster
from . import settings, view
from .faults import FAULTS, Fault
from .judge import STEPS_AFTER, Row, judge
from .record import Record

WARM_UP_STEPS = 30
"""Steps before the first fault; their throughput is what is expected later."""
HELD_S = (3.0, 5.0)
"""For how long the stream is stopped."""
PATIENCE_S = 60.0
"""How long a fault may take before the demo goes on and counts it as not healed."""


class DemoError(EagleEyeError):
    """The demo could not be carried out."""


@dataclass(slots=True, kw_only=True)
class Demo:
    """One run. `folder` keeps everything: state, logs, the truth, the table."""

    folder: Path
    seed: int
    console: Console
    clock: Clock
    faults: tuple[Fault, ...] = FAULTS
    _truths: list[tuple[Fault, Truth, float]] = field(default_factory=list)
    """(fault, truth, end of its span)"""
    _doing: str = "starting"
    _began: float = 0.0
    _launch: list[str] = field(default_factory=list)
    _server: str = ""
    _meeting: str = ""

    def run(self) -> list[Row]:
        """Carry it out and return the table's rows. Everything that was started is ended, whatever happens."""
        self._began = self.clock.now()
        chance = random.Random(self.seed)  # noqa: S311 -- to repeat a run, not to keep a secret
        cluster, record = self._set_up()
        try:
            with self._live(record) as refresh:
                self._warm_up(cluster, record, refresh)
                for fault in self.faults:
                    self._break(fault, cluster, record, chance, refresh)
                self._doing = "ending the job"
                refresh()
                cluster.stop()
                record.look()
                reference = self._reference(record.trace.highest() + 1, refresh)
        finally:
            cluster.stop()
            record.close()
        self._write_truth()
        return self._judge(record, reference)

    # --- the cluster -----------------------------------------------------------------------------------------------

    def _set_up(self) -> tuple[LocalCluster, Record]:
        port = free_port()
        self._server, self._meeting = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        config_file = self.folder / "eagle-eye.toml"
        config_file.write_text(settings.config_text(port))
        self.console.print(config_file.read_text(), style="dim", highlight=False)
        cluster = LocalCluster(folder=self.folder, config_file=config_file, clock=self.clock)
        self._launch = [
            "--job", settings.JOB, "--run-id", "run-1", "--nnodes", f"1:{len(settings.NODES)}", "--nproc-per-node", str(settings.WORKERS_PER_NODE),
            "--rdzv", self._meeting, "--heal", f"restart:{settings.RESTARTS}", "--",
            "python", str(settings.script()), "--steps", "1000000", *settings.MODEL,
        ]  # fmt: skip
        cluster.start_server()
        for position, node in enumerate(settings.NODES):
            cluster.start_node(node, self._for_node(position))
        return cluster, Record.open(cluster.state_dir, f"{settings.JOB}/run-1", self.clock)

    def _for_node(self, position: int) -> list[str]:
        """The first node's launcher is the one that the others meet at."""
        return ["--listen", self._meeting if position == 0 else "127.0.0.1:0", *self._launch]

    def _warm_up(self, cluster: LocalCluster, record: Record, refresh: Callable[[], None]) -> None:
        self._doing = f"warming up: {WARM_UP_STEPS} healthy steps"
        if not self._wait(lambda: record.trace.highest() >= WARM_UP_STEPS, cluster, record, refresh, 90.0):
            raise DemoError("the job did not get going; the last lines of its launcher:\n" + cluster.tail(f"launcher-{settings.NODES[0]}"))

    def _wait(self, condition: Callable[[], bool], cluster: LocalCluster, record: Record, refresh: Callable[[], None], seconds: float) -> bool:
        deadline = self.clock.monotonic() + seconds
        while self.clock.monotonic() < deadline:
            record.look()
            refresh()
            cluster.check()
            if condition():
                return True
            self.clock.sleep(0.05)
        return False

    # --- the faults ------------------------------------------------------------------------------------------------

    def _break(self, fault: Fault, cluster: LocalCluster, record: Record, chance: random.Random, refresh: Callable[[], None]) -> None:
        steps = record.trace.highest() + chance.randint(3, 12)
        self._doing = f"healthy; next: {fault.name}"
        self._wait(lambda: record.trace.highest() >= steps, cluster, record, refresh, PATIENCE_S)
        self.clock.sleep(chance.uniform(0.0, 0.1))
        struck = self._strike(fault, cluster, record, chance)
        self._doing = fault.name
        view.say(self.console, f"[{self.clock.now() - self._began:6.1f} s] {fault.name}: {struck.truth.worker or struck.truth.node or 'all writers'}")
        if fault.kind == "stream":
            self._wait(lambda: False, cluster, record, refresh, chance.uniform(*HELD_S))
            struck.end()
        healed = self._wait(lambda: self._over(fault, struck.truth, record), cluster, record, refresh, PATIENCE_S)
        self._truths.append((fault, struck.truth, self.clock.now()))
        struck.end()
        view.say(self.console, f"[{self.clock.now() - self._began:6.1f} s] {'training again' if healed else 'NOT healed in time'}")
        if fault.culprit == "node":
            self._bring_back(fault, struck.truth.node, cluster, record, refresh)

    def _strike(self, fault: Fault, cluster: LocalCluster, record: Record, chance: random.Random) -> Struck:
        if fault.kind == "stream":
            return drills.stream(EmbeddedStream(cluster.state_dir / "stream", clock=self.clock), self.clock)
        if fault.culprit == "node":
            name = self._node(fault, record, chance)
            if fault.kind == "slow-node":
                return drills.slow(name, cluster.run_dir(name), self.clock)
            workers = [worker.pid for worker in drills.workers([cluster.run_dir(name)])]
            struck = drills.node(name, [*cluster.pids(name), *workers], self.clock, detail=fault.target)
            cluster.reap(name)
            return struck
        workers_now = drills.workers([cluster.run_dir(node) for node in settings.NODES])
        return drills.ON_WORKER[fault.kind](chance.choice(workers_now), self.clock)

    def _node(self, fault: Fault, record: Record, chance: random.Random) -> str:
        layout = record.trace.layout
        coordinator = layout.coordinator if layout else settings.NODES[0]
        other = next(node for node in settings.NODES if node != coordinator)
        return {"coordinator": coordinator, "other": other}.get(fault.target) or chance.choice(settings.NODES)

    def _over(self, fault: Fault, truth: Truth, record: Record) -> bool:
        """Enough steps beyond the fault, and the ledger has closed what it opened about it."""
        trace = record.trace
        before = trace.highest(truth.time)
        struck = max((layout.epoch for layout in trace.layouts if layout.time <= truth.time), default=0)
        steps = [step for step in trace.after(truth.time) if step.number > before and (step.epoch > struck or not self._needs_epoch(fault))]
        if fault.kind == "slow-node":
            steps = [step for step in steps if trace.layout and truth.node in trace.layout.excluded and step.epoch == trace.layout.epoch]
        if len(steps) <= STEPS_AFTER:
            return False
        return fault.culprit == "nobody" or record.settled(truth.time)

    @staticmethod
    def _needs_epoch(fault: Fault) -> bool:
        return fault.kind not in {"stop", "stream"}

    def _bring_back(self, fault: Fault, name: str, cluster: LocalCluster, record: Record, refresh: Callable[[], None]) -> None:
        """Repair the node, as a person would: start it again, or release it."""
        self._doing = f"{name} was repaired and comes back"
        if fault.kind == "slow-node":
            call(self._server, "release", Release(node=name, person="demo"))
        else:
            cluster.start_node(name, self._for_node(1))
        full = len(settings.NODES) * settings.WORKERS_PER_NODE

        def back() -> bool:
            layout = record.trace.layout
            return layout is not None and len(layout.places) == full and record.trace.steps[-1].epoch == layout.epoch

        if not self._wait(back, cluster, record, refresh, PATIENCE_S):
            view.say(self.console, f"{name} was not taken back within {PATIENCE_S:.0f} s")

    # --- the reference and the verdict -------------------------------------------------------------------------------

    def _reference(self, steps: int, refresh: Callable[[], None]) -> dict[int, float]:
        """Losses of an undisturbed run of the same seed, as long as the disturbed one."""
        self._doing = f"an undisturbed run of the same {steps} steps, to compare the losses"
        folder = self.folder / "reference"
        folder.mkdir(parents=True, exist_ok=True)
        cluster = LocalCluster(folder=folder, config_file=self.folder / "eagle-eye.toml", clock=self.clock)
        command = ["--job", "demo/reference", "--run-id", "run-1", "--no-server", "--nproc-per-node", "2", "--", "python", str(settings.script()), "--steps", str(steps), *settings.MODEL]
        record = Record.open(cluster.state_dir, "demo/reference/run-1", self.clock)
        cluster.start_node("reference", command)
        try:
            if not self._wait(lambda: record.trace.highest() >= steps - 1, cluster, record, refresh, 180.0):
                raise DemoError("the undisturbed run did not finish; its launcher's last lines:\n" + cluster.tail("launcher-reference"))
            return record.trace.losses()
        finally:
            cluster.stop()
            record.close()

    def _judge(self, record: Record, reference: dict[int, float]) -> list[Row]:
        first = self._truths[0][1].time if self._truths else self.clock.now()
        healthy = record.trace.throughput_per_worker(step for step in record.trace.steps if step.end < first and step.number >= 5)
        rows = []
        for position, (fault, truth, until) in enumerate(self._truths):
            following = self._truths[position + 1][1].time if position + 1 < len(self._truths) else self.clock.now()
            rows.append(judge(fault, truth, record.evidence(truth.time, following, until), record.trace, healthy, reference))
        return rows

    def _write_truth(self) -> None:
        lines = b"\n".join(msgspec.json.encode(truth) for _, truth, _ in self._truths)
        (self.folder / "truth.jsonl").write_bytes(lines + b"\n")

    @contextmanager
    def _live(self, record: Record) -> Iterator[Callable[[], None]]:
        with Live(console=self.console, refresh_per_second=4, transient=True, auto_refresh=False) as shown:
            last = 0.0

            def refresh() -> None:
                nonlocal last
                now = self.clock.now()
                if now - last >= 0.25:
                    last = now
                    shown.update(view.live(record.trace, record.latest, self._doing, now, self._began), refresh=self.console.is_terminal)

            yield refresh


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
