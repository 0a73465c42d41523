"""What proves that a launcher is gone whose session broke, and what does not."""

import asyncio
from collections.abc import Callable

import pytest

from eagle_eye.activity.hang_verdict import ProcessLook
from eagle_eye.activity.thread_wait import ThreadWait, WaitKind
from eagle_eye.clock import FakeClock
from eagle_eye.config import StallConfig
from fakes.process_looks import ALL_REDUCE, SOCKET, TRAIN, VALIDATE, FakeProcesses, look
from remediation.launcher.launcher_loss_witness import LauncherLossWitness, Proof, WorkerMarks

LEASE_S, STALL = 2.0, StallConfig()


Sight = Callable[[int], ProcessLook | None]

WAITS: Sight = lambda _: look(ALL_REDUCE, TRAIN, wait=SOCKET)  # noqa: E731 - a table of them
WORKS: Sight = lambda number: look(TRAIN if number % 2 else VALIDATE, cpu_s=float(number))  # noqa: E731
HANGS: Sight = lambda _: look(TRAIN)  # noqa: E731
STOPPED: Sight = lambda _: look(TRAIN, state="T")  # noqa: E731
TRACED: Sight = lambda _: look(TRAIN, state="t", tracer="gdb, process 9")  # noqa: E731
UNREADABLE: Sight = lambda _: look(wait=SOCKET)  # noqa: E731
GONE: Sight = lambda _: None  # noqa: E731
COMPUTES_OR_WAITS: Sight = lambda _: look(TRAIN, wait=ThreadWait(WaitKind.LOCK, caller="libcuda.so.580.65.06"), uses_gpu=True)  # noqa: E731


class Node:
    """A node's workers, and what a server says of the other node."""

    def __init__(self, *sights: Sight, present: bool | None = False, step_s: float | None = 0.1, silent: bool = False, ended: bool = False) -> None:
        async def refused(_address: str) -> bool:
            return ended

        self.clock, self.processes, self.present = FakeClock(), FakeProcesses(), present
        self.processes.sights = dict(enumerate(sights))
        self.marks = [1] * len(sights)
        self.step_s = step_s
        self.witness = LauncherLossWitness(self.clock, LEASE_S, STALL, self._workers, self.processes.inspector(self.clock), lambda _: silent, refused)
        self.witness.look()

    def _workers(self) -> list[WorkerMarks]:
        return [WorkerMarks(str(number), number, marks, self.step_s) for number, marks in enumerate(self.marks)]

    def after(self, seconds: float) -> bool:
        """Whether the node is proved to be gone once its session has been broken for so long."""
        self.witness.waits()
        self.clock.advance(seconds)
        self.witness.waits()
        self.witness.look()

        async def present() -> bool | None:
            return self.present

        return asyncio.run(self.witness.proves(seconds, present, ["10.0.0.7:29400"])) is not Proof.NONE


def test_workers_that_wait_and_a_server_that_hears_nothing_prove_the_loss() -> None:
    assert not Node(WAITS, WAITS).after(1.0), "a lease has not passed"
    assert Node(WAITS, WAITS).after(2.1)


@pytest.mark.parametrize("sight", [WORKS, HANGS, STOPPED, TRACED, UNREADABLE, GONE])
def test_twin_one_worker_here_that_does_anything_else_is_why_nobody_goes_on(sight: Sight) -> None:
    """A script that is being evaluated, or compiled, or that nobody can look into, may take for ever."""
    assert not Node(WAITS, sight).after(3600.0)


def test_twin_steps_that_go_on_prove_that_everybody_is_there() -> None:
    node = Node(WAITS)
    for _ in range(20):
        node.marks[0] += 1
        assert not node.after(1.0)


def test_twin_a_node_that_the_server_hears_of_is_there() -> None:
    assert not Node(WAITS, present=True).after(3600.0)


def test_without_a_server_a_peer_may_be_in_a_pause() -> None:
    assert not Node(WAITS, present=None).after(29.0)
    assert Node(WAITS, present=None).after(31.0)


def test_a_host_that_acknowledges_nothing_is_gone_whatever_the_server_hears() -> None:
    assert Node(WAITS, present=None, silent=True).after(2.1)
    assert Node(WAITS, present=True, silent=True).after(2.1), "its network to us is gone, and training needs that"
    assert not Node(WAITS, WORKS, present=None, silent=True).after(60.0), "the twin: nobody waits for it yet"


def test_a_launcher_whose_host_says_that_it_has_ended_is_gone_unless_steps_are_completed() -> None:
    """Workers that look for a peer that died before they had met poll, and are seen to work."""
    assert not Node(WORKS, present=True, ended=True).after(1.0), "a lease has not passed"
    node = Node(WORKS, present=True, ended=True)
    assert node.after(2.1)
    node.marks[0] += 1
    assert not node.after(0.6), "the twin: a firewall refuses the control channel, and training goes on"


def test_a_gpu_that_may_compute_is_waited_for_as_long_as_steps_take() -> None:
    gpu = COMPUTES_OR_WAITS
    assert not Node(gpu, step_s=20.0).after(59.0)
    assert Node(gpu, step_s=20.0).after(61.0)
    assert not Node(gpu, step_s=None).after(29.0)


def test_processes_are_looked_into_only_while_somebody_asks() -> None:
    node = Node(WAITS)
    assert node.processes.looks == 0
    node.after(0.6)
    looked = node.processes.looks
    assert looked > 0
    for _ in range(20):
        node.clock.advance(6.0)
        node.witness.look()
    assert node.processes.looks == looked
