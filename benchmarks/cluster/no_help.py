"""An action that does not help: noticed, undone, breaker open, person told.

    python -m benchmarks.cluster.no_help [--runs 1] [--json]

A real job (examples/train_gpt.py, two nodes with two workers each) becomes slow for a reason that clings to its last
rank and not to a node, as a script's or a data set's does. The engine is in auto mode with the settings that it is
shipped with: it restarts, leaves the accused node out as that does not help, sees that the throughput does not come back as it had
predicted, lets the innocent node in again, opens the breaker and writes to a person, whose notification a receiver takes.
"""

import argparse
import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.cluster.storm import Receiver
from benchmarks.report import Row, report
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.app.demo.scenario import MODEL
from eagle_eye.clock import SystemClock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Breaker, Outcome

SCRIPT = Path(__file__).with_name("clinging_gpt.py")
ACTION = "evict_node"
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[engine]
mode = "auto"

[history]
enabled = false

[actions.notify]
receivers = [{ name = "bench", kind = "plain", url = "http://127.0.0.1:NOTIFICATIONS/" }]
"""
HEALTHY_STEPS = 60
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds, of one run; each from the end of the one before."""

    acted_s: float
    """From the slow-down's beginning to the node's being left out."""
    noticed_s: float
    """To the verdict that it did not help ..."""
    predicted_s: float
    """... by when it was said, before the action, that it would have."""
    undone_s: float
    """To the epoch in which the node takes part again."""
    told_s: float
    """From the verdict to the receiver's having the notification that names the breaker."""
    share: float
    """Throughput after the action, of what was predicted."""


@dataclass(slots=True)
class Trial:
    """One job, from its start to the person's notification."""

    demo_job: DemoJob
    receiver: Receiver

    def run(self) -> Measured:
        """Raises EagleEyeError for what did not come."""
        demo_job, clock = self.demo_job, self.demo_job.clock
        demo_job.start()
        self._wait("a healthy job", lambda: demo_job.full() and demo_job.record.trace.highest() >= HEALTHY_STEPS)
        began = clock.now()
        Path(os.environ["SLOW_WHILE"]).touch()
        self._wait("the node to be left out", lambda: self._nodes() == 1)
        acted = clock.now()
        self._wait("the breaker", self._breakers)
        noticed = clock.now()
        [breaker] = self._breakers()
        self._wait("a notification", lambda: any(breaker.id in str(notification.get("news", "")) for notification in self.receiver.notifications))
        told = clock.now()
        self._wait("the node to take part again", lambda: self._nodes() == 2)
        undone = clock.now()
        failed = self._failed()
        return Measured(
            acted_s=acted - began, noticed_s=noticed - acted, predicted_s=failed.predicted["verify_s"], undone_s=undone - noticed,
            told_s=told - noticed, share=failed.actual["throughput_per_s"] / failed.predicted["throughput_per_s"],
        )  # fmt: skip

    def _wait(self, what: str, condition: Callable[[], object]) -> None:
        if not self.demo_job.wait(lambda: bool(condition()), PATIENCE_S):
            raise EagleEyeError(f"waited {PATIENCE_S:g} s in vain for {what}:\n{self.demo_job.cluster.tail('server')}")

    def _nodes(self) -> int:
        layout = self.demo_job.record.trace.layout
        return len(layout.nodes) if layout is not None else 0

    def _breakers(self) -> list[Breaker]:
        with self._ledger() as ledger:
            return [breaker for breaker in ledger.breakers() if breaker.action == ACTION]

    def _failed(self) -> Outcome:
        with self._ledger() as ledger:
            return next(outcome for outcome in ledger.outcomes() if (outcome.action, outcome.state) == (ACTION, "failed"))

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        with contextlib.closing(Ledger.open(self.demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
            yield ledger


def main(arguments: Sequence[str]) -> int:
    """Run, print, exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    os.environ["EAGLE_EYE_BENCH_SECRET"] = secrets.token_hex(16)
    runs = [one() for _ in range(options.runs)]
    return report(rows(runs), json=options.json, title="an action that does not help")


def one() -> Measured:
    """One job of its own."""
    receiver = Receiver()
    with tempfile.TemporaryDirectory(prefix="nohelp") as folder:  # short: paths of unix sockets are limited
        command = (sys.executable, str(SCRIPT), "--steps", "1000000", *MODEL)
        config = CONFIG.replace("NOTIFICATIONS", str(receiver.port))
        os.environ["SLOW_WHILE"] = str(Path(folder) / "slow")
        demo_job = DemoJob(folder=Path(folder), config=config, command=command, job="bench/gpt", clock=SystemClock())
        try:
            return Trial(demo_job, receiver).run()
        finally:
            demo_job.stop()
            receiver.close()


def rows(runs: Sequence[Measured]) -> list[Row]:
    """Medians over the runs."""

    def middle(name: str) -> float:
        return float(median(getattr(run, name) for run in runs))

    acted = f"left out {middle('acted_s'):.0f} s after the slow-down began"
    noticed = f"noticed {middle('noticed_s'):.1f} s later (it was predicted to have helped by {middle('predicted_s'):.1f} s)"
    undone = f"undone {middle('undone_s'):.1f} s after that, breaker open, notification with the receiver after {middle('told_s'):.1f} s"
    return [
        Row(
            what="an action that does not help: noticed, undone, breaker open, person told",
            figure=f"{acted}; {noticed}; {undone}",
            goal="all four",
            met=True,  # a run that lacks one of them ends with an error
            peer="none of the peers looks whether its action has helped",
        ),
        Row(what="throughput after the action, of what was predicted before it", figure=f"{middle('share'):.0%}", goal="< 90 %: no help", met=middle("share") < 0.9),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
