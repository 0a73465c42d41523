"""From a fault to the incident that names its culprit, on a real job; and what must not be taken for a fault.

    python -m benchmarks.chain.detection [--kills 50] [--exceptions 10] [--stalls 5] [--nodes 3] [--calm 2] [--json]

Two nodes with an agent and a launcher each, a server, examples/train_gpt.py with two workers a node. Detectors and
diagnosis have their default settings; the engine is in auto mode and is told not to take one fault for the relapse
of another, for they come every few seconds.

The clock starts right before the signal or the order (an ordered exception is raised when torch next returns to
Python, which counts), and stops when the incident with the right culprit and cause can be read in the ledger by
another process, which looks every 2 ms. The next fault waits until the ledger calls the last one healed.
"""

import argparse
import itertools
import math
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chain.ledger_watch import Accusation, LedgerWatch
from benchmarks.report import Row, report
from eagle_eye.app import drills
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.app.demo.scenario import FAULTS, script
from eagle_eye.clock import SystemClock
from eagle_eye.stream.embedded import EmbeddedStream

CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[engine]
mode = "auto"
relapse_s = 0.05
throughput_share = 0.3

[guards.blast_radius]
nodes = 1000
share = 1.0

[guards.cooldown]
job_s = 0.0
node_s = 0.0
"""
CAUSES = {fault.kind: fault.causes for fault in FAULTS}
MISSED = math.inf
PATIENCE_S = 15.0
"""An incident that has not come by then was missed."""
HEALED_S = 60.0
STREAM_HELD_S = 5.0
CALM_S = 8.0
"""So long after the stream or the server is back, nobody may be accused."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What came of one fault."""

    seconds: float
    """Until the incident; MISSED."""
    wrong: tuple[str, ...]
    """Others that were accused until it was healed."""


@dataclass(slots=True)
class Field:
    """The job under fire."""

    demo_job: DemoJob
    watch: LedgerWatch
    chance: random.Random
    last: str = ""

    def worker(self, kind: str) -> Hit:
        """A drill on some worker, never twice on the same in succession: that would be a relapse."""
        place = self._ready()
        victim = self.chance.choice([worker for worker in self.demo_job.workers() if worker.name != self.last])
        self.last = victim.name
        truth = drills.ON_WORKER[kind](victim, self.demo_job.clock).truth
        return self._hit(kind, truth, truth.worker, place)

    def node(self, name: str) -> Hit:
        """kill -9 of agent, launcher and workers; then the node is started again."""
        place = self._ready()
        truth = self.demo_job.kill_node(name).truth
        hit = self._hit("node", truth, name, place, healed=lambda: self.demo_job.record.settled(truth.time))
        self.demo_job.start_node(name)
        self._wait("the node did not come back", lambda: self._whole(truth.time))
        return hit

    def stream(self) -> list[Accusation]:
        """Nobody can write to the stream for a while. Returns who was accused."""
        place = self._ready()
        held = drills.hold_stream(EmbeddedStream(self.demo_job.cluster.state_dir / "stream", clock=self.demo_job.clock), self.demo_job.clock)
        try:
            self.demo_job.clock.sleep(STREAM_HELD_S)
        finally:
            held.end()
        return self._calm(place)

    def server(self) -> list[Accusation]:
        """kill -9 of the server, which is started again at once. Returns who was accused."""
        place = self._ready()
        self.demo_job.cluster.restart_server()
        return self._calm(place)

    def iteration_s(self) -> float:
        """Median time between two steps, as the stream recorded them."""
        steps = self.demo_job.record.trace.steps
        gaps = [later.end - step.end for step, later in itertools.pairwise(steps) if later.number == step.number + 1]
        return statistics.median(gaps)

    # --- around a fault ------------------------------------------------------------------------------------------

    def _ready(self) -> int:
        """Some healthy steps, then a moment drawn at random within a step."""
        self.demo_job.wait_steps(self.chance.randint(3, 8), HEALED_S)
        self.demo_job.clock.sleep(self.chance.uniform(0.0, 0.1))
        return self.watch.count()

    def _hit(self, kind: str, truth: drills.GroundTruth, culprit: str, place: int, healed: Callable[[], bool] | None = None) -> Hit:
        found = self.watch.wait(place, culprit, CAUSES[kind], PATIENCE_S)
        self._wait(f"{kind} of {culprit} was not healed", healed or (lambda: self._whole(truth.time) and self.demo_job.record.settled(truth.time)))
        accused = self.watch.since(place)
        wrong = tuple(f"{each.entity}: {each.cause}" for each in accused if each.entity != culprit)
        hit = Hit(found.time - truth.time if found else MISSED, wrong)
        say(f"{kind} {culprit}: {hit.seconds * 1000:.0f} ms{''.join(f', also accused {wrong}' for wrong in hit.wrong)}")
        if found is None:
            say("  accused: " + ("; ".join(f"{each.entity} ({each.cause}) after {each.time - truth.time:.2f} s" for each in accused) or "nobody"))
        return hit

    def _calm(self, place: int) -> list[Accusation]:
        back, before = self.demo_job.clock.now(), self.demo_job.record.trace.highest()
        self._wait("no step was recorded any more", lambda: self.demo_job.clock.now() - back >= CALM_S and self.demo_job.record.trace.highest() > before)
        accused = self.watch.since(place)
        say("accused: " + ("; ".join(f"{each.entity} ({each.cause})" for each in accused) or "nobody"))
        return accused

    def _whole(self, since: float) -> bool:
        """All workers take part, and have done a step after that moment."""
        steps = self.demo_job.record.trace.steps
        return self.demo_job.full() and bool(steps) and steps[-1].end > since

    def _wait(self, wrong: str, condition: Callable[[], bool]) -> None:
        if self.demo_job.wait(condition, HEALED_S):
            return
        say(f"  {wrong} within {HEALED_S:.0f} s")
        for node in self.demo_job.record.trace.layout.excluded if self.demo_job.record.trace.layout else ():
            self.demo_job.release(node)


@contextmanager
def field(folder: Path, seed: int) -> Iterator[Field]:
    """A job that trains, watched; ended with everything around it."""
    command = (sys.executable, str(script()), "--steps", "1000000", "--checkpoint-every", "10", "--evaluate-every", "1000000")
    demo_job = DemoJob(folder=folder, config=CONFIG, command=command, job="bench/detection", heal="restart:1000", clock=SystemClock())
    demo_job.start()
    try:
        with LedgerWatch(demo_job.cluster.state_dir / "ledger.sqlite", "bench/detection/run-1", demo_job.clock) as watch:
            if not demo_job.wait(lambda: demo_job.record.trace.highest() >= 30, 90.0):
                raise SystemExit("the job did not get going:\n" + demo_job.cluster.tail("launcher-node-a"))
            yield Field(demo_job, watch, random.Random(seed))
    finally:
        demo_job.stop()


# --- the figures -------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    """By nearest rank, so that a missed one counts as endless."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def seconds(value: float) -> str:
    """For people."""
    return "missed" if value == MISSED else f"{value * 1000:.0f} ms" if value < 1.0 else f"{value:.2f} s"


def row(what: str, hits: Sequence[Hit], share: float, goal_s: float, peer: str, peer_s: float) -> Row:
    """A quantile beside its goal; met only if none was missed and nobody else accused."""
    value = quantile([hit.seconds for hit in hits], share)
    missed, wrong = sum(hit.seconds == MISSED for hit in hits), sum(bool(hit.wrong) for hit in hits)
    beside = [f"{missed} missed"] * bool(missed) + [f"{wrong} with a wrong culprit beside"] * bool(wrong)
    met = value <= goal_s and not beside
    return Row(what, ", ".join([seconds(value), *beside]), f"≤ {seconds(goal_s)}", met, f"{peer} {peer_s:g} s", f"{peer_s / value:.0f}×")


def rows_of(found: dict[str, list[Hit]], iteration_s: float) -> list[Row]:
    """Every fault beside its goal and beside what others say of themselves."""
    kills, raised, nodes = found["kill"], found["exception"], found["node"]
    rows = []
    if kills:
        rows.append(row(f"worker killed → incident naming it, median of {len(kills)}", kills, 0.5, 0.05, "Unicron", 1.8))
        rows.append(row("the same, p99 by nearest rank", kills, 0.99, 0.2, "Unicron", 1.8))
    if raised:
        rows.append(row(f"exception ordered → incident with type and worker, median of {len(raised)}", raised, 0.5, 0.05, "Unicron", 0.3))
    for kind, words, peer, peer_s in (("stop", "worker stopped (SIGSTOP)", "NCCL's time-out", 600.0), ("hang", "hang in Python", "DLRover", 300.0)):
        if found[kind]:
            what = f"{words} → incident naming it, slowest of {len(found[kind])}; an iteration takes {seconds(iteration_s)}"
            rows.append(row(what, found[kind], 1.0, max(3 * iteration_s, 2.0), peer, peer_s))
    if nodes:
        rows.append(row(f"node killed → incident naming it, slowest of {len(nodes)}", nodes, 1.0, 3.0, "Unicron", 5.6))
    return rows


def calm_row(what: str, accused: Sequence[list[Accusation]]) -> Row:
    """Nothing was broken that anybody can be blamed for."""
    blamed = [f"{each.entity} ({each.cause})" for times in accused for each in times]
    return Row(f"{what}, {len(accused)} times → incidents with a culprit", "; ".join(blamed) or "0", "0", not blamed)


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--exceptions", type=int, default=10)
    parser.add_argument("--stalls", type=int, default=5, help="of each kind")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--calm", type=int, default=2, help="how often the stream is stopped and the server restarted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    repeats = {"kill": options.kills, "exception": options.exceptions, "stop": options.stalls, "hang": options.stalls}
    with tempfile.TemporaryDirectory(prefix="eagle-eye-detection-") as folder, field(Path(folder), options.seed) as under_fire:
        iteration_s = under_fire.iteration_s()
        say(f"an iteration takes {iteration_s * 1000:.0f} ms")
        found = {kind: [under_fire.worker(kind) for _ in range(count)] for kind, count in repeats.items()}
        names = under_fire.demo_job.nodes
        found["node"] = [under_fire.node(names[turn % len(names)]) for turn in range(options.nodes)]
        calm: dict[str, list[list[Accusation]]] = {"stream": [], "server": []}
        for kind in [*["stream"] * options.calm, *["server"] * options.calm]:
            calm[kind].append(under_fire.stream() if kind == "stream" else under_fire.server())
            found["afterwards"] = [*found.get("afterwards", []), under_fire.worker("kill")]
    rows = rows_of(found, iteration_s)
    if options.calm:
        rows.append(calm_row(f"only the stream stopped for {STREAM_HELD_S:.0f} s", calm["stream"]))
        rows.append(calm_row("only the server killed and started again", calm["server"]))
        rows.append(row("worker killed after that → incident naming it, slowest", found["afterwards"], 1.0, 0.2, "Unicron", 1.8))
    return report(rows, options.json, "from the fault to the incident that names the culprit")


if __name__ == "__main__":
    sys.exit(main())
