"""One trial: a deployment of its own with one job, a fault, the kill, and all that was written down when it is calm again."""

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eagle_eye.app import drills
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Outcome

from .audit import Books, is_over, violations_of
from .leftovers import leftovers
from .moment import NODES, WORKERS_PER_NODE, Moment

SCRIPTS = Path(__file__).parents[3] / "tests" / "scenario"
"""Jobs without torch: what is killed here is Eagle Eye, and its workers are to cost little."""
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[history]
enabled = false

[engine]
mode = "auto"

[guards.blast_radius]
nodes = 100
share = 1.0
cluster_nodes = 100
cluster_share = 1.0
"""
START_S, CALM_S = 120.0, 150.0
QUIET_S = 4.0
"""So long nothing is open and the job goes on before it counts as calm."""
STEPS = 15
GONE_S = 15.0
"""After the orderly end: how long a process may take to go."""


@dataclass(slots=True)
class Result:
    """What came of one moment."""

    moment: Moment
    violations: list[str] = field(default_factory=list)
    calm_s: float = 0.0
    """From the fault until all was calm."""
    told: bool = True
    """Of a launcher that was killed: some incident names its node."""
    story: list[str] = field(default_factory=list)
    """What the ledger holds, for a person who looks into it."""


class Trial:
    """Call `run` once."""

    def __init__(self, folder: Path, moment: Moment) -> None:
        self.folder, self.moment, self.clock = folder, moment, SystemClock()
        script = [str(SCRIPTS / "elastic_loop.py"), "1000000", str(folder / "commits")] if moment.elastic else [str(SCRIPTS / "loop.py")]
        (folder / "commits").mkdir()
        self.job = DemoJob(
            folder=folder, config=CONFIG, command=(sys.executable, *script), job="kills/job", nodes=NODES, workers_per_node=WORKERS_PER_NODE,
            heal=moment.heal, launch=("--preload", "none"), clock=self.clock,
        )  # fmt: skip

    def run(self) -> Result:
        """Raises EagleEyeError where the job does not even begin."""
        result = Result(self.moment)
        try:
            self.job.start()
            self._wait("a healthy job", START_S, lambda: self.job.full() and not self._open())
            self.job.wait_steps(STEPS, START_S)
            struck = self._strike()
            result.calm_s = self._calm(struck.time, result)
            books = self._books(struck)
            result.violations += violations_of(books, self.moment)
            result.told = self.moment.part != "launcher" or books.tells_of(self.moment.node)
            result.story = books.lines()
        finally:
            self.job.stop()
        result.violations += leftovers(self.folder, GONE_S)
        return result

    def _strike(self) -> drills.GroundTruth:
        """The fault, and the kill in the middle of what follows it."""
        moment, victim = self.moment, self.job.workers()[self.moment.rank]
        struck = drills.ON_WORKER[moment.fault](victim, self.clock).truth
        time.sleep(max(0.0, struck.time + moment.after_s - self.clock.now()))
        cluster = self.job.cluster
        process = cluster.server if moment.part == "server" else getattr(cluster.nodes[moment.node], moment.part)
        assert process is not None
        process.kill()
        process.wait()
        time.sleep(moment.away_s)
        if moment.part == "server":
            cluster.start_server()
        elif moment.part == "agent":
            cluster.nodes[moment.node].agent = cluster.start_agent(moment.node)
        else:
            cluster.nodes[moment.node].launcher = cluster.start_launcher(moment.node, moment.node, cluster.nodes[moment.node].launch)
        return struck

    def _calm(self, since: float, result: Result) -> float:
        """Seconds from the fault until nothing is open and the job goes on; a violation where that does not come."""
        quiet: list[float] = []

        def calm() -> bool:
            now = self.clock.monotonic()
            if not (self._whole() and self._told() and self._back() and not self._open()):
                quiet.clear()
                return False
            if not quiet:
                quiet[:] = [now, self.job.record.trace.highest()]
            return now - quiet[0] >= QUIET_S and self.job.record.trace.highest() >= quiet[1] + STEPS

        if not self.job.wait(calm, CALM_S):
            result.violations.append(f"not calm after {CALM_S:.0f} s: {self._reasons()}")
        return self.clock.now() - since

    def _whole(self) -> bool:
        """All workers train; a job that may not heal itself takes no launcher back that was killed."""
        if self.moment.heal != "none" or self.moment.part != "launcher":
            return self.job.full()
        trace = self.job.record.trace
        return trace.layout is not None and bool(trace.steps) and trace.steps[-1].epoch == trace.layout.epoch

    def _back(self) -> bool:
        """A launcher that was started again has come up: it has removed what the one before left."""
        cluster, moment = self.job.cluster, self.moment
        launcher = cluster.nodes[moment.node].launcher if moment.part == "launcher" else None
        return launcher is None or any((cluster.state_dir / "running").glob(f"*-{launcher.pid}.json"))

    def _told(self) -> bool:
        """Some incident accuses somebody: the fault was found."""
        return any(kept.incident.culprits for kept in self.job.record.kept)

    def _open(self) -> list[str]:
        """What is still to be done, as the ledger says."""
        still = [f"{kept.incident.cause} is {kept.state}" for kept in self.job.record.kept if not is_over(kept, self.moment)]
        return still + [f"{outcome.action} is intended" for outcome in self._outcomes() if outcome.state == "intended"]

    def _reasons(self) -> str:
        trace = self.job.record.trace
        placed = len(trace.layout.placements) if trace.layout is not None else 0
        return "; ".join([f"{placed} workers in epoch {trace.layout.epoch if trace.layout else -1}, step {trace.highest()}", *self._open(), *([] if self._told() else ["nobody is accused"])])

    def _outcomes(self) -> tuple[Outcome, ...]:
        with contextlib.suppress(EagleEyeError), contextlib.closing(self._ledger()) as ledger:
            return ledger.outcomes(limit=1000)
        return ()

    def _books(self, struck: drills.GroundTruth) -> Books:
        with contextlib.closing(self._ledger()) as ledger:
            return Books.read(ledger, self.job.record.trace, struck)

    def _ledger(self) -> Ledger:
        return Ledger.open(self.job.cluster.state_dir / "ledger.sqlite", read_only=True)

    def _wait(self, what: str, seconds: float, condition: Callable[[], bool]) -> None:
        if not self.job.wait(condition, seconds):
            logs = ("server", *(f"{part}-{node}" for node in NODES for part in ("agent", "launcher")))
            said = "\n".join(f"--- {name}\n{self.job.cluster.tail(name)}" for name in logs)
            raise EagleEyeError(f"waited {seconds:g} s for {what}: {self._reasons()}\n{said}")


def tried(moment: Moment, keep: str = "") -> Result:
    """Run it in a folder of its own; what breaks in the trial itself is told as a violation. `keep`: where the folder stays if something is wrong."""
    with tempfile.TemporaryDirectory(prefix="kills", ignore_cleanup_errors=True) as folder:  # short: paths of unix sockets are limited
        try:
            result = Trial(Path(folder), moment).run()
        except (EagleEyeError, OSError) as error:
            result = Result(moment, [f"the trial broke: {type(error).__name__}: {error}"])
        if keep and result.violations:
            shutil.copytree(folder, Path(keep) / f"seed-{moment.seed}", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        return result
