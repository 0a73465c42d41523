"""The numbers of the training collector, over real rings and this very process."""

import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from collectors.agent.job_directory import LARGEST
from collectors.training import TrainingCollector
from collectors.worker.procfs import ProcessHandle, ProcStat
from collectors.worker.watched_worker import NAMES
from eagle_eye.clock import FakeClock
from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring_buffer import NAMES as COLUMNS
from eagle_eye.training.ring_buffer import RUNNING, start_time_of
from eagle_eye.types import Kind, Reading
from fakes.collector_readings import events_of, reading_of, steps_of, watch
from fakes.ring_trainer import DEAD_PID, Trainer, write_listing


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
    assert math.isnan(table["r1/n1/1"]["step"]), "it has set no mark yet"


def test_a_worker_behind_a_shell_has_no_processor_time_of_the_shell(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell is looked at until the ring says which process trains; that has used hours of processors before."""
    trainer = Trainer(tmp_path, 0, clock)
    listing = {**trainer.listing, "pid": os.getppid(), "start_time": start_time_of(os.getppid())}
    monkeypatch.setattr(Trainer, "listing", property(lambda _self: listing))
    away = trainer.path.rename(tmp_path / "later")
    write_listing(tmp_path, trainer)
    collector.collect()
    watch(collector, clock, 2.0)
    read = ProcessHandle.read

    def busy(self: ProcessHandle) -> ProcStat | None:
        stat = read(self)
        return stat._replace(cpu_s=1e6) if stat is not None and self.pid == os.getpid() else stat

    monkeypatch.setattr(ProcessHandle, "read", busy)
    away.rename(trainer.path)
    rows = [reading_of([each])["r1/n1/0"] for each in watch(collector, clock, 4.0) if isinstance(each, Reading)]
    assert all(math.isnan(row["cpu_percent"]) or row["cpu_percent"] < 1e4 for row in rows)
    assert rows[-1]["cpu_percent"] == 0.0


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


@pytest.mark.parametrize("jump", [30.0, -3600.0])
def test_steps_and_ages_after_the_clock_was_set_are_of_the_clock_as_it_is(collector: TrainingCollector, tmp_path: Path, clock: FakeClock, jump: float) -> None:
    trainer = Trainer(tmp_path, 0, clock)
    write_listing(tmp_path, trainer)
    trainer.step(0)
    watch(collector, clock, 1.0)
    clock.jump(jump)
    trainer.step(1)
    found = watch(collector, clock, 1.0)
    (steps,) = steps_of(found)
    assert clock.now() - steps.ends[0, 0] == pytest.approx(1.0, abs=0.3)
    last = [each for each in found if isinstance(each, Reading)][-1:]
    assert reading_of(last)["r1/n1/0"]["step_age_s"] == pytest.approx(1.0, abs=0.3)


def test_the_last_steps_of_a_dead_worker_are_read_and_its_ring_forgotten(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    dead = Trainer(tmp_path, 0, clock, pid=DEAD_PID)
    dead.step(5, loss=1.0)
    write_listing(tmp_path, dead)
    (steps,) = steps_of(collector.collect())
    assert steps.numbers.tolist() == [5]
    assert watch(collector, clock, 2.0) == []


def test_a_worker_that_has_finished_keeps_its_row_while_it_is_listed(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    """The detector would take a missing one for a worker of which nothing is known."""
    done, other = Trainer(tmp_path, 0, clock, pid=DEAD_PID), Trainer(tmp_path, 1, clock)
    done.step(5)
    done.ring.now[RUNNING] = 0
    write_listing(tmp_path, done, other)
    collector.collect()
    for _ in range(2):
        row = reading_of(watch(collector, clock, 1.0))["r1/n1/0"]
        assert (row["step"], row["running"]) == (5, 0)
        assert np.isnan(row["state"])
    write_listing(tmp_path, other)
    watch(collector, clock, 1.0)
    assert list(reading_of(watch(collector, clock, 1.0))) == ["r1/n1/1"]


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
    stale.epoch = stale.born = 2
    write_listing(tmp_path, stale)
    assert np.isnan(reading_of(collector.collect())["r1/n1/0"]["step"])


def test_an_elastic_worker_is_read_on_in_the_next_epoch_and_no_step_comes_twice(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    worker = Trainer(tmp_path, 0, clock, epoch=1)
    worker.step(1)
    write_listing(tmp_path, worker)
    found = collector.collect()
    worker.epoch = 2
    worker.ring.set_epoch(2)
    worker.step(2)
    write_listing(tmp_path, worker)
    found += watch(collector, clock, 2.0)
    told = [(each.epochs.tolist(), each.numbers.tolist()) for each in steps_of(found) if len(each.numbers)]
    assert told == [([1], [1]), ([2], [2])]
    assert [each for each in found if isinstance(each, Reading)][-1].matrix[0, NAMES.index("step")] == 2


@pytest.mark.parametrize("spoil", ["version", "foreign", "short", "fifo", "directory"])
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
    bad.path.unlink()
    if spoil == "fifo":
        os.mkfifo(bad.path)
    elif spoil == "directory":
        bad.path.mkdir()
    else:
        bad.path.write_bytes(data)
    good.begin(3)
    write_listing(tmp_path, bad, good)
    found = collector.collect() + watch(collector, clock, 3.0)
    (event,) = events_of(found, "collector.failing")
    assert event.entity.kind is Kind.NODE
    assert (event.job, event.attributes["about"]) == ("default/gpt/r1", "worker r1/n1/0 of default/gpt/r1"), "told to its own job alone"
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
    assert [event.name for event in events_of(watch(collector, clock, 2.0))] == ["collector.recovered"]


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
    (tmp_path / "jobs" / "text.json").write_bytes(b'{"version": 1, "job": "\xff"}')
    (tmp_path / "jobs" / "deep.json").write_bytes(b'{"version": 1, "job": "a/b/c", "run": "c", "x": ' + b"[" * 100_000)
    (tmp_path / "jobs" / "large.json").write_bytes(b" " * (LARGEST + 1))
    (tmp_path / "jobs" / "nowhere.json").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "jobs" / "fifo.json")
    assert list(reading_of(collector.collect())) == ["r1/n1/0"]


def test_a_nan_that_was_logged_is_told_apart_from_nothing(
    collector: TrainingCollector, tmp_path: Path, clock: FakeClock
) -> None:
    first, second = Trainer(tmp_path, 0, clock), Trainer(tmp_path, 1, clock)
    write_listing(tmp_path, first, second)
    first.step(0, loss=float("nan"))
    second.step(0)
    (steps,) = steps_of(collector.collect())
    told = steps.values[0, :, steps.names.index("loss_nan")]
    assert (told[0], np.isnan(told[1])) == (1.0, True)


def test_the_columns_of_a_ring_are_known_names() -> None:
    assert {"step_s", "loss", "tokens", "grad_norm", "evaluation_s", "checkpoint_s"} <= set(COLUMNS)
