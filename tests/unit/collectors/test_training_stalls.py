"""What the training collector calls a stall, and what it does not, over real rings."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.training import TrainingCollector
from collectors.worker.stall_limits import ProgressSample, StallLimits, WorkerProgress
from eagle_eye.clock import FakeClock
from eagle_eye.training.ring_buffer import MARKS, RUNNING
from eagle_eye.types import Event
from fakes.collector_readings import events_of, reading_of, watch
from fakes.process_looks import ALL_REDUCE, TRAIN, VALIDATE, FakeProcesses, look
from fakes.ring_trainer import DEAD_PID, Trainer, write_listing


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


@pytest.mark.parametrize(("phase", "limit"), [("data", 10.0), ("evaluation", 10.0), ("checkpoint", 10.0)])
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
    assert events_of(watch(collector, clock, 9.0)) == []
    assert len(events_of(watch(collector, clock, 2.0), "stall")) == 1


def test_a_loop_that_is_over_does_not_stall(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    trainer.ring.now[RUNNING] = 0
    assert events_of(watch(collector, clock, 60.0)) == []


def test_who_has_left_its_loop_is_told_beside_a_peer_that_waits_for_it_and_until_that_moves(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    evaluating, waiting = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    write_listing(tmp_path, evaluating, waiting)
    run_steps(collector, clock, evaluating, waiting)
    evaluating.ring.now[RUNNING] = -1
    waiting.mark("backward")
    assert {event.entity.name for event in events_of(watch(collector, clock, 1.4), "stall")} == {evaluating.name, waiting.name}
    waiting.mark("forward")
    assert {event.entity.name for event in events_of(watch(collector, clock, 0.4), "resumed")} == {evaluating.name, waiting.name}
    waiting.ring.now[RUNNING] = -1
    assert events_of(watch(collector, clock, 60.0)) == [], "all have left it"


def test_who_is_stopped_behind_its_loop_is_told(collector: TrainingCollector, tmp_path: Path, clock: FakeClock) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        trainer = Trainer(tmp_path, 0, clock, pid=sleeper.pid)
        write_listing(tmp_path, trainer)
        run_steps(collector, clock, trainer)
        trainer.ring.now[RUNNING] = -1
        stopped(sleeper.pid)
        told = events_of(watch(collector, clock, 3.0), "stall")
        assert [event.attributes["state"] for event in told[:1]] == ["T"]
    finally:
        sleeper.kill()
        sleeper.communicate()


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
    progress = WorkerProgress(StallLimits())
    sight = ProgressSample("T", marks=1, phase="checkpoint", completed=5, running=True)
    told = []
    for tenth in range(10):
        progress.observe(tenth / 10, sight)
        told.append(progress.exceeds_limit())
    assert told == [False] * 6 + [True] * 4
    assert not progress.observe(1.0, sight._replace(state="S"))
    assert not progress.exceeds_limit()


def test_a_short_stop_is_no_stall() -> None:
    progress = WorkerProgress(StallLimits())
    for tenth, state in enumerate("STTTSTTTSTTT"):
        progress.observe(tenth / 10, ProgressSample(state, marks=tenth, phase="forward", completed=5, running=True))
        assert not progress.exceeds_limit()


def test_a_stopped_worker_without_a_ring_is_resumed_by_its_state() -> None:
    progress = WorkerProgress(StallLimits())
    for tenth in range(8):
        progress.observe(tenth / 10, ProgressSample("T"))
    assert progress.exceeds_limit()
    progress.stalled = True
    assert progress.observe(0.9, ProgressSample("S"))
    assert not progress.stalled


def test_the_first_step_does_not_count_for_the_mean() -> None:
    progress = WorkerProgress(StallLimits())
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


# --- what a suspected worker does


def test_what_a_suspected_worker_does_is_told_and_again_once_it_does_something_else(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, processes: FakeProcesses
) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    processes.sights[trainer.pid] = lambda number: look(VALIDATE, io_bytes=number << 20)
    first = events_of(watch(collector, clock, 2.0), "stall")[-1]
    assert (first.attributes["activity"], first.attributes["place"], first.attributes["gpu"]) == ("working", "train.py:212 validate", "")
    assert "works in train.py:212 validate" in first.message
    assert events_of(watch(collector, clock, 20.0)) == [], "the same is told once"
    processes.sights[trainer.pid] = lambda _: look(TRAIN, uses_gpu=True)
    (second,) = events_of(watch(collector, clock, 12.0), "stall")
    assert (second.attributes["activity"], second.attributes["gpu"]) == ("hung", "1")
    assert float(second.attributes["age_s"]) > 20


def unmarked(tmp_path: Path, clock: FakeClock, *pids: int, ring: bool) -> list[Trainer]:
    """Workers whose script makes no marks: they have no ring, or one that stays empty."""
    trainers = [Trainer(tmp_path, slot, clock, pid=pid) for slot, pid in enumerate(pids)]
    for trainer in [] if ring else trainers:
        trainer.path.unlink()
    write_listing(tmp_path, *trainers)
    return trainers


@pytest.mark.parametrize("ring", [False, True])
def test_workers_without_marks_are_told_once_none_of_them_works(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, processes: FakeProcesses, ring: bool
) -> None:
    pids = (os.getpid(), os.getppid())
    unmarked(tmp_path, clock, *pids, ring=ring)
    processes.sights = {pids[0]: lambda _: look(TRAIN), pids[1]: lambda number: look(VALIDATE, io_bytes=number << 20)}
    assert events_of(watch(collector, clock, 15.0)) == [], "one of them works: the other may wait for it"
    processes.sights[pids[1]] = lambda _: look(ALL_REDUCE, VALIDATE)
    stalls = events_of(watch(collector, clock, 15.0), "stall")
    assert {event.entity.name: event.attributes["activity"] for event in stalls} == {"r1/n1/0": "hung", "r1/n1/1": "awaits peers"}
    assert stalls[0].attributes["marks"] == ""
    row = reading_of(watch(collector, clock, 1.0))["r1/n1/0"]
    assert row["progress_age_s"] > 10
    processes.sights[pids[1]] = lambda number: look(VALIDATE, io_bytes=number << 20)
    assert [event.name for event in events_of(watch(collector, clock, 15.0))] == ["resumed"]


def test_each_look_is_told_though_it_shows_the_same(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, processes: FakeProcesses
) -> None:
    """Who is accused of waiting elsewhere was seen there after the others were: the age of the looks tells."""
    unmarked(tmp_path, clock, os.getpid(), ring=False)
    processes.sights[os.getpid()] = lambda _: look(ALL_REDUCE, VALIDATE)
    assert len(events_of(watch(collector, clock, 10.0))) == 1
    ages = [reading_of(watch(collector, clock, 1.0))["r1/n1/0"]["activity_seen_s"] for _ in range(4)]
    assert max(ages) < 2.0


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.001)"])
    yield process
    process.kill()
    process.wait()


def stopped(pid: int, *, is_stopped: bool = True) -> None:
    """Send the signal, and wait until the kernel has done it."""
    os.kill(pid, signal.SIGSTOP if is_stopped else signal.SIGCONT)
    while (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T") != is_stopped:
        pass


def test_a_worker_that_was_stopped_when_its_job_was_restarted_for_another_fault_is_told(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, child: subprocess.Popen[bytes]
) -> None:
    trainer = Trainer(tmp_path, 0, clock, pid=child.pid)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    stopped(child.pid)
    assert events_of(watch(collector, clock, 0.4)) == [], "too short for a proof while it lives"
    child.kill()
    child.wait()
    (told,) = events_of(watch(collector, clock, 1.0))
    assert (told.name, told.entity.name, told.attributes["state"], told.attributes["ended"]) == ("stall", "r1/n1/0", "T", "1")
    assert (told.attributes["step"], told.attributes["marks"]) == ("6", str(trainer.ring.now[MARKS])), "where it stood"


def test_twin_a_worker_that_is_stopped_and_continued_again_and_again_ends_like_any_other(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, child: subprocess.Popen[bytes]
) -> None:
    trainer = Trainer(tmp_path, 0, clock, pid=child.pid)
    write_listing(tmp_path, trainer)
    run_steps(collector, clock, trainer)
    for _ in range(3):
        trainer.mark("forward")
        stopped(child.pid)
        assert events_of(watch(collector, clock, 0.2)) == []
        stopped(child.pid, is_stopped=False)
    stopped(child.pid)
    assert events_of(watch(collector, clock, 0.2)) == []
    child.kill()
    child.wait()
    assert events_of(watch(collector, clock, 1.0)) == []
