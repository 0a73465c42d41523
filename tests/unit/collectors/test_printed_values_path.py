"""From a line in a worker's log to frames and a finding, through the bytes of real batches."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from collectors.agent.batch_builder import BatchBuilder
from collectors.agent.job_directory import LocalJob, LocalWorker
from collectors.job_log import JobLogCollector
from detectors.loss import Loss
from detectors.stall import Stall
from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.types import Batch, Claim, Kind, Mark, Reading

JOB = "t/gpt/r"


class PrintingJob:
    """One worker, whose script makes no marks."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "0.log"
        self.log.touch()
        (folder / "jobs").mkdir()
        worker = LocalWorker(worker="r/n1/0", slot=0, rank=0, pid=os.getpid(), epoch=1, log=str(self.log))
        (folder / "jobs" / "r.json").write_bytes(msgspec.json.encode(LocalJob(job=JOB, run="r", node="n1", workers=(worker,))))
        self.clock = FakeClock(now=1_700_000_000.0)
        self.collector = JobLogCollector(node="n1", run_dir=folder, clock=self.clock)
        self.collector.collect()
        self.batches, self.schemas, self.reader = BatchBuilder(lambda _worker: JOB), wire.Schemas(), wire.RecordReader()
        self.frames = FrameBuilder(JOB, self.schemas)
        self.number = 0

    def second(self, text: str = "") -> Frame:
        """The frame of a second in which the worker printed this."""
        with self.log.open("a") as file:
            file.write(text)
        self.clock.advance(1.0)
        self.number += 1
        for found in self.collector.collect():
            assert isinstance(found, Reading)
            self.batches.add(found)
        blocks = self.batches.blocks(JOB)
        self.batches.clear()
        for block in blocks:
            self.schemas.add(self.batches.schemas.get(block.schema_id))
        self.frames.feed(self.reader.read(wire.encode(Batch(node="n1", incarnation="a", job=JOB, number=self.number, time=self.clock.now(), blocks=blocks))))
        return self.frames.tick(Mark(mark="tick", generation=1, number=self.number, time=self.clock.now()))


@pytest.fixture
def job(tmp_path: Path) -> PrintingJob:
    return PrintingJob(tmp_path)


def test_what_a_worker_prints_stands_in_the_frame_of_that_second_and_makes_no_step(job: PrintingJob) -> None:
    frame = job.second("[rank0]:[titan] - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.5  grad_norm: 4.5  memory: 1.00GiB(2.00%)  tps: 4,230  mfu: 24.5%\x1b[39m\n")
    numbers = {name: float(values[0]) for name, values in frame.metrics[Kind.WORKER].items() if not np.isnan(values[0])}
    assert numbers == {
        "printed_step": 10, "printed_loss": 7.5, "printed_grad_norm": 4.5, "printed_gpu_tokens_per_s": 4230, "printed_mfu_percent": 24.5, "printed_memory_bytes": 2**30,
        "printed_bad_losses": 0, "printed_bad_grad_norms": 0,
    }  # fmt: skip
    assert frame.steps == ()
    assert np.isnan(job.second().metrics[Kind.WORKER]["printed_loss"][0]), "what is not printed anew is not told again"


def test_fault_a_loss_that_stays_nan_is_found_in_what_is_printed(job: PrintingJob) -> None:
    detector, found = Loss(), list[Claim]()
    for step in range(5):
        found += detector.update(job.second(f"{{'step': {step}, 'loss': {'2.5' if step < 2 else 'NaN'}}}\n"))
    assert [(claim.kind, claim.entity.kind) for claim in found] == [("loss.not_finite", Kind.JOB)]


def test_twin_a_worker_that_prints_once_in_two_minutes_is_not_stalled(job: PrintingJob) -> None:
    detector, found = Stall(), list[Claim]()
    for second in range(250):
        found += detector.update(job.second(f"step {second} loss 2.0\n" if second % 120 == 1 else ""))
    assert found == []
