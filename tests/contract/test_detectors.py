"""What every detector must do, whoever wrote it: this runs over whatever `plugins.available("detectors")` finds."""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detectors.runtime.baseline_learner import learners
from detectors.runtime.hot_window import HotWindow
from eagle_eye import plugins
from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Baseline, Claim, Entity, Floats, Kind
from fakes.synthetic_frames import (
    JOB,
    Draft,
    Fault,
    FrozenWorker,
    SilentNode,
    SlowWorker,
    job_frames,
    layout_of,
    shuffled,
)

NAMES = plugins.available("detectors")
UNIT_TESTS = Path(__file__).parents[1] / "unit" / "detectors"
TICKS = 150


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cls(name: str) -> type:
    return plugins.load("detectors", name)


def made(cls: type, **options: Any) -> Detector:
    detector = plugins.build(cls, options, {})
    assert isinstance(detector, Detector)
    return detector


def seen_anew(frames: Iterable[Frame]) -> Iterator[Frame]:
    """With a `past` of their own."""
    window = HotWindow()
    return (window.add(frame) for frame in frames)


@cache
def baselines() -> dict[str, Baseline]:
    """What the learners beside the detectors make of a steady run."""
    fitted = {}
    for name, learner in learners((name, plugins.load("detectors", name)) for name in NAMES).items():
        looked = [learner.sample(frame) for frame in seen_anew(_drawn(1)[:60])]
        matrix = np.concatenate([rows for _, rows in looked])
        history = {"job": JOB, "time": 0.0, "names": looked[0][0], "matrix": matrix, "before": b""}
        fitted[name] = learner.fit(history)
    return {baseline.name: baseline for baseline in fitted.values()}


def claims(detector: Detector, frames: Iterable[Frame]) -> list[Claim]:
    return [claim for frame in frames for claim in detector.update(frame)]


@cache
def said(cls: type) -> list[Claim]:
    """What a detector with its defaults makes of the run in which everything goes wrong."""
    return claims(made(cls), everything_goes_wrong())


def steady(ticks: int = TICKS, seed: int = 1) -> tuple[Frame, ...]:
    return _steady(seed)[:ticks]


@cache
def _steady(seed: int) -> tuple[Frame, ...]:
    return judged(_drawn(seed))


@cache
def _drawn(seed: int) -> tuple[Frame, ...]:
    return fixed(job_frames(4, 2, TICKS, np.random.default_rng(seed), gpus=True))


def fixed(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Drawn once for all detectors, none of which may change them."""
    kept = tuple(frames)
    for frame in kept:
        for values in frame.metrics.values():
            for array in values.values():
                array.flags.writeable = False
    return kept


def judged(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """As detectors see them: with baselines, and with a past that may be read again and again. No column of them moves."""
    return tuple(replace(frame, baselines=baselines(), past=Past(frames[: number + 1])) for number, frame in enumerate(frames))


@dataclass(frozen=True)
class Past:
    frames: tuple[Frame, ...]
    """Up to the newest, one a second."""

    def __call__(self, kind: Kind, name: str, seconds: float) -> Floats:
        recent = [frame for frame in self.frames[-int(seconds) :] if frame.time > self.frames[-1].time - seconds]
        unread = np.full(len(self.frames[-1].entities.get(kind, ())), np.nan, dtype=np.float32)
        return np.array([frame.metrics.get(kind, {}).get(name, unread) for frame in recent])


# --- a run in which everything goes wrong ------------------------------------------------------------------------


def deaths(draft: Draft) -> None:
    """Events of every kind that somebody might claim, at ticks of their own."""
    workers = [Entity(kind=Kind.WORKER, name=worker) for worker in draft.layout.workers]
    node = Entity(kind=Kind.NODE, name=draft.layout.nodes[-1])
    gpu, job = Entity(kind=Kind.GPU, name=draft.layout.placements[0].gpu), Entity(kind=Kind.JOB, name=draft.layout.job)
    common = {"epoch": str(draft.layout.epoch), "step": "10", "rank": "1", "pid": "4711"}
    if draft.tick == 40:
        draft.tell("exception", workers[1], type="RuntimeError", message="CUDA error", traceback="…", **common)
        draft.tell("exit", workers[1], code="1", signal="", last_lines="RuntimeError: CUDA error", **common)
    if draft.tick == 41:
        draft.tell("exit", workers[2], code="-9", signal="SIGKILL", last_lines="", **common)
    if draft.tick == 38:
        draft.tell("worker.finished", workers[3], **common)
        draft.tell("exception", workers[0], type="RuntimeError", message="Connection closed by peer", traceback="…", **common)
    if draft.tick == 44:
        draft.tell("stall", workers[0], marks="10", phase="forward", age_s="2.5", state="T", **common)
    if draft.tick == 46:
        draft.tell("gpu.xid", gpu, code="79")
        draft.tell("gpu.recovery_action", gpu, action="reset")
        draft.tell("gpu.lost", gpu, reason="fell off the bus")
        draft.tell("kernel.error", node, component="disk", code="io_error", device="nvme0n1", advice="replace the disk")
        draft.tell("log.error", workers[0], component="cuda", code="error", rank="0", epoch="1")
        draft.tell("collector.failing", node, collector="gpu", reason="timed out")
        draft.tell("alert.firing", node, alert="GpuHot", id="a1", severity="critical", summary="GPU 3 at 95")
        link, mount = Entity(kind=Kind.LINK, name=f"{node.name}/mlx5_0:1"), Entity(kind=Kind.MOUNT, name=f"{node.name}/mnt/data")
        draft.tell("link.down", link, device="mlx5_0", port="1", rail="0", former_rate_gbit_per_s="400", rate_gbit_per_s="", missed="0")
        draft.tell("storage.hung", mount, mount="/mnt/data", file_system="nfs4", source="server:/data", waited_s="20.0")
    if draft.tick == 48:
        draft.tell(
            "checkpoint.failed", job, path="/ckpt", attempt="1", retry_s="1.0", worker=workers[0].name, errno="ENOSPC",
            reason="No space left on device", free_bytes="0", needed_bytes="9", **common,
        )  # fmt: skip
    if draft.tick == 60:
        draft.tell("node.held", node, epoch="2", reason="processes 7 do not end", seen_by="node-0")
        draft.tell("launcher.stopped", node, pid="7")
        draft.tell("node.unused", node, epoch="1", reason="--heal none", seen_by="node-0")
        draft.tell("coordinator.isolated", job, epoch="1", reason="node-1 cannot be reached")
    if draft.tick == 72:
        draft.tell("session.lost", node, role="agent", incarnation="x", job=draft.layout.job)
        draft.tell("session.lost", node, role="launcher", incarnation="x", job=draft.layout.job)
        draft.tell("peer.lost", node, seen_by="node-0")
        draft.tell("exception", workers[0], type="RuntimeError", message="Connection closed by peer", traceback="…", **common)
    if draft.tick == 95:
        draft.tell("epoch.started", job, epoch="2", reason="death", cause="", restarts="1")


def cut_off_node(draft: Draft) -> None:
    if draft.tick == 60:
        node = Entity(kind=Kind.NODE, name=draft.layout.nodes[-1])
        draft.tell("network.tested", node, test="t", testers="node-3", lost="node-1", round_trip_ms="", unsure="")


def lagging_rank(draft: Draft) -> None:
    if draft.tick == 46:
        job = Entity(kind=Kind.JOB, name=draft.layout.job)
        draft.tell("nccl.outlier_ranks", job, communicator="0x9e", size="8", numbered_by="job", lagging="3", lagging_count="1", operation="AllReduce", newest="7", epoch="1")


def other_call(draft: Draft) -> None:
    for index, name in enumerate(draft.layout.workers):
        worker = Entity(kind=Kind.WORKER, name=name)
        if draft.tick == 32:
            calls = {"collective_group": "0", "collective_number": "7", "collective_pending": "1", "collective_calls": f"7 all_reduce {9 if index == 2 else 8} 8 Float"}
            draft.tell("stall", worker, age_s="2.5", state="S", epoch=str(draft.layout.epoch), collective="all_reduce", **calls)
        if draft.tick == 33:
            draft.tell("resumed", worker, epoch=str(draft.layout.epoch))


def drained(draft: Draft) -> None:
    node = Entity(kind=Kind.NODE, name=draft.layout.nodes[-1])
    if draft.tick == 36:
        draft.tell("scheduler.node_state", node, scheduler="slurm", states="drain", reason="fan broken")


def bad_loss(draft: Draft) -> None:
    if 44 <= draft.tick < 54:
        for step in draft.steps:
            step.values["loss"][:] = np.inf if draft.tick >= 52 else 50.0
            step.values["grad_norm"][:] *= 50.0


def bad_data(draft: Draft) -> None:
    """All are given one batch from tick 30 on; the scale of the loss collapses at 40."""
    for step in draft.steps:
        step.values["batch_digest"] = np.full(len(draft.layout.workers), float(1 + min(draft.tick, 30)), np.float32)
        step.values["loss_scale"] = np.full(len(draft.layout.workers), 8192.0 if draft.tick < 40 else 1.0, np.float32)


def other_replica(draft: Draft) -> None:
    for step in draft.steps:
        step.values["replica_digest"] = np.full(len(draft.layout.workers), float(step.number), np.float32)
        if draft.tick >= 10:
            step.values["replica_digest"][1] += 1.0
        step.values["replay_differs"] = np.zeros(len(draft.layout.workers), np.float32)
        step.values["replay_differs"][1] = 2.0 * (draft.tick >= 10)


def lying_timers(draft: Draft) -> None:
    """A worker says to have gone forward for as long as its whole step."""
    if 4 <= draft.tick < 16:
        for step in draft.steps:
            step.values["forward_s"][5] = step.values["step_s"][5]


def silent_agent(draft: Draft) -> None:
    """Of a node that trains on, and whose clock is wrong before."""
    if draft.tick >= 20:
        draft.clocks["node-2"] = 30.0
    if 40 <= draft.tick < 56:
        draft.clocks.clear()
        draft.reporting["node-2"] = draft.time - (draft.tick - 40)


def strange_node(draft: Draft) -> None:
    if draft.tick >= 100:
        for values in draft.metrics[Kind.NODE].values():
            values[1] *= 20.0


def hot_gpu(draft: Draft) -> None:
    if draft.tick >= 110:
        draft.metrics[Kind.GPU]["temperature_celsius"][1] = 95.0
        draft.metrics[Kind.GPU]["power_watts"][1] = 300.0


def slow_collectives(draft: Draft) -> None:
    """Each 5 s all have measured theirs; from tick 48 on they take three times as long."""
    if draft.tick % 5 == 0:
        times = np.full(len(draft.layout.workers), 1.0 if draft.tick < 48 else 3.0, np.float32)
        draft.metrics[Kind.WORKER] |= {"dp_measured_mean_s": 0.01 * times, "dp_bus_bytes_per_s": 5e10 / times, "dp_measured_bytes_per_s": 1e9 * np.ones_like(times)}


def long_batches(draft: Draft) -> None:
    """From tick 40 on now one worker has twice the tokens, now another."""
    for step in draft.steps if draft.tick >= 40 else ():
        who = step.number % len(draft.layout.workers)
        values = step.values
        extra = values["forward_s"][who] + values["backward_s"][who]
        for name in ("tokens", "forward_s", "backward_s"):
            values[name][who] *= 2.0
        values["communication_s"] += extra
        values["communication_s"][who] -= extra
        values["step_s"] += extra


@cache
def everything_goes_wrong() -> tuple[Frame, ...]:
    faults: list[Fault] = [
        deaths,
        cut_off_node,
        lagging_rank,
        other_call,
        drained,
        bad_loss,
        bad_data,
        other_replica,
        SlowWorker(3, 4.0, 20, 38),
        FrozenWorker(0, 60, state="T"),
        SilentNode("node-3", 70),
        strange_node,
        silent_agent,
        lying_timers,
        hot_gpu,
        slow_collectives,
        long_batches,
    ]
    return judged(fixed(job_frames(4, 2, TICKS, np.random.default_rng(7), faults=faults, gpus=True, step_s=0.25)))


@cache
def ten_thousand_workers() -> tuple[Frame, ...]:
    return judged(fixed(job_frames(1250, 8, 4, np.random.default_rng(1))))


@cache
def four_workers_later() -> tuple[Frame, ...]:
    later = job_frames(2, 2, 70, np.random.default_rng(1), layout=layout_of(2, 2, epoch=2))
    return judged(tuple(replace(frame, number=frame.number + 100, time=frame.time + 100.0) for frame in later))


# --- the contract ------------------------------------------------------------------------------------------------


def test_there_are_detectors() -> None:
    assert NAMES


def test_it_is_built_with_its_defaults(cls: type) -> None:
    made(cls)


def test_two_instances_say_the_same(cls: type) -> None:
    assert claims(made(cls), everything_goes_wrong()) == said(cls)


def test_it_is_quiet_on_steady_input(cls: type) -> None:
    for seed in range(3):
        assert claims(made(cls), steady(seed=seed)) == []


def test_it_finds_something_where_everything_goes_wrong(cls: type) -> None:
    """Else the checks around this one would pass for a detector that never says a word."""
    assert said(cls)


def test_it_survives_pickling_in_mid_stream(cls: type) -> None:
    detector, found = made(cls), []
    for frame in everything_goes_wrong():
        if frame.number % 10 == 0:
            detector = pickle.loads(pickle.dumps(detector))
        found += claims(detector, [frame])
    assert found == said(cls)


def test_it_follows_columns_that_move(cls: type) -> None:
    for at in (30, 65):
        found = claims(made(cls), shuffled(iter(everything_goes_wrong()), at, np.random.default_rng(at)))
        assert {_told(claim) for claim in found} == {_told(claim) for claim in said(cls)}


def _told(claim: Claim) -> tuple[object, ...]:
    return (claim.entity.kind, claim.entity.name, claim.kind, claim.active, round(claim.since, 3))


def test_no_claim_comes_without_evidence(cls: type) -> None:
    for claim in said(cls):
        assert claim.evidence
        assert all(line.text for line in claim.evidence)
        assert 0.0 <= claim.score <= 1.0


def test_every_flag_works_both_ways(cls: type) -> None:
    for option in plugins.describe(cls):
        if option.type == "bool":
            for value in (False, True):
                detector = made(cls, **{option.name: value})
                assert claims(detector, steady(60)) == []
                claims(detector, everything_goes_wrong())


def test_its_memory_is_bounded_over_ten_thousand_entities(cls: type) -> None:
    detector = made(cls)
    claims(detector, steady(3))
    small = len(pickle.dumps(detector))
    claims(detector, ten_thousand_workers())
    assert len(pickle.dumps(detector)) < 4_000_000
    claims(detector, four_workers_later())
    assert len(pickle.dumps(detector)) < small + 400_000


def test_it_judges_cut_frames_and_frames_without_anything(cls: type) -> None:
    detector = made(cls)
    empty = Frame(job="t/n/r", number=1, generation=1, time=1.0, tick=True)
    cut = Frame(job="t/n/r", number=2, generation=1, time=1.5, tick=False)
    frames = (empty, cut, replace(empty, number=3, time=2.0))
    assert claims(detector, [replace(frame, baselines=baselines()) for frame in frames]) == []


def test_its_fault_and_its_nearest_innocent_twin_are_tested(name: str) -> None:
    path = UNIT_TESTS / f"test_{name}.py"
    assert path.is_file(), f"{path.name} is missing: it shows the fault that {name} finds, and its nearest innocent twin"
    tests = [line for line in path.read_text().splitlines() if line.lstrip().startswith("def test_")]
    for word in ("fault", "twin"):
        assert any(word in line for line in tests), f"{path.name} has no test whose name contains {word!r}"
