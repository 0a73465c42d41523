"""A worker's end of the ring, and a node's list of its workers, driven by a test's clock."""

import json
import os
from pathlib import Path
from typing import Any

from eagle_eye.clock import FakeClock
from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring_buffer import BEGAN, MARKED, MARKS, PHASE, RUNNING, STEP, RingWriter, start_time_of

DEAD_PID = 2**22 + 1
"""Beyond the largest pid of Linux."""


class Trainer:
    """One worker; `pid`: this very process unless told otherwise."""

    def __init__(self, folder: Path, slot: int, clock: FakeClock, epoch: int = 1, pid: int | None = None) -> None:
        self.clock, self.slot, self.epoch = clock, slot, epoch
        self.pid = os.getpid() if pid is None else pid
        self.name = f"r1/n1/{slot}"
        self.path = folder / f"r1-{slot}-{epoch}.ring"
        self.ring = RingWriter.create(
            self.path, pid=self.pid, epoch=epoch, worker=self.name, offset_ns=0, start_time=start_time_of(self.pid)
        )
        self.step_s = 0.1
        self.born = epoch
        """In which it was forked."""

    def mark(self, phase: str = "forward") -> None:
        self.ring.now[MARKED] = self.nanoseconds
        self.ring.now[PHASE] = PHASES.index(phase)
        self.ring.now[MARKS] += 1

    def begin(self, step: int) -> None:
        self.ring.now[RUNNING] = self.ring.now[MARKS] + 1
        self.ring.now[STEP] = step
        self.ring.now[BEGAN] = self.nanoseconds
        self.mark("data")

    def end(self, step: int, **values: float) -> None:
        named = {"step_s": self.step_s, **values}
        self.ring.append(step, self.nanoseconds, {self.ring.column(name): value for name, value in named.items()})
        self.mark("other")

    def step(self, step: int, **values: float) -> None:
        self.begin(step)
        self.end(step, **values)

    @property
    def nanoseconds(self) -> int:
        return int(self.clock.monotonic() * 1e9)

    @property
    def listing(self) -> dict[str, Any]:
        return {
            "worker": self.name,
            "slot": self.slot,
            "rank": self.slot,
            "pid": self.pid,
            "start_time": start_time_of(self.pid),
            "ring": str(self.path),
            "socket": str(self.path.with_suffix(".sock")),
            "epoch": self.epoch,
            "born": self.born,
        }


def write_listing(folder: Path, *trainers: Trainer, state: str = "running", launcher: int | None = None) -> None:
    jobs = folder / "jobs"
    jobs.mkdir(exist_ok=True)
    body = {
        "version": 1,
        "job": "default/gpt/r1",
        "run": "r1",
        "node": "n1",
        "epoch": 1,
        "launcher_pid": os.getpid() if launcher is None else launcher,
        "workers": [trainer.listing for trainer in trainers],
        "state": state,
    }
    unfinished = jobs / "r1.new"
    unfinished.write_text(json.dumps(body))
    unfinished.replace(jobs / "r1.json")
