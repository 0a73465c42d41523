"""Real elastic workers that lose peers: the launcher's end is rehearsed, with the planner that the launcher uses."""

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import eagle_eye
from eagle_eye.training.ring_buffer import RingReader, StepRecord
from eagle_eye.types import StepReading
from fakes.elastic_processes import FORKS, plan
from fakes.launcher_sessions import FakeLauncher

MICRO_BATCHES = 8
STEPS = 6
NODE = "n0"
COLUMNS = ("step_s", "tokens", "loss")

def say(words: dict[str, object]) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def train(environment: dict[str, str], out: str, reduction: str) -> None:
    """A worker's whole life."""
    os.environ.update(environment)
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    layers = [nn.Linear(24, 64), nn.Sequential(nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64)), nn.Linear(64, 8)]

    def batch(step: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * step + micro_batch)
        return torch.randn(4, 24, generator=generator), torch.randn(4, 8, generator=generator)

    monitor = eagle_eye.monitor()
    worker = eagle_eye.elastic(
        layers, loss=nn.functional.mse_loss, batch=batch, micro_batches=MICRO_BATCHES, reduction=reduction,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False), clip=0.5, save_every=0,
    )  # fmt: skip
    for step in worker.steps(until=STEPS):
        loss = step.run()
        monitor.log(loss=loss, tokens=step.tokens)
        say({"step": step.number, "loss": loss, "shares": step.result.micro_batches})
    say({"digest": worker.train_state.digest()})
    os._exit(0)


class Job:
    """Workers as processes, and the launcher's end."""

    def __init__(self, folder: Path, launcher: FakeLauncher, reduction: str) -> None:
        self.launcher = launcher
        self._folder, self._reduction = folder, reduction
        self.processes: dict[str, ForkServerProcess] = {}

    def start(self, slot: int, faults: object = None, *, joining: bool = False) -> str:
        name = f"run/{NODE}/{slot}"
        environment = {
            "EAGLE_EYE_ELASTIC_SOCKET": self.launcher.path, "EAGLE_EYE_WORKER": name, "EAGLE_EYE_SLOT": str(slot),
            "EAGLE_EYE_NODE": NODE, "EAGLE_EYE_JOINING": "1" if joining else "", "OMP_NUM_THREADS": "1",
            "EAGLE_EYE_FAULTS": json.dumps([{"worker": slot, "incarnation": int(joining)} | fault for fault in faults or []]),
            "EAGLE_EYE_CHECKPOINT_DIR": str(self._folder / "checkpoints"), "GLOO_SOCKET_IFNAME": "lo", "EAGLE_EYE_RING": str(self.ring(slot)),
        }  # fmt: skip
        out = self._folder / f"{slot}{'-joined' if joining else ''}.out"
        self.processes[name] = FORKS.Process(target=train, args=(environment, str(out), self._reduction))
        self.processes[name].start()
        return name

    def lines(self, slot: int, joined: str = "") -> list[dict[str, object]]:
        text = (self._folder / f"{slot}{joined}.out").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def ring(self, slot: int) -> Path:
        return self._folder / f"{slot}.ring"

    def steps(self, slots: Iterable[int], *, begin: float) -> list[StepReading]:
        """What the workers have written for their node's agent, step by step, one a second."""
        told: dict[tuple[int, int], dict[str, StepRecord]] = {}
        for slot in slots:
            with RingReader.open(self.ring(slot)) as reader:
                for record in reader.steps(-1):
                    told.setdefault((record.number, record.epoch), {})[f"run/{NODE}/{slot}"] = record
        return [
            StepReading(
                source="training", workers=tuple(mine), names=COLUMNS, numbers=np.array([number]), epochs=np.array([epoch]),
                ends=np.full((1, len(mine)), begin + number + 1), values=np.array([[[each.values[name] for name in COLUMNS] for each in mine.values()]]),
            )
            for (number, epoch), mine in sorted(told.items())
        ]  # fmt: skip

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()

    def pid(self, name: str) -> int:
        return self.processes[name].pid or 0

    def check_ended(self, *names: str) -> None:
        for name in names:
            self.processes[name].join(60)
            assert self.processes[name].exitcode == 0

    def check_stopped(self, name: str) -> None:
        """Wait until the kernel has stopped it."""
        while Path(f"/proc/{self.pid(name)}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def play(tmp_path: Path, stack: ExitStack, reduction: str = "exact") -> Job:
    launcher = stack.enter_context(FakeLauncher(str(tmp_path / "launcher.sock"), plan))
    job = Job(tmp_path, launcher, reduction)
    stack.callback(job.end)
    return job


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """What a worker alone prints."""
    folder = tmp_path_factory.mktemp("alone")
    process = FORKS.Process(target=train, args=({"OMP_NUM_THREADS": "1", "EAGLE_EYE_CHECKPOINT_DIR": str(folder / "checkpoints")}, str(folder / "out"), "exact"))
    process.start()
    process.join(60)
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def check_same(job: Job, slots: list[int], undisturbed: list[dict[str, object]]) -> None:
    for slot in slots:
        lines = job.lines(slot)
        assert lines[-1] == undisturbed[-1], lines
        assert [line["loss"] for line in lines[:-1]] == [line["loss"] for line in undisturbed[:-1]]
        for line in lines[:-1]:
            brought = sorted(number for mine in line["shares"].values() for number in mine)
            assert brought == list(range(MICRO_BATCHES))


@pytest.mark.parametrize("phase", ["computing", "reducing", "committing", "applying"])
def test_a_worker_killed_in_a_step_changes_no_bit(phase: str, tmp_path: Path, stack: ExitStack, undisturbed: list[dict[str, object]]) -> None:
    job = play(tmp_path, stack)
    names = [job.start(slot, [{"step": 2, "phase": phase, "act": "kill"}] if slot == 1 else None) for slot in range(3)]
    job.launcher.wait_for_joins(*names)
    job.launcher.form(1, *names)
    job.launcher.wait_for_disconnect(names[1])
    job.launcher.form(2, names[0], names[2])
    job.check_ended(names[0], names[2])
    check_same(job, [0, 2], undisturbed)


def test_a_stopped_worker_is_left_behind_and_comes_back(tmp_path: Path, stack: ExitStack, undisturbed: list[dict[str, object]]) -> None:
    job = play(tmp_path, stack)
    names = [job.start(slot, [{"step": step, "phase": phase, "act": "stop"}]) for slot, (step, phase) in enumerate([(4, "computing"), (2, "reducing")])]
    job.launcher.wait_for_joins(*names)
    job.launcher.form(1, *names)
    job.launcher.wait_for("joined", names[1], epoch=1)
    job.check_stopped(names[1])
    job.launcher.form(2, names[0])
    job.check_stopped(names[0])  # alone it would have taken all steps before the other asks to join
    job.launcher.send(names[1], "fenced", reason="it stood still")
    os.kill(job.pid(names[1]), signal.SIGCONT)
    job.launcher.wait_for("join", names[1], epoch=1)
    job.launcher.fence(3, *names)
    os.kill(job.pid(names[0]), signal.SIGCONT)
    job.launcher.form(3, *names)
    job.check_ended(*names)
    check_same(job, [0], undisturbed)
    assert job.lines(1)[-1] == undisturbed[-1]


def test_a_fresh_worker_enters_between_steps(tmp_path: Path, stack: ExitStack, undisturbed: list[dict[str, object]]) -> None:
    job = play(tmp_path, stack)
    names = [job.start(slot, [{"step": 4, "phase": "computing", "act": "stop"}] if slot == 0 else None) for slot in range(2)]
    job.launcher.wait_for_joins(*names)
    job.launcher.form(1, *names)
    job.check_stopped(names[0])
    names.append(job.start(2, joining=True))
    job.launcher.wait_for_joins(names[2])
    job.launcher.fence(2, *names, soft=True)
    os.kill(job.pid(names[0]), signal.SIGCONT)
    job.launcher.form(2, *names, soft=True)
    job.check_ended(*names)
    check_same(job, [0, 1], undisturbed)
    joined = job.lines(2, "-joined")
    assert joined[-1] == undisturbed[-1]
    assert [line["step"] for line in joined[:-1]] == [5]


def test_the_history_counts_the_tokens_of_each_step_once(tmp_path: Path, stack: ExitStack, undisturbed: list[dict[str, object]]) -> None:
    """Each worker logs what it brought in: also where the step was shared out anew, or somebody left at its end."""
    from dashboard.queries import steps  # here: the workers import this file, too
    from dashboard.sources import Sources
    from eagle_eye.clock import FakeClock
    from eagle_eye.config import Config
    from fakes.small_deployment import T0, RecordedJob

    job = play(tmp_path, stack)
    names = [job.start(slot, [{"step": 2, "phase": "reducing", "act": "kill"}] if slot == 1 else [{"step": 4, "phase": "computing", "act": "stop"}] if slot == 0 else None) for slot in range(4)]
    job.launcher.wait_for_joins(*names)
    job.launcher.form(1, *names)
    job.launcher.wait_for_disconnect(names[1])
    job.launcher.form(2, names[0], names[2], names[3])
    job.check_stopped(names[0])
    job.launcher.fence(3, names[0], names[2], names[3], soft=True)
    os.kill(job.pid(names[0]), signal.SIGCONT)
    job.launcher.form(3, names[0], names[2], soft=True)
    job.launcher.send(names[3], "halt", epoch=3, reason="it is not needed any more", code=0, saves=False)
    job.check_ended(names[0], names[2], names[3])
    recorded = RecordedJob(tmp_path)
    for second, reading in enumerate(job.steps(range(4), begin=T0)):
        recorded.tell(NODE, second, reading)
    recorded.write()
    sources = Sources(Config(state_dir=str(tmp_path)), clock=FakeClock(T0 + 60))
    stack.callback(sources.close)
    found = steps.ask(sources, "SELECT step, workers, tokens, loss FROM committed ORDER BY step", since=T0, until=T0 + 60)
    assert found is not None
    assert found["workers"].tolist() == [4, 4, 3, 3, 2, 2]
    assert found["tokens"].tolist() == [MICRO_BATCHES * 4 * 8] * STEPS
    assert found["loss"].tolist() == pytest.approx([line["loss"] for line in undisturbed[:-1]])


def test_the_fast_reduction_ends_within_float_tolerance(tmp_path: Path, stack: ExitStack, undisturbed: list[dict[str, object]]) -> None:
    job = play(tmp_path, stack, "fast")
    names = [job.start(slot, [{"step": 2, "phase": "reducing", "act": "kill"}] if slot == 1 else None) for slot in range(3)]
    job.launcher.wait_for_joins(*names)
    job.launcher.form(1, *names)
    job.launcher.wait_for_disconnect(names[1])
    job.launcher.form(2, names[0], names[2])
    job.check_ended(names[0], names[2])
    losses = [line["loss"] for line in job.lines(0)[:-1]]
    assert losses == pytest.approx([line["loss"] for line in undisturbed[:-1]], rel=1e-4)
    assert job.lines(0) == job.lines(2)
