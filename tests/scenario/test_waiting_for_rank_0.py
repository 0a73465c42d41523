"""Rank 0 of a real job evaluates alone, or hangs there, while the others wait for the batch that it hands out: read by the collector, judged by the detector."""

import sys
from dataclasses import replace

import numpy as np

from collectors.training import TrainingCollector
from detectors.stall import Stall
from eagle_eye.activity.hang_verdict import ActivityKind
from eagle_eye.clock import SystemClock
from eagle_eye.config import StallConfig
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Event, Kind, Layout, Reading, Step
from fakes.launchers import DEADLINE_S, LauncherCluster, wait_until
from fakes.synthetic_events import cut_frame

STEPS = 5
PATIENCE = StallConfig(standing_s=3.0)
SCRIPT = f"""
import os, sys, threading
import torch
import torch.distributed as dist
import eagle_eye

dist.init_process_group("gloo")
monitor, batch = eagle_eye.monitor(), torch.zeros(1)

def evaluate(where):
    with monitor.phase("evaluation"):
        open("evaluates", "w").close()
        if where == "hangs":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        while not os.path.exists("go"):
            sum(range(100_000))

for step in range({STEPS} + 2):
    monitor.begin(step)
    if step == {STEPS} and dist.get_rank() == 0:
        evaluate(sys.argv[1])
    dist.broadcast(batch, 0)  # in phase `data`, as a loader does that reads on rank 0 alone
    monitor.mark("forward")
    monitor.end()
monitor.stop()
"""


class Judge:
    """An agent's collector and the detector over it, on this machine's clock."""

    def __init__(self, cluster: LauncherCluster) -> None:
        self.clock = SystemClock()
        self.collector = TrainingCollector(run_dir=cluster.run_dir(0), node="n0", stall=PATIENCE, clock=self.clock)
        self.detector = Stall(stall=PATIENCE, data_patience_s=1.0)
        self.layout: Layout = wait_until("the layout", cluster.layouts)[-1]
        self.claims: list[Claim] = []
        self.told: list[Event] = []
        self.newest: dict[str, object] = {}
        self.number = 0

    def look(self) -> list[Claim]:
        """What is claimed by now."""
        found = self.collector.collect()
        events = [each for each in found if isinstance(each, Event)]
        self.told += events
        now = self.clock.now()
        if events:
            self._feed(cut_frame(now, *events, layout=self.layout))
        for each in found:
            if isinstance(each, Reading):
                self._feed(self._tick(each, now))
        return self.claims

    def _tick(self, reading: Reading, now: float) -> Frame:
        columns = {name: reading.matrix[:, index] for index, name in enumerate(reading.names)}
        self.newest = dict(columns)
        done = Step(number=0, epoch=self.layout.epoch, workers=self.layout.workers, end=now, values={"step_s": np.full(len(self.layout.workers), 0.1, np.float32)})
        moved = {Kind.WORKER: np.arange(len(reading.entities))}
        frame = replace(cut_frame(now, layout=self.layout), tick=True, entities={Kind.WORKER: reading.entities}, metrics={Kind.WORKER: columns}, moved=moved)
        self.number += 1
        return replace(frame, steps=(done,)) if self.number == 1 else frame

    def _feed(self, frame: Frame) -> None:
        self.claims += self.detector.update(frame)

    def seen(self, *kinds: ActivityKind) -> set[str]:
        return {event.entity.name for event in self.told if event.attributes.get("activity") in [kind.value for kind in kinds]}


def start(cluster: LauncherCluster, what: str) -> Judge:
    cluster.launch(0, nnodes=(1, 1), nproc=3, command=(sys.executable, "train.py", what), preload=("torch", "torch.distributed"))
    cluster.began(1)
    wait_until("rank 0 to evaluate", (cluster.directory / "evaluates").exists)
    return Judge(cluster)


def accused(claims: list[Claim]) -> set[str]:
    return {claim.entity.name for claim in claims if claim.entity.kind is Kind.WORKER}


def test_twin_while_rank_0_evaluates_alone_those_that_wait_for_it_are_not_accused(cluster: LauncherCluster) -> None:
    judge = start(cluster, "works")
    first, *others = judge.layout.workers
    busy = (ActivityKind.WORKING, ActivityKind.SPINNING)  # its stack is the same in many looks
    wait_until("the others to be seen waiting", lambda: judge.look() is not None and judge.seen(ActivityKind.AWAITS_PEERS) >= set(others))
    wait_until("rank 0 to be seen at work", lambda: judge.look() is not None and first in judge.seen(*busy))
    until = judge.clock.monotonic() + 2 * PATIENCE.standing_s
    wait_until("the patience for those that stand to be over", lambda: judge.look() is not None and judge.clock.monotonic() > until)
    assert accused(judge.claims) == set()
    assert not [claim for claim in judge.claims if claim.kind == "job.stalled"]
    (cluster.directory / "go").touch()
    assert cluster.launchers[0].wait(DEADLINE_S) == 0


def test_fault_a_rank_0_that_hangs_in_its_evaluation_is_accused_alone(cluster: LauncherCluster) -> None:
    judge = start(cluster, "hangs")
    try:
        wait_until("an accusation", lambda: accused(judge.look()))
    except AssertionError as error:
        error.add_note(f"told: {judge.told[-6:]}; claimed: {judge.claims[-6:]}; newest reading: {judge.newest}")
        raise
    assert accused(judge.claims) == {judge.layout.workers[0]}


