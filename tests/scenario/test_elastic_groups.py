"""Groups of elastic workers in real processes: killed, stopped, dead while they meet, and without their store."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.launcher_sessions import FakeLauncher

ROOT = Path(__file__).parents[2]
PATIENCE_S = 150.0

WORKER = """
import os, signal, sys
from pathlib import Path
import torch
from eagle_eye.errors import Broken, Fenced, LauncherLost
from eagle_eye.training.elastic.launcher_session import LauncherSession
from eagle_eye.training.elastic.process_group import gloo
from eagle_eye.training.elastic.process_group.process_group import form

path, name, act = sys.argv[1:]
session = LauncherSession.connect(path, name, os.getpid())
session.join(epoch=0, step=0, micro_batches=4, segments=1, layers=[], fresh=True)

if act == "child":  # as a loader of data does
    if os.fork() == 0:
        signal.pause()
if act in ("kill-meeting", "stop-meeting"):  # tells its address, then is gone
    tell = gloo.SessionStore.set
    def told(store, key, value):
        tell(store, key, value)
        os.kill(os.getpid(), signal.SIGKILL if act == "kill-meeting" else signal.SIGSTOP)
    gloo.SessionStore.set = told

def reduce_until_it_breaks(group, session):
    tensor = torch.empty(1 << 18)
    number = 0
    while True:
        tensor.fill_(1.0)
        group.all_reduce(tensor)
        assert tensor[0] == group.world, tensor[0]
        number += 1
        Path(path + name).write_text(str(number))
        if number == 5:
            session.send("resumed", epoch=group.epoch, world=group.world)

epoch = -1
while True:
    try:
        assignment = session.next_assignment(epoch)
        epoch = assignment.epoch
        group = form(session, assignment)
        session.use_group(group)
        reduce_until_it_breaks(group, session)
    except (Broken, Fenced) as error:
        session.send("stopped", epoch=epoch, why=type(error).__name__)
    except LauncherLost:
        session.close()
        break
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        select.select([], [], [], 0.005)


class Job:
    """A launcher that does what the test says, and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = FakeLauncher(str(folder / "s"), patience_s=PATIENCE_S)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str, act: str = "") -> None:
        for name in names:
            env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-c", WORKER, self.launcher.path, name, act]
            self.processes[name] = subprocess.Popen(command, env=env, start_new_session=True)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def works(self, epoch: int, *names: str) -> None:
        """Wait until they have computed the right sums together in that epoch."""
        for name in names:
            told = self.launcher.wait_for("resumed", name, epoch=epoch)
            assert told["world"] == len(names)

    def sums(self, name: str) -> int:
        """How many it has computed in its group."""
        return int((self.folder / f"s{name}").read_text() or "0")

    def form(self, epoch: int, *names: str) -> None:
        self.launcher.form(epoch, *names)

    def end(self) -> None:
        self.launcher.close()
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)


@pytest.fixture
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="elastic") as folder:
        made = Job(Path(folder))
        yield made
        made.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_are_freed_and_go_on(job: Job, number: signal.Signals) -> None:
    names = ("a", "b", "c", "d")
    job.start(*names)
    job.form(1, *names)
    job.works(1, *names)
    job.signal("c", number)  # in the middle of an all-reduce, as there is nothing else
    job.form(2, "a", "b", "d")
    for name in ("a", "b", "d"):
        assert job.launcher.wait_for("stopped", name, epoch=1)["why"] in ("Broken", "Fenced")
    job.works(2, "a", "b", "d")


def test_a_stopped_worker_that_wakes_up_is_out_of_the_group(job: Job) -> None:
    job.start("a", "b", "c")
    job.form(1, "a", "b", "c")
    job.works(1, "a", "b", "c")
    job.signal("b", signal.SIGSTOP)
    job.form(2, "a", "c")
    job.works(2, "a", "c")
    job.signal("b", signal.SIGCONT)
    job.form(3, "a", "b", "c")  # the fence frees it where gloo has lost the end of its all-reduce
    assert job.launcher.wait_for("stopped", "b", epoch=1)["why"] in ("Broken", "Fenced")
    job.works(3, "a", "b", "c")


@pytest.mark.parametrize("act", ["kill-meeting", "stop-meeting"])
def test_who_is_lost_while_the_group_meets_holds_nobody_up(job: Job, act: str) -> None:
    job.start("a", "b")
    job.start("c", act=act)
    job.form(1, "a", "b", "c")
    for name in ("a", "b"):
        job.launcher.wait_for("store", name, op="get")
    lost = job.processes["c"].pid
    os.waitid(os.P_PID, lost, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    job.form(2, "a", "b")
    job.works(2, "a", "b")
    for name in ("a", "b"):
        assert job.launcher.wait_for("stopped", name, epoch=1)["why"] in ("Broken", "Fenced")


def test_an_established_group_needs_no_store(job: Job) -> None:
    names = ("a", "b", "c")
    job.start(*names)
    job.form(1, *names)
    job.works(1, *names)
    job.launcher.close()
    before = {name: job.sums(name) for name in names}
    until(lambda: all(job.sums(name) > before[name] + 20 for name in names), "sums without a store")


def test_what_a_worker_has_forked_does_not_keep_its_session_open(job: Job) -> None:
    job.start("a", act="child")
    job.form(1, "a")
    job.signal("a", signal.SIGKILL)
    job.launcher.wait_for_disconnect("a")
