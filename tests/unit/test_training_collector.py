"""The training collector over real rings and this very process: progress, steps, stalls, the end, sweeping."""

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.jobs import JobDirectory
from collectors.procfs import Process
from collectors.progress import Limits, Progress, Sight
from collectors.sweep import sweep
from collectors.training import TrainingCollector
from collectors.watched_worker import NAMES
from eagle_eye.clock import FakeClock
from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring import BEGAN, MARKED, MARKS, PHASE, RUNNING, STEP, RingWriter, start_time_of
from eagle_eye.training.ring import NAMES as COLUMNS
from eagle_eye.types import Event, Kind, Reading, StepReading

DEAD_PID = 2**22 + 1
"""Beyond the largest pid of Linux."""


class Trainer:
    """One worker's end of the ring, driven by the test's clock."""

    def __init__(self, folder: Path, slot: int, clock: FakeClock, epoch: int = 1, pid: int | None = None) -> None:
        self.clock, self.slot, self.epoch = clock, slot, epoch
        self.pid = os.getpid() if pid is None else pid
        self.name = f"r1/n1/{slot}"
        self.path = folder / f"r1-{slot}-{epoch}.ring"
        self.ring = RingWriter.create(
            self.path, pid=self.pid, epoch=epoch, worker=self.name, offset_ns=0, start_time=start_time_of(self.pid)
        )
        self.step_s = 0.1

    def mark(self, phase: str = "forward") -> None:
        self.ring.now[MARKED] = self.nanoseconds
        self.ring.now[PHASE] = PHASES.index(phase)
        self.ring.now[MARKS] += 1

    def begin(self, step: int) -> None:
        self.ring.now[RUNNING] = 1
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
        return int(self.clock.now() * 1e9)

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
        }


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def collector(tmp_path: Path, clock: FakeClock) -> TrainingCollector:
    return TrainingCollector(run_dir=tmp_path, node="n1", clock=clock)


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


def events_of(found: list[Any], name: str = "") -> list[Event]:
    return [each for each in found if isinstance(each, Event) and name in {"", each.name}]


def reading_of(found: list[Any]) -> dict[str, dict[str, float]]:
    (reading,) = [each for each in found if isinstance(each, Reading)]
    assert reading.matrix.dtype == np.float32
    return {
        worker: dict(zip(reading.names, row.tolist(), strict=True))
        for worker, row in zip(reading.entities, reading.matrix, strict=True)
    }


def steps_of(found: list[Any]) -> list[StepReading]:
    return [each for each in found if isinstance(each, StepReading)]


def watch(collector: TrainingCollector, clock: FakeClock, seconds: float) -> list[Any]:
    """Look five times a second, for so many seconds."""
    found: list[Any] = []
    for _ in range(round(seconds * 5)):
        clock.advance(0.2)
        found += collector.collect()
    return found


# --- numbers


def test_no_run_directory_is_nothing_to_tell(tmp_path: Path, clock: FakeClock) -> None:
    assert TrainingCollector(run_dir=tmp_path / "none", clock=clock).collect() == []


def test_now_metrics_of_each_worker(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    first, second = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    first.begin(7)
    first.mark("backward")
    write_listing(tmp_path, first, second)
    collector.collect()
    table = reading_of(watch(collector, clock, 1.0))
    assert list(table) == ["r1/n1/0", "r1/n1/1"]
    row = table["r1/n1/0"]
    assert tuple(row) == NAMES
    assert (row["step"], row["marks"], row["phase"], row["running"]) == (7, 2, PHASES.index("backward"), 1)
    assert row["step_age_s"] == pytest.approx(1.0, abs=0.2)
    assert row["progress_age_s"] == pytest.approx(1.0, abs=0.2)
    assert chr(int(row["state"])) in "RS"
    assert row["rss_bytes"] > 1e6
    assert row["cpu_percent"] >= 0
    assert table["r1/n1/1"]["step"] == -1


def test_one_reading_a_second_however_often_it_looks(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    write_listing(tmp_path, Trainer(tmp_path, 0, clock))
    readings = [each for each in watch(collector, clock, 4.0) if isinstance(each, Reading)]
    assert len(readings) in {4, 5}


def test_a_worker_without_a_ring_has_its_process_figures(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    trainer.path.unlink()
    write_listing(tmp_path, trainer)
    row = reading_of(collector.collect())["r1/n1/0"]
    assert np.isnan(row["step"])
    assert row["rss_bytes"] > 1e6


def test_steps_are_aligned_by_number_and_returned_once(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    first, second = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    write_listing(tmp_path, first, second)
    for number in (0, 1, 2):
        first.step(number, loss=3.0 - number)
    second.step(0, loss=2.5, accuracy=0.5)
    (steps,) = steps_of(collector.collect())
    assert steps.workers == ("r1/n1/0", "r1/n1/1")
    assert steps.numbers.tolist() == [0, 1, 2]
    assert steps.epochs.tolist() == [1, 1, 1]
    assert np.isnan(steps.ends).tolist() == [[False, False], [False, True], [False, True]]
    assert steps.values[1, 0, steps.names.index("loss")] == 2.0
    assert steps.values[0, 1, steps.names.index("accuracy")] == 0.5
    assert np.isnan(steps.values[0, 0, steps.names.index("accuracy")])
    second.step(1, loss=1.5)
    (later,) = steps_of(watch(collector, clock, 1.0))
    assert (later.workers, later.numbers.tolist()) == (("r1/n1/1",), [1])
    assert later.names == steps.names, "a name that was logged once stays a column, so that schemas change seldom"
    assert steps_of(watch(collector, clock, 2.0)) == []


def test_the_last_steps_of_a_dead_worker_are_read_and_its_ring_forgotten(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    dead = Trainer(tmp_path, 0, clock, pid=DEAD_PID)
    dead.step(5, loss=1.0)
    write_listing(tmp_path, dead)
    (steps,) = steps_of(collector.collect())
    assert steps.numbers.tolist() == [5]
    assert watch(collector, clock, 2.0) == []


def test_a_worker_that_is_no_longer_listed_is_read_once_more(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    old = Trainer(tmp_path, 0, clock, epoch=1)
    write_listing(tmp_path, old)
    collector.collect()
    old.step(1)
    new = Trainer(tmp_path, 0, clock, epoch=2)
    new.step(1)
    write_listing(tmp_path, new)
    clock.advance(0.2)
    steps = steps_of(collector.collect())
    assert sorted((each.epochs.tolist(), each.numbers.tolist()) for each in steps) == [([1], [1]), ([2], [1])]


def test_a_ring_of_the_epoch_before_is_not_taken_for_the_new_one(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    stale = Trainer(tmp_path, 0, clock, epoch=1)
    stale.begin(40)
    stale.epoch = 2
    write_listing(tmp_path, stale)
    assert np.isnan(reading_of(collector.collect())["r1/n1/0"]["step"])


@pytest.mark.parametrize("spoil", ["version", "foreign", "short"])
def test_a_ring_that_cannot_be_read_is_told_once_and_the_others_go_on(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, spoil: str
) -> None:
    bad, good = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    data = bytearray(bad.path.read_bytes())
    if spoil == "version":
        struct.pack_into("<q", data, 8, 99)
    elif spoil == "foreign":
        data[:8] = b"STRANGER"
    else:
        del data[5000:]
    bad.path.write_bytes(data)
    good.begin(3)
    write_listing(tmp_path, bad, good)
    found = collector.collect() + watch(collector, clock, 3.0)
    (event,) = events_of(found, "collector.failing")
    assert event.entity.kind is Kind.NODE
    assert str(bad.path) in event.attributes["reason"]
    last = [each for each in found if isinstance(each, Reading)][-1]
    assert last.matrix[last.entities.index("r1/n1/1"), NAMES.index("step")] == 3


def test_the_collector_is_back_once_no_unreadable_ring_is_left(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    bad = Trainer(tmp_path, 0, clock)
    bad.path.write_bytes(b"STRANGER" * 1000)
    write_listing(tmp_path, bad)
    assert [event.name for event in events_of(watch(collector, clock, 2.0))] == ["collector.failing"]
    write_listing(tmp_path, Trainer(tmp_path, 0, clock, epoch=2))
    assert [event.name for event in events_of(watch(collector, clock, 2.0))] == ["collector.back"]


def test_a_ring_that_is_cut_short_under_us_is_told_once(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    collector.collect()
    trainer.ring.close()
    os.truncate(trainer.path, 100)
    names = [event.attributes["reason"] for event in events_of(watch(collector, clock, 3.0))]
    assert 1 <= len(names) <= 2, "once for the cut, once for what is found when it is opened again"


def test_a_listing_that_is_torn_or_newer_is_passed_over(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    write_listing(tmp_path, Trainer(tmp_path, 0, clock))
    (tmp_path / "jobs" / "torn.json").write_text('{"version": 1, "job":')
    (tmp_path / "jobs" / "newer.json").write_text('{"version": 2, "job": "a/b/c", "run": "c"}')
    assert list(reading_of(collector.collect())) == ["r1/n1/0"]


# --- stalls


def run_steps(collector: TrainingCollector, clock: FakeClock, *trainers: Trainer, steps: int = 6) -> list[Any]:
    found: list[Any] = []
    for number in range(steps):
        for trainer in trainers:
            trainer.step(number)
        found += watch(collector, clock, 0.4)
    for trainer in trainers:
        trainer.begin(steps)
        trainer.mark("forward")
    clock.advance(0.2)
    return found + collector.collect()


def test_a_hung_worker_is_told_once_with_the_positions_of_all(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    hung, waiting = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    write_listing(tmp_path, hung, waiting)
    assert events_of(run_steps(collector, clock, hung, waiting)) == []
    clock.advance(0.2)
    waiting.mark("communication")
    early = collector.collect() + watch(collector, clock, 0.4)
    assert events_of(early) == []
    stalls = events_of(watch(collector, clock, 0.6))
    assert [(event.name, event.entity.name) for event in stalls] == [("stall", "r1/n1/0"), ("stall", "r1/n1/1")]
    assert stalls[0].time == stalls[1].time, "in the same round, so that they can be compared"
    assert stalls[0].attributes["phase"] == "forward"
    assert stalls[1].attributes["phase"] == "communication"
    assert int(stalls[0].attributes["marks"]) < int(stalls[1].attributes["marks"])
    assert float(stalls[0].attributes["age_s"]) == pytest.approx(1.0, abs=0.21)
    assert stalls[0].job == "default/gpt/r1"
    assert stalls[0].attributes["step"] == "6"
    assert events_of(watch(collector, clock, 5.0)) == []


def test_a_worker_that_pauses_for_data_is_seen_beside_those_that_wait_for_it(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    reading, waiting = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    write_listing(tmp_path, reading, waiting)
    run_steps(collector, clock, reading, waiting)
    reading.mark("data")
    waiting.mark("communication")
    stalls = events_of(watch(collector, clock, 1.4), "stall")
    assert {event.entity.name: event.attributes["phase"] for event in stalls} == {
        "r1/n1/0": "data",
        "r1/n1/1": "communication",
    }


def test_a_worker_that_moves_is_not_told_beside_one_that_stands(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    hung, moving = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    write_listing(tmp_path, hung, moving)
    run_steps(collector, clock, hung, moving)
    stalls: list[Event] = []
    for _ in range(10):
        moving.mark("forward")
        stalls += events_of(watch(collector, clock, 0.2), "stall")
    assert [event.entity.name for event in stalls] == ["r1/n1/0"]


def test_a_worker_that_moves_again_is_told(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    assert len(events_of(watch(collector, clock, 2.0), "stall")) == 1
    trainer.mark("backward")
    assert [event.name for event in events_of(watch(collector, clock, 0.4))] == ["resumed"]
    assert len(events_of(watch(collector, clock, 2.0), "stall")) == 1, "the next stall is a new one"


def test_a_long_iteration_is_no_stall(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    trainer.step_s = 2.0
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    assert events_of(watch(collector, clock, 5.4)) == []
    assert len(events_of(watch(collector, clock, 1.0), "stall")) == 1


@pytest.mark.parametrize(("phase", "limit"), [("data", 10.0), ("evaluation", 300.0), ("checkpoint", 300.0)])
def test_phases_that_may_take_long(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, phase: str, limit: float
) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    trainer.mark(phase)
    assert events_of(watch(collector, clock, limit - 0.5)) == []
    assert len(events_of(watch(collector, clock, 1.0), "stall")) == 1


def test_the_first_step_of_an_epoch_may_take_long(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    trainer.begin(0)
    assert events_of(watch(collector, clock, 299.0)) == []
    assert len(events_of(watch(collector, clock, 2.0), "stall")) == 1


def test_a_loop_that_is_over_does_not_stall(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    trainer.ring.now[RUNNING] = 0
    assert events_of(watch(collector, clock, 60.0)) == []


def test_what_nobody_watched_is_no_stall(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    clock.advance(30.0)
    assert events_of(collector.collect()) == [], "the whole machine may have stood still"
    clock.advance(30.0)
    trainer.mark()
    assert events_of(collector.collect()) == [], "the agent was stopped, the worker was not"


def test_a_dead_worker_does_not_stall(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    dead = Trainer(tmp_path, 0, clock, pid=DEAD_PID)
    dead.begin(1)
    write_listing(tmp_path, dead)
    assert events_of(watch(collector, clock, 400.0)) == []


def test_the_state_stopped_counts_after_half_a_second_in_any_phase() -> None:
    progress = Progress(Limits())
    sight = Sight("T", marks=1, phase="checkpoint", completed=5, running=True)
    told = []
    for tenth in range(10):
        progress.look(tenth / 10, sight)
        told.append(progress.stands())
    assert told == [False] * 6 + [True] * 4
    assert not progress.look(1.0, sight._replace(state="S"))
    assert not progress.stands()


def test_a_short_stop_is_no_stall() -> None:
    progress = Progress(Limits())
    for tenth, state in enumerate("STTTSTTTSTTT"):
        progress.look(tenth / 10, Sight(state, marks=tenth, phase="forward", completed=5, running=True))
        assert not progress.stands()


def test_a_stopped_worker_without_a_ring_is_resumed_by_its_state() -> None:
    progress = Progress(Limits())
    for tenth in range(8):
        progress.look(tenth / 10, Sight("T"))
    assert progress.stands()
    progress.stalled = True
    assert progress.look(0.9, Sight("S"))
    assert not progress.stalled


def test_the_first_step_does_not_count_for_the_mean() -> None:
    progress = Progress(Limits())
    progress.completed(60.0)
    assert progress.iteration_s == 60.0
    progress.completed(1.0)
    assert progress.iteration_s == 1.0


def test_evaluation_and_checkpoint_do_not_count_for_the_iteration_time(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    trainer.step(0)
    for number in range(1, 5):
        trainer.step(number, step_s=20.0, evaluation_s=15.0, checkpoint_s=4.9)
    trainer.begin(5)
    trainer.mark("forward")
    collector.collect()
    assert len(events_of(watch(collector, clock, 1.4), "stall")) == 1


# --- processes and sweeping


def test_a_recycled_pid_is_another_process() -> None:
    assert Process.open(os.getpid(), start_time_of(os.getpid()) + 1) is None
    process = Process.open(os.getpid(), start_time_of(os.getpid()))
    assert process is not None
    look = process.look()
    assert look is not None
    assert look.cpu_s > 0
    process.close()


def test_what_a_killed_launcher_left_is_swept(tmp_path: Path, clock: FakeClock) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    dead, living = Trainer(tmp_path, 0, clock, pid=DEAD_PID), Trainer(tmp_path, 1, clock)
    stray, elsewhere = shared / "eagle-eye-0-r0-n1-0-1.ring", shared / "eagle-eye-0-r0-n2-0-1.ring"
    for path, worker in ((stray, "r0/n1/0"), (elsewhere, "r0/n2/0")):
        RingWriter.create(path, pid=DEAD_PID, worker=worker, start_time=1).close()
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "precious").touch()
    dead_socket = tmp_path / "r1-0-1.sock"
    listening = socket.socket(socket.AF_UNIX)
    with listening, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(dead_socket))
        listening.bind(str(tmp_path / "r2-launcher.sock"))
        listening.listen()
        write_listing(tmp_path, dead, living, launcher=DEAD_PID)
        (listing,) = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*.json")]
        listing["workers"][0]["socket"] = str(outside / "precious")
        (tmp_path / "jobs" / "r1.json").write_text(json.dumps(listing))
        jobs = JobDirectory(tmp_path).look()
        later = max(path.stat().st_mtime for path in tmp_path.rglob("*")) + 120
        removed = sweep(tmp_path, jobs, later, "n1", shared)
    assert set(removed) == {dead.path, stray, dead_socket}
    assert living.path.exists()
    assert elsewhere.exists()
    assert (outside / "precious").exists(), "a listing cannot make us remove anything outside our folders"
    assert (tmp_path / "r2-launcher.sock").exists()


def test_nothing_of_a_living_launcher_is_swept(tmp_path: Path, clock: FakeClock) -> None:
    dead = Trainer(tmp_path, 0, clock, pid=DEAD_PID)
    write_listing(tmp_path, dead)
    jobs = JobDirectory(tmp_path).look()
    assert sweep(tmp_path, jobs, 1e12, "n1", tmp_path) == []


def test_the_columns_of_a_ring_are_known_names() -> None:
    assert {"step_s", "loss", "tokens", "grad_norm", "evaluation_s", "checkpoint_s"} <= set(COLUMNS)
