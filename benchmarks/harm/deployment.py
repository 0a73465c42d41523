"""One server in auto mode with the settings that it is shipped with, and jobs of two nodes and four workers beside one another."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.elastic.commits import Commits
from benchmarks.harm.clock_jump import JumpingClock
from benchmarks.harm.host_network import LOOPBACK, HostNetwork
from benchmarks.harm.plan import COMMITS, Note, Plan, notes
from benchmarks.processes import naming
from eagle_eye import wire
from eagle_eye.access.addresses import is_loopback
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Event, Incident, Layout, Notice, Outcome

CONFIG = """\
[server]
listen = "{listen}"
http = ""
insecure = {insecure}

[history]
enabled = false

[engine]
mode = "auto"
"""
ROOT = Path(__file__).parents[2]
WORKERS = 4
LOOK_S = 0.03
GRACE_S = 15.0
START_S = 120.0
NO_REPAIR = frozenset({"notify", "dump"})
"""Actions that change nothing."""
SCRIPTS: dict[str, tuple[str, ...]] = {
    "marked": ("benchmarks.harm.train_plain", "--marks"), "unmarked": ("benchmarks.harm.train_plain",),
    "elastic": ("benchmarks.harm.train_elastic",),
    "marked, computes": ("benchmarks.harm.train_plain", "--marks", "--compute-s", "0.02"), "unmarked, computes": ("benchmarks.harm.train_plain", "--compute-s", "0.02"),
    "marked, ordered": ("benchmarks.watch.live.train", "--marks"), "unmarked, ordered": ("benchmarks.watch.live.train",),
    "marked, exchanges": ("benchmarks.harm.train_plain", "--marks", "--width", "512"), "unmarked, exchanges": ("benchmarks.harm.train_plain", "--width", "512"),
}  # fmt: skip
"""Kind of script → module and options."""

Result = TypeVar("Result")
Turns = Generator[None, None, Result]
"""Work that yields whenever it waits."""


@dataclass(slots=True)
class JobRecord:
    """What the stream says of one job."""

    layouts: list[Layout] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def full_at(self) -> int:
        """The first epoch with all workers; -1 before it."""
        return next((layout.epoch for layout in self.layouts if len(layout.placements) == WORKERS), -1)

    @property
    def later_epochs(self) -> list[Layout]:
        """Those that followed the first one with all workers, each once."""
        return list({layout.epoch: layout for layout in self.layouts if 0 <= self.full_at < layout.epoch}.values())


class Deployment:
    """The server, and a reader of what everybody writes down."""

    def __init__(self, folder: Path, network: HostNetwork = LOOPBACK) -> None:
        self.folder, self.network = folder, network
        file = folder / "eagle-eye.toml"
        listen = f"{network.server}:{free_port()}"
        file.write_text(CONFIG.format(listen=listen, insecure="false" if is_loopback(listen) else "true"))
        os.environ["PYTHONPATH"] = str(ROOT)
        self.cluster = LocalCluster(folder=folder, config_file=file, clock=SystemClock(), state_dir=folder / "state")
        self.start_server()
        self.jobs: dict[str, JobRecord] = {}
        self._stream = EmbeddedStream(folder / "state" / "stream")
        self._offsets: dict[int, int] = {}
        self._reader = wire.RecordReader()
        self._ledger: Ledger | None = None

    def start_server(self) -> None:
        """On its host; returns at once."""
        with self.network.entered(None):
            self.cluster.start_server()

    def close(self) -> None:
        """End what runs."""
        self.cluster.stop()
        self._stream.close()
        if self._ledger is not None:
            self._ledger.close()

    def look(self) -> None:
        """Take in what is new. Raises EagleEyeError when the server has ended."""
        self.cluster.check()
        for partition in range(self._stream.partitions(OBSERVATIONS)):
            while messages := self._stream.read(OBSERVATIONS, partition, self._offsets.get(partition, 0)):
                self._offsets[partition] = messages[-1].offset + 1
                for message in messages:
                    record = self._reader.read(message.value)
                    if isinstance(record, Layout):
                        self.jobs.setdefault(record.job, JobRecord()).layouts.append(record)
                    elif isinstance(record, Event) and record.job:
                        self.jobs.setdefault(record.job, JobRecord()).events.append(record)

    def record(self, job: str) -> JobRecord:
        """Of a job, empty before its first words."""
        return self.jobs.setdefault(job, JobRecord())

    def incidents(self, job: str) -> list[Incident]:
        """All revisions, oldest incident first."""
        ledger = self._opened()
        kept = ledger.incidents(job=job, limit=1000) if ledger is not None else ()
        return [revision for each in reversed(kept) if ledger is not None for revision in ledger.incident(each.incident.id)]

    def repairs(self, job: str) -> list[Outcome]:
        """Actions that change something, done or begun for this job's incidents."""
        ledger = self._opened()
        if ledger is None:
            return []
        ids = {incident.id for incident in self.incidents(job)}
        return [outcome for each in sorted(ids) for outcome in ledger.outcomes(incident=each) if outcome.action not in NO_REPAIR]

    def notices(self, since: float) -> list[Notice]:
        """What Eagle Eye told about itself and its telemetry since then, oldest first."""
        ledger = self._opened()
        return list(reversed(ledger.notices(since=since, limit=1000))) if ledger is not None else []

    def _opened(self) -> Ledger | None:
        if self._ledger is None:
            with contextlib.suppress(LedgerError):  # it is being made at this moment
                self._ledger = Ledger.open(self.folder / "state" / "ledger.sqlite", read_only=True)
        return self._ledger


class HarmJob:
    """Two nodes of two workers each, under launchers with their defaults."""

    def __init__(self, deployment: Deployment, name: str, script: str, plan: Plan, heal: str = "", options: Sequence[str] = (), network: HostNetwork | None = None) -> None:
        """`heal`: as on the command line; '' for what suits the script. `options`: further ones of the launcher. `network`: where its nodes are, if not in the deployment's."""
        self.deployment, self.name, self.script, self.plan = deployment, f"bench/{name}/run-1", script, plan
        self._options, self._network = options, network or deployment.network
        self._heal = heal or ("in-place" if script == "elastic" else "")
        self.folder = deployment.folder / "jobs" / name
        self._short = name
        self.nodes = (f"{name}a", f"{name}b")
        self.clock = JumpingClock(file=self.folder / "clock")
        self.commits = Commits(self.folder / COMMITS)

    @property
    def record(self) -> JobRecord:
        return self.deployment.record(self.name)

    @property
    def notes(self) -> list[Note]:
        return notes(self.folder)

    def start(self, *, jumping: int = 0) -> None:
        """Returns at once. So many nodes, the last ones, have a wall clock that may jump (`clock`)."""
        self.plan.write(self.folder)
        self.clock.shift(0.0)
        network = self._network
        rendezvous = f"{network.address(0)}:{free_port()}"
        module, *options = SCRIPTS[self.script]
        command = [sys.executable, "-m", module, *options, "--folder", str(self.folder)]
        for number, node in enumerate(self.nodes):
            listen = rendezvous if number == 0 else f"{network.address(number)}:0"
            launch = [
                "--listen", listen, "--rdzv", rendezvous, "--job", f"bench/{self._short}", "--run-id", "run-1", "--nnodes", "1:2",
                "--nproc-per-node", str(WORKERS // 2), *(["--heal", self._heal] if self._heal else []), *self._options, "--", *command,
            ]  # fmt: skip
            jumps = number >= len(self.nodes) - jumping
            with network.entered(number), self.clock.inherited() if jumps else contextlib.nullcontext():
                self.deployment.cluster.start_node(node, launch)

    @property
    def pids(self) -> list[int]:
        """Of the launchers."""
        return [process.pid for process in self._launchers()]

    @property
    def over(self) -> bool:
        """Both launchers have ended."""
        return all(process.poll() is not None for process in self._launchers())

    @property
    def succeeded(self) -> bool:
        return all(process.poll() == 0 for process in self._launchers())

    def stop(self) -> Turns[None]:
        """End launchers, then agents."""
        for processes in (self._launchers(), [self.deployment.cluster.nodes[node].agent for node in self.nodes]):
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            yield from until(lambda processes=processes: all(each.poll() is not None for each in processes), GRACE_S)  # type: ignore[misc]
            for process in processes:
                if process.poll() is None:
                    process.kill()

    def rank_of(self, entity: str) -> int:
        """Of a worker by its name, in any epoch; -1 if it is none of this job."""
        found = [place.rank for layout in self.record.layouts for place in layout.placements if place.worker == entity]
        return found[0] if found else -1

    def node_of(self, rank: int) -> str:
        """Where a rank was placed in the first epoch of all workers."""
        [first, *_] = [layout for layout in self.record.layouts if layout.epoch == self.record.full_at]
        return next(place.node for place in first.placements if place.rank == rank)

    def tail(self) -> str:
        """The last lines of the launchers' logs."""
        return "\n".join(self.deployment.cluster.tail(f"launcher-{node}", 6) for node in self.nodes)

    def _launchers(self) -> list[subprocess.Popen[bytes]]:
        return [self.deployment.cluster.nodes[node].launcher for node in self.nodes if node in self.deployment.cluster.nodes]


def until(condition: Callable[[], bool], seconds: float) -> Turns[bool]:
    """Wait in turns; False if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        yield
    return True


def side_by_side(look: Callable[[], None], work: Iterable[Turns[Result]], at_once: int) -> Iterator[Result]:
    """So many pieces of work at a time, each result as it comes. `look`: what is done between their turns."""
    waiting, running = iter(work), list[Turns[Result]]()
    while True:
        while len(running) < at_once and (fresh := next(waiting, None)) is not None:
            running.append(fresh)
        if not running:
            return
        look()
        for each in list(running):
            try:
                next(each)
            except StopIteration as end:
                running.remove(each)
                yield end.value
        time.sleep(LOOK_S)


def results_of(deployment: Deployment, work: Iterable[Turns[Result]], at_once: int, story: Callable[[Result], str] = str) -> list[Result]:
    """Of so many pieces of work at a time in one deployment; each is told to the person who watches as it comes."""
    results = []
    for each in side_by_side(deployment.look, work, at_once):
        say(story(each))
        results.append(each)
    return results


def leftovers(folder: Path) -> list[str]:
    """Processes that name this folder in their command or environment and should be gone."""
    return [f"{pid} {command}" for pid, command in naming(str(folder).encode()).items()]


def say(line: str) -> None:
    """To a person who watches; the figures go to standard output."""
    print(line, file=sys.stderr, flush=True)


