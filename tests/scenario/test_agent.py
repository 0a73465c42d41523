"""A real agent over real worker processes: what it writes to a real stream when they are stopped and killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.agent.agent import run_agent
from collectors.worker.watched_worker import NAMES
from eagle_eye.config import AgentConfig, Config, ServerConfig
from eagle_eye.errors import WireError
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.training.ring_buffer import RingReader, start_time_of
from eagle_eye.types import Batch, Event, Reading, Record, SchemaRecord, StepReading
from eagle_eye.wire import Schemas, decode

JOB = "default/gpt/r1"
STEP_S = 0.05
TRAINER = f"""
import sys, time
from eagle_eye.training import ring_buffer as ring
path, worker = sys.argv[1:]
writer = ring.RingWriter.create(path, epoch=1, worker=worker)
writer.now[ring.RUNNING] = 1
for step in range(100_000):
    began = time.monotonic_ns()
    writer.now[ring.STEP], writer.now[ring.BEGAN] = step, began
    for phase in (1, 2, 3):
        writer.now[ring.PHASE], writer.now[ring.MARKED] = phase, time.monotonic_ns()
        writer.now[ring.MARKS] += 1
        time.sleep({STEP_S} / 3)
    ended = time.monotonic_ns()
    writer.append(step, ended, {{0: (ended - began) / 1e9, writer.column("loss"): 1 / (step + 1)}})
"""


class Deployment:
    """A node with two workers, its agent in a thread, and the stream that the agent writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        (self.run_dir / "jobs").mkdir(parents=True)
        self.state_dir = folder / "state"
        self.trainers = [self._trainer(slot) for slot in range(2)]
        self.stop = threading.Event()
        self.thread: threading.Thread | None = None
        self.schemas = Schemas()
        self.records: list[Record] = []
        self.offset = 0
        self.stream = EmbeddedStream(self.state_dir / "stream")

    def _trainer(self, slot: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", TRAINER, str(self.ring(slot)), f"r1/n1/{slot}"])

    def ring(self, slot: int) -> Path:
        return self.run_dir / f"r1-{slot}-1.ring"

    def write_listing(self) -> None:
        workers = [
            {
                "worker": f"r1/n1/{slot}", "slot": slot, "rank": slot, "pid": trainer.pid, "epoch": 1,
                "start_time": start_time_of(trainer.pid), "ring": str(self.ring(slot)), "socket": "",
            }
            for slot, trainer in enumerate(self.trainers)
        ]  # fmt: skip
        body = {"version": 1, "job": JOB, "run": "r1", "node": "n1", "launcher_pid": os.getpid(), "workers": workers}
        (self.run_dir / "jobs" / "r1.json").write_text(json.dumps(body))

    def start_agent(self) -> None:
        config = Config(
            state_dir=str(self.state_dir), run_dir=str(self.run_dir), agent=AgentConfig(),
            server=ServerConfig(listen="127.0.0.1:9"),
        )  # fmt: skip
        self.stop.clear()
        self.thread = threading.Thread(target=run_agent, args=(config, self.stop), kwargs={"node": "n1"})
        self.thread.start()

    def stop_agent(self, within_s: float = 10.0) -> None:
        self.stop.set()
        if self.thread is not None:
            self.thread.join(within_s)
            assert not self.thread.is_alive()

    def read(self) -> None:
        for message in self.stream.read(OBSERVATIONS, 0, self.offset):
            self.offset = message.offset + 1
            record = decode(message.value, self.schemas)
            if isinstance(record, SchemaRecord):
                self.schemas.add(record)
            self.records.append(record)

    def until(self, done: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.read()
            if done():
                return
            threading.Event().wait(0.05)
        pytest.fail(f"it did not come within {seconds} s; events: {self.events()}")

    def events(self, name: str = "") -> list[Event]:
        return [record for record in self.records if isinstance(record, Event) and name in {"", record.name}]

    def batches(self) -> list[Batch]:
        return [record for record in self.records if isinstance(record, Batch)]

    def steps(self, worker: str) -> list[int]:
        """Numbers of the steps that were sent for a worker, in their order."""
        return [
            number
            for batch in self.batches()
            for block in batch.blocks
            if isinstance(block.reading, StepReading) and worker in block.reading.workers
            for number, end in zip(
                block.reading.numbers.tolist(), block.reading.ends[:, block.reading.workers.index(worker)], strict=True
            )
            if end == end  # NaN: not completed by this worker
        ]

    def close(self) -> None:
        self.stop_agent()
        for trainer in self.trainers:
            trainer.kill()
            trainer.wait()
        self.stream.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path)
    deployment.write_listing()
    deployment.start_agent()
    yield deployment
    deployment.close()


def test_a_stopped_worker_is_told_with_its_state_and_that_it_moves_again(deployment: Deployment) -> None:
    """A busy machine keeps the other one waiting for a second, too: it is suspected, and not told as stopped."""

    def stopped() -> list[Event]:
        return [event for event in deployment.events("stall") if event.attributes["state"] == "T"]

    deployment.until(lambda: len(deployment.steps("r1/n1/1")) > 5)
    assert stopped() == []
    deployment.trainers[1].send_signal(signal.SIGSTOP)
    deployment.until(lambda: bool(stopped()))
    (stall,) = stopped()
    assert (stall.job, stall.entity.name) == (JOB, "r1/n1/1")
    assert (stall.attributes["rank"], stall.attributes["epoch"]) == ("1", "1")
    deployment.trainers[1].send_signal(signal.SIGCONT)
    deployment.until(lambda: "r1/n1/1" in [event.entity.name for event in deployment.events("resumed") if event.time > stall.time])
    stalls, resumed = ([event.entity.name for event in deployment.events(name)] for name in ("stall", "resumed"))
    assert all(resumed.count(worker) <= stalls.count(worker) for worker in resumed), "who was never told to stand does not move again"


def test_the_last_steps_of_a_killed_worker_are_read_post_mortem(deployment: Deployment) -> None:
    deployment.until(lambda: len(deployment.steps("r1/n1/0")) > 5)
    deployment.trainers[0].kill()
    deployment.trainers[0].wait()
    with RingReader.open(deployment.ring(0)) as ring:
        last = ring.now().completed - 1
    deployment.until(lambda: bool(deployment.steps("r1/n1/0")) and deployment.steps("r1/n1/0")[-1] == last)
    steps = deployment.steps("r1/n1/0")
    assert steps == list(range(steps[0], last + 1)), "each step once"
    before = len(deployment.steps("r1/n1/1"))
    deployment.until(lambda: len(deployment.steps("r1/n1/1")) > before)
    assert deployment.events() == [], "a death is the launcher's to tell"


def readings(batch: Batch) -> dict[str, Reading]:
    """By source."""
    return {block.reading.source: block.reading for block in batch.blocks if isinstance(block.reading, Reading)}


def test_a_batch_a_second_holds_node_and_workers(deployment: Deployment) -> None:
    """What a source reads late, on a busy machine, is in the next one."""
    deployment.until(lambda: any(readings(batch).keys() >= {"host", "training"} for batch in deployment.batches()[3:]))
    batches = deployment.batches()
    assert [batch.number for batch in batches] == list(range(len(batches)))
    whole = next(read for read in map(readings, batches[3:]) if read.keys() >= {"host", "training"})
    assert whole["host"].entities == ("n1",)
    assert whole["training"].entities == ("r1/n1/0", "r1/n1/1")
    assert whole["training"].names == NAMES


def test_a_restarted_agent_goes_on_and_ends_within_two_seconds(deployment: Deployment) -> None:
    deployment.until(lambda: len(deployment.batches()) >= 2)
    deployment.stop_agent(within_s=2.0)
    first = deployment.batches()[-1].incarnation
    deployment.start_agent()
    deployment.until(lambda: deployment.batches()[-1].incarnation != first)
    assert deployment.batches()[-1].job == JOB


def test_a_stream_that_is_away_is_spooled_and_caught_up(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "stream").write_text("a file where the stream's folder should be")
    run_dir = tmp_path / "run"
    (run_dir / "jobs").mkdir(parents=True)
    (run_dir / "jobs" / "r1.json").write_text(json.dumps({"job": JOB, "run": "r1", "launcher_pid": os.getpid()}))
    config = Config(state_dir=str(tmp_path / "state"), run_dir=str(run_dir), server=ServerConfig(listen="127.0.0.1:9"))
    stop = threading.Event()
    agent = threading.Thread(target=run_agent, args=(config, stop), kwargs={"node": "n1"})
    agent.start()
    try:
        spool = tmp_path / "state" / "spool" / "agent-n1.spool"
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (spool.exists() and spool.stat().st_size > 2000):
            threading.Event().wait(0.1)
        (tmp_path / "state" / "stream").unlink()
        found: list[int] = []
        while time.monotonic() < deadline and (not found or len(found) < 4):
            threading.Event().wait(0.2)
            found = numbers_in(tmp_path / "state" / "stream") if (tmp_path / "state" / "stream").exists() else []
    finally:
        stop.set()
        agent.join(10)
    assert found[:4] == [0, 1, 2, 3], "what was made while the stream was away came first"


def numbers_in(folder: Path) -> list[int]:
    """Numbers of the batches in a stream."""
    schemas, numbers = Schemas(), []
    stream = EmbeddedStream(folder)
    try:
        for message in stream.read(OBSERVATIONS, 0, 0):
            try:
                record = decode(message.value, schemas)
            except WireError:
                continue
            if isinstance(record, SchemaRecord):
                schemas.add(record)
            elif isinstance(record, Batch):
                numbers.append(record.number)
    finally:
        stream.close()
    return numbers
