"""A healthy job for a while, with everything that a healthy job does: nobody may be accused, nothing may be done.

    python -m benchmarks.chain.soak [--minutes 10] [--load-from 300] [--json]

Four workers on two nodes with evaluations, checkpoints, an input that stalls for 5 s (once for all ranks, once for
one), and from the half on (`--load-from`) another process that keeps one core busy, a sixth later a second one.
Settings are the defaults, but in auto mode, so that a false alarm would be acted upon.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chain.detection import say
from benchmarks.chain.stalling_gpt import ALL_AT, ONE_AT, STALL_S
from benchmarks.report import Row, report
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.app.demo.step_trace import CommittedStep
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import Ledger
from eagle_eye.types import Incident, Outcome

CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[engine]
mode = "auto"
"""
JOB = "soak/gpt"
SCRIPT = Path(__file__).with_name("stalling_gpt.py")
WORDS = ("--steps", "1000000", "--micro-batches", "8", "--checkpoint-every", "50", "--evaluate-every", "100")
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
"""Keeps a core busy for as long as whoever started it lives."""
NO_REPAIR = frozenset({"notify", "dump"})
"""Actions that change nothing."""


@dataclass(frozen=True, slots=True)
class Soaked:
    """What was seen."""

    seconds: float
    steps: Sequence[CommittedStep]
    began: float
    loaded: float
    """When the first other process began to take a core."""
    incidents: Sequence[Incident]
    """Of each the revision that accused somebody, else the last one."""
    outcomes: Sequence[Outcome]
    stories: dict[str, list[str]]

    @property
    def accusing(self) -> list[Incident]:
        return [incident for incident in self.incidents if incident.culprits]

    @property
    def repairs(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.action not in NO_REPAIR]


def soak(folder: Path, seconds: float, loads_from: tuple[float, ...]) -> Soaked:
    """Let it train, and look at the ledger afterwards."""
    clock = SystemClock()
    demo_job = DemoJob(folder=folder, config=CONFIG, command=(sys.executable, str(SCRIPT), *WORDS), job=JOB, clock=clock)
    demo_job.start()
    try:
        if not demo_job.wait(lambda: demo_job.record.trace.highest() >= 10, 90.0):
            raise SystemExit("the job did not get going:\n" + demo_job.cluster.tail("launcher-node-a"))
        began, told = clock.now(), set[str]()
        with ExitStack() as loads:
            for moment in loads_from:
                _follow(demo_job, began, min(moment, seconds), told)
                if moment < seconds:
                    loads.enter_context(busy())
                    say(f"{clock.now() - began:5.0f} s: one more process keeps a core busy")
            _follow(demo_job, began, seconds, told)
    finally:
        demo_job.stop()
    incidents, outcomes, stories = _read(demo_job.cluster.state_dir / "ledger.sqlite")
    return Soaked(seconds, demo_job.record.trace.steps, began, began + loads_from[0], incidents, outcomes, stories)


def _follow(demo_job: DemoJob, began: float, until: float, told: set[str]) -> None:
    """Look on, and tell of each incident as it comes, once."""
    while (left := began + until - demo_job.clock.now()) > 0:
        demo_job.wait(lambda: False, min(left, 10.0))
        for incident in demo_job.record.latest:
            words = f"{incident.cause}, {', '.join(str(culprit.entity) for culprit in incident.culprits) or 'nobody accused'}"
            if f"{incident.id} {words}" not in told and incident.time >= began:
                told.add(f"{incident.id} {words}")
                say(f"{incident.time - began:5.0f} s: incident: {words}")
        say(f"{demo_job.clock.now() - began:5.0f} s: step {demo_job.record.trace.highest()}")


@contextmanager
def busy() -> Iterator[None]:
    """A process that takes all of a core that it can get."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _read(path: Path) -> tuple[list[Incident], list[Outcome], dict[str, list[str]]]:
    ledger = Ledger.open(path, read_only=True)
    try:
        latest = [kept.incident for kept in reversed(ledger.incidents(job=f"{JOB}/run-1", limit=10_000))]
        lives = [ledger.incident(incident.id) for incident in latest]
        incidents = [next((revision for revision in life if revision.culprits), life[-1]) for life in lives]
        stories = {each.id: [f"{moment.time:.2f} {moment.what}: {moment.text}" for moment in ledger.timeline(each.id)] for each in latest}
        return incidents, list(ledger.outcomes(limit=10_000)), stories
    finally:
        ledger.close()


# --- the verdict -------------------------------------------------------------------------------------------------


def rows_of(seen: Soaked) -> list[Row]:
    """What must not have happened, and what did."""
    stalls = [step for step in seen.steps if step.number in (ALL_AT, ONE_AT)]
    quiet = [step.seconds for step in seen.steps if step.end < seen.loaded and step.number > 5]
    loaded = [step.seconds for step in seen.steps if step.end >= seen.loaded]
    pace = f"median step {statistics.median(quiet) * 1000:.0f} ms" + (f", under load {statistics.median(loaded) * 1000:.0f} ms" if loaded else "")
    accused = "; ".join(f"{incident.cause}, {incident.culprits[0].entity}" for incident in seen.accusing)
    informing = Counter(incident.cause for incident in seen.incidents if not incident.culprits)
    did = Counter(outcome.action for outcome in seen.repairs)
    return [
        Row(f"healthy for {seen.seconds / 60:.0f} min: incidents with a culprit", f"{len(seen.accusing)}{f': {accused}' if accused else ''}", "0", not seen.accusing),
        Row("actions", ", ".join(f"{count} {action}" for action, count in did.items()) or "0", "0", not did),
        Row("incidents that inform and accuse nobody", ", ".join(f"{count} {cause}" for cause, count in informing.items()) or "0"),
        Row("steps; input stalled", f"{len(seen.steps)}, {pace}; {len(stalls)} times for {STALL_S:.0f} s"),
    ]


def main() -> int:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--load-from", type=float, help="seconds; default: half of the time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    with tempfile.TemporaryDirectory(prefix="eagle-eye-soak-") as folder:
        seconds = options.minutes * 60.0
        first = seconds / 2 if options.load_from is None else options.load_from
        seen = soak(Path(folder), seconds, (first, first + seconds / 6))
    for incident in seen.incidents:
        say("\n".join([f"incident {incident.id}: {incident.cause}", *(f"    {line}" for line in seen.stories[incident.id])]))
    return report(rows_of(seen), options.json, "a healthy job")


if __name__ == "__main__":
    sys.exit(main())
