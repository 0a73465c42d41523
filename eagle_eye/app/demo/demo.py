"""The demo: a real job on two nodes of this machine, broken from outside again and again, and healed by Eagle Eye alone."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

from eagle_eye.app import drills
from eagle_eye.app.drills import ActiveDrill, GroundTruth
from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ports import free_port
from eagle_eye.stream.embedded import EmbeddedStream

from . import live_view, scenario
from .demo_dashboard import DemoDashboard
from .demo_job import DemoJob
from .fault_verdict import STEPS_AFTER, THROUGHPUT, FaultVerdict, verdict_of
from .scenario import FAULTS, DemoFault
from .step_trace import StepTrace

WARM_UP_STEPS = 40
"""Steps before the first fault; their throughput is what is expected later."""
FIRST_STEPS = 5
"""Of those the first, which fill caches, do not count."""
HELD_S = (3.0, 4.0)
"""For how long the stream is stopped."""
PATIENCE_S = 30.0
"""How long a fault may take before the demo goes on and counts it as not healed."""
RETURN_S = 120.0
"""How long a repaired node may take to come back: its processes start anew, which is slow on a machine that does much else."""


class DemoError(EagleEyeError):
    """The demo could not be carried out."""


@dataclass(slots=True, kw_only=True)
class Demo:
    """One run. `folder` keeps everything: state, logs, the truth, the table."""

    folder: Path
    seed: int
    console: Console
    clock: Clock
    faults: tuple[DemoFault, ...] = FAULTS
    pages: DemoDashboard | None = None
    """The dashboard beside it; None: none."""
    began: float = 0.0
    """When it was started, and when the job that is broken was ended: seconds since 1970."""
    ended: float = 0.0
    _spans: list[tuple[DemoFault, float]] = field(default_factory=list)
    """(fault, when it was over); what really happened is written to `truth` alone."""
    _doing: str = "starting"
    _healthy: float = 0.0
    """Tokens per second and worker before the first fault."""
    _hit: str = ""
    """Worker that the last fault hit."""

    @property
    def state_dir(self) -> Path:
        """Of the job that is broken: its ledger and stream can be looked at afterwards."""
        return self.folder / "gpt" / "state"

    def run(self) -> list[FaultVerdict]:
        """Carry it out and return the table's rows. Everything that was started is ended, whatever happens."""
        self.began = self.clock.now()
        chance = random.Random(self.seed)  # noqa: S311 -- to repeat a run, not to keep a secret
        demo_job = self._demo_job("gpt", scenario.JOB, scenario.NODES, scenario.WORKERS_PER_NODE, 1_000_000)
        with self._live(demo_job):
            demo_job.start()
            if self.pages is not None:
                self.pages.open(demo_job.folder / "eagle-eye.toml", self.state_dir)
            self.console.print((demo_job.folder / "eagle-eye.toml").read_text(), style="dim", highlight=False, markup=False, soft_wrap=True)
            self._warm_up(demo_job)
            for fault in self.faults:
                self._break(fault, demo_job, chance)
            self._doing = "ending the job"
            demo_job.stop()
            self.ended = self.clock.now()
            trace = demo_job.record.trace
        reference = self._reference(trace.highest() + 1)
        return self._judge(demo_job, trace, reference)

    @property
    def truth(self) -> Path:
        """The file of what really happened. Only the final table reads it."""
        return self.folder / "truth.jsonl"

    def _demo_job(self, folder: str, job: str, nodes: tuple[str, ...], workers: int, steps: int, *, served: bool = True) -> DemoJob:
        command = (sys.executable, str(scenario.script()), "--steps", str(steps), *scenario.MODEL)
        return DemoJob(
            folder=self.folder / folder, config=scenario.CONFIG.replace("{http}", str(free_port())), command=command, job=job, nodes=nodes, workers_per_node=workers,
            heal=f"restart:{scenario.RESTARTS}", served=served, clock=self.clock,
        )  # fmt: skip

    @contextmanager
    def _live(self, demo_job: DemoJob) -> Iterator[None]:
        """Show what happens while it happens; end every process at the end, whatever it is."""
        last = 0.0
        with Live(console=self.console, transient=True, auto_refresh=False) as shown:

            def refresh() -> None:
                nonlocal last
                now = self.clock.now()
                if self.pages is not None:
                    self.pages.look()
                if self.console.is_terminal and now - last >= 0.25:
                    last = now
                    shown.update(live_view.live(demo_job.record.trace, demo_job.record.latest, self._doing, now, self.began), refresh=True)

            demo_job.on_look = refresh
            try:
                yield
            finally:
                demo_job.stop()

    def _warm_up(self, demo_job: DemoJob) -> None:
        self._doing = f"warming up: {WARM_UP_STEPS} healthy steps"
        if not demo_job.wait(lambda: demo_job.record.trace.highest() >= WARM_UP_STEPS, 90.0):
            raise DemoError("the job did not get going; the last lines of its launcher:\n" + demo_job.cluster.tail(f"launcher-{scenario.NODES[0]}"))
        self._healthy = demo_job.record.trace.throughput_per_worker(step for step in demo_job.record.trace.steps if step.number >= FIRST_STEPS)

    # --- the faults ------------------------------------------------------------------------------------------------

    def _break(self, fault: DemoFault, demo_job: DemoJob, chance: random.Random) -> None:
        self._doing = f"healthy; next: {fault.name}"
        demo_job.wait_steps(chance.randint(3, 8), PATIENCE_S)
        self.clock.sleep(chance.uniform(0.0, 0.1))
        struck = self._strike(fault, demo_job, chance)
        with self.truth.open("ab") as file:
            file.write(msgspec.json.encode(struck.truth) + b"\n")
        self._doing = fault.name
        self._say(f"{fault.name}: {struck.truth.worker or struck.truth.node or 'all writers'}")
        if fault.kind == "stream":
            demo_job.wait(lambda: False, chance.uniform(*HELD_S))
            struck.end()
        healed = demo_job.wait(lambda: self._over(fault, struck.truth, demo_job), PATIENCE_S)
        self._spans.append((fault, self.clock.now()))
        struck.end()
        self._say("training again" if healed else f"NOT healed within {PATIENCE_S:.0f} s")
        self._bring_back(demo_job)

    def _strike(self, fault: DemoFault, demo_job: DemoJob, chance: random.Random) -> ActiveDrill:
        if fault.kind == "stream":
            return drills.hold_stream(EmbeddedStream(demo_job.cluster.state_dir / "stream", clock=self.clock), self.clock)
        if fault.culprit == "worker":
            # not the same one twice running: that is a relapse, to which a stronger answer is right
            worker = chance.choice([worker for worker in demo_job.workers() if worker.name != self._hit])
            self._hit = worker.name
            return drills.ON_WORKER[fault.kind](worker, self.clock)
        name = self._node(fault, demo_job.record.trace, chance)
        if fault.kind == "slow-node":
            return drills.slow_node(name, demo_job.cluster.run_dir(name), self.clock)
        return demo_job.kill_node(name, detail=fault.target)

    @staticmethod
    def _node(fault: DemoFault, trace: StepTrace, chance: random.Random) -> str:
        coordinator = trace.layout.coordinator if trace.layout else scenario.NODES[0]
        other = next(node for node in scenario.NODES if node != coordinator)
        return {"coordinator": coordinator, "other": other}.get(fault.target) or chance.choice(scenario.NODES)

    def _over(self, fault: DemoFault, truth: GroundTruth, demo_job: DemoJob) -> bool:
        """Enough steps beyond the fault, and the ledger has closed what it opened about it."""
        trace = demo_job.record.trace
        before = trace.highest(truth.time)
        steps = [step for step in trace.after(truth.time, epoch=trace.layout.epoch if trace.layout else 0) if step.number > before]
        if len(steps) <= STEPS_AFTER or trace.steady_throughput(steps, STEPS_AFTER) < THROUGHPUT * self._healthy:
            return False
        if fault.culprit == "none":
            return True
        left = fault.kind != "slow-node" or (trace.layout is not None and truth.node in trace.layout.excluded)
        return left and demo_job.record.settled(truth.time)

    def _bring_back(self, demo_job: DemoJob) -> None:
        """Repair what is out, as a person would: release a node that was left, start one again that is dead."""
        layout = demo_job.record.trace.layout
        missing = [name for name in demo_job.nodes if layout is not None and name not in layout.nodes]
        for name in missing:
            self._doing = f"{name} was repaired and comes back"
            if layout is not None and name in layout.excluded:
                demo_job.release(name)
            else:
                demo_job.start_node(name)
        if missing and not demo_job.wait(demo_job.full, RETURN_S):
            self._say(f"{', '.join(missing)} was not taken back within {RETURN_S:.0f} s")

    def _say(self, text: str) -> None:
        self.console.print(f"[{self.clock.now() - self.began:6.1f} s] {text}", highlight=False, markup=False, soft_wrap=True)

    # --- the reference and the verdict -----------------------------------------------------------------------------

    def _reference(self, steps: int) -> dict[int, float]:
        """Losses of an undisturbed run of the same seed, as long as the disturbed one."""
        self._doing = f"an undisturbed run of the same {steps} steps, to compare the losses"
        self._say(self._doing)
        demo_job = self._demo_job("reference", "demo/reference", ("reference",), 2, steps, served=False)
        with self._live(demo_job):
            demo_job.start()
            if not demo_job.wait(lambda: demo_job.record.trace.highest() >= steps - 1, 180.0):
                raise DemoError("the undisturbed run did not finish; its launcher's last lines:\n" + demo_job.cluster.tail("launcher-reference"))
            return demo_job.record.trace.losses()

    def _judge(self, demo_job: DemoJob, trace: StepTrace, reference: dict[int, float]) -> list[FaultVerdict]:
        truths = [msgspec.json.decode(line, type=GroundTruth) for line in self.truth.read_bytes().splitlines()]
        ends = [*(truth.time for truth in truths[1:]), self.clock.now()]
        return [
            verdict_of(fault, truth, demo_job.record.evidence(truth.time, before, until), trace, self._healthy, reference)
            for (fault, until), truth, before in zip(self._spans, truths, ends, strict=True)
        ]
