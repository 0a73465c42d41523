"""How each fault is made: from outside, by signals, a cgroup, the network, a mount, other processes and a clock; or by an order to the script."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psutil

from benchmarks.chain.soak import BUSY
from benchmarks.faults.parts_away.parted_network import PartedNetwork
from benchmarks.harm.deployment import HarmJob
from benchmarks.harm.limits import MemoryLimit
from benchmarks.watch.live.orders import EVERYBODY, give, take_back
from eagle_eye.app.drills import running_workers

AHEAD = 8
"""Steps until all ranks do what they are ordered to do in the same one."""
ROUND_S = 0.2
"""Of a worker that is stopped again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a strike may get at."""

    job: HarmJob
    rank: int
    """EVERYBODY: all ranks."""
    node: int
    """Of the job, 0 or 1."""
    network: PartedNetwork | None
    """None: this machine allows none."""
    first: int
    """Number of the job's first node there."""
    memory: MemoryLimit | None

    @property
    def pid(self) -> int:
        """Of the worker with that rank. Raises LookupError where none runs."""
        runs = [self.job.deployment.cluster.run_dir(node) for node in self.job.nodes]
        [pid] = [each.pid for each in running_workers(runs) if each.job == self.job.name and each.rank == self.rank] or [0]
        if not pid:
            raise LookupError(f"no worker has rank {self.rank}")
        return pid

    @property
    def next_step(self) -> int:
        """One that nobody has begun."""
        return max((each.step for each in self.job.commits.look()), default=0) + AHEAD


Strike = Callable[[Target], AbstractContextManager[None]]
"""What has been made is over when it is left."""


def signalled(number: signal.Signals) -> Strike:
    """A signal from outside."""

    @contextlib.contextmanager
    def strike(target: Target) -> Iterator[None]:
        pid = target.pid
        os.kill(pid, number)
        try:
            yield
        finally:
            if number == signal.SIGSTOP:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return strike


def ordered(order: str, amount: float = 1.0) -> Strike:
    """The script does it, from the next step on, as long as it is not over."""

    @contextlib.contextmanager
    def strike(target: Target) -> Iterator[None]:
        if target.memory is not None:
            target.memory.lower(target.job.folder)
        give(target.job.folder, order, target.rank, amount, step=target.next_step if target.rank == EVERYBODY else 0)
        try:
            yield
        finally:
            take_back(target.job.folder, order, target.rank)

    return strike


def stopped_by_turns(share: float) -> Strike:
    """Stopped and continued from outside, several times a second: it runs for the rest of the time."""

    @contextlib.contextmanager
    def strike(target: Target) -> Iterator[None]:
        over, pid = threading.Event(), target.pid

        def stop_and_go() -> None:
            with contextlib.suppress(ProcessLookupError):
                while not over.is_set():
                    os.kill(pid, signal.SIGSTOP)
                    over.wait(share * ROUND_S)
                    os.kill(pid, signal.SIGCONT)
                    over.wait((1.0 - share) * ROUND_S)

        thread = threading.Thread(target=stop_and_go, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    return strike


def _network(target: Target) -> PartedNetwork:
    if target.network is None:
        raise PermissionError("no network of its own can be made here: it needs root and iproute2")
    return target.network


def slow_link(mbit: float) -> Strike:
    """The node's link carries so many Mbit/s, each way."""
    return lambda target: _network(target).slowed(target.first + target.node, mbit)


def lossy_link(share: float) -> Strike:
    """So many of the packets that the node sends are lost; 1: all, and it still gets the others'."""
    return lambda target: _network(target).lossy(target.first + target.node, share)


def others_compute(processes_per_core: int) -> Strike:
    """Processes of somebody else on the cores of the machine, each in a session of its own: the kernel shares out processors among sessions."""

    @contextlib.contextmanager
    def strike(_: Target) -> Iterator[None]:
        count = processes_per_core * (psutil.cpu_count() or 1)
        with _ended([subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(count)]):
            yield

    return strike


@contextlib.contextmanager
def _ended(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def clock_set(seconds: float) -> Strike:
    """The clocks of the nodes that were started for it jump."""

    @contextlib.contextmanager
    def strike(target: Target) -> Iterator[None]:
        target.job.clock.shift(seconds)
        try:
            yield
        finally:
            target.job.clock.shift(0.0)

    return strike


@contextlib.contextmanager
def nothing(_: Target) -> Iterator[None]:
    """The job goes on, or comes to its end."""
    yield
