"""What the engine learns of a job from its frames."""

import math

import msgspec
import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.job_snapshots import snapshot_of
from fakes.synthetic_job import SyntheticJob, incident
from remediation.engine.job_state import JobState


def follow(paper: SyntheticJob, job: JobState, seconds: float, *, calm=True) -> None:
    for _ in range(round(seconds * 10)):
        for snapshot in paper.advance(0.1):
            job.update(snapshot, calm=calm)


@pytest.fixture
def paper():
    return SyntheticJob(clock=FakeClock())


@pytest.fixture
def job(paper):
    return JobState(name=paper.name)


def test_throughput_is_learned_per_number_of_workers(paper, job):
    follow(paper, job, 8)
    assert job.expected(4) == pytest.approx(2048 / 0.2, rel=0.01)
    assert job.expected(2) == pytest.approx(1024 / 0.2, rel=0.01)  # in proportion, until it was measured
    paper.lose("node-b")
    paper.step_s = 0.15  # two workers do better here than half of four
    follow(paper, job, 8)
    assert job.expected(2) == pytest.approx(2048 / 0.3, rel=0.01)


def test_nothing_is_learned_while_a_fault_is_open_nor_kept_from_after_it_began(paper, job):
    follow(paper, job, 4, calm=False)
    assert math.isnan(job.expected(4))
    follow(paper, job, 4)
    paper.slow = lambda nodes: 5.0
    began = paper.clock.now()
    follow(paper, job, 10)
    job.discard_since(began)
    assert job.expected(4) == pytest.approx(2048 / 0.2, rel=0.01)


def test_nothing_is_learned_in_an_epoch_whose_action_did_not_help(paper, job):
    follow(paper, job, 6)
    paper.slow = lambda nodes: 5.0
    paper.lose("node-b")
    began = paper.clock.now()
    follow(paper, job, 20)
    job.discard_epoch(job.epoch, began)
    follow(paper, job, 20)
    assert job.expected(2) == pytest.approx(1024 / 0.2, rel=0.05)
    paper.slow = lambda nodes: 1.5
    paper._begin("node returned")
    follow(paper, job, 20)
    assert job.expected(2) == pytest.approx(1024 / 0.3, rel=0.05), "the next epoch is learned from"


def test_a_checkpoint_of_an_abandoned_course_is_forgotten(paper, job):
    follow(paper, job, 9)
    assert (job.good_checkpoint(29), job.good_checkpoint(30)) == (20, 30)
    paper._begin("command", plan="p", resume=20)
    follow(paper, job, 0.1)
    assert job.good_checkpoint(10**6) == 20


def test_a_checkpoint_with_bad_numbers_is_no_good_one(paper, job):
    paper.bad_batch = 12
    follow(paper, job, 9)
    assert job.checkpoints[20] is False
    assert job.good_checkpoint(21) == 10
    assert job.bad_step(incident(paper, "loss not finite", since=paper.clock.now() - 1)) == 12


def test_a_loss_that_is_told_now_and_then_is_no_bad_number(paper, job):
    paper.bad_batch = -1
    for frame in [frame for _ in range(80) for frame in paper.frames(0.1)]:
        for step in frame.steps:
            if step.number % 3:
                step.values["loss"][:] = math.nan
        job.update(snapshot_of(frame), calm=True)
    assert all(step.finite for step in job.steps)


def test_the_loss_of_fewer_workers_adds_up(paper, job):
    follow(paper, job, 5)
    began = paper.clock.now()
    paper.lose("node-b")
    follow(paper, job, 10)
    assert job.lost_gpu_seconds(began, began + 10) == pytest.approx(20, abs=0.5)
    assert not job.at_full_size


def test_a_job_of_which_no_layout_is_known_has_lost_nothing_that_could_be_counted(job):
    assert job.lost_gpu_seconds(0.0, 1e9) == 0.0


def test_a_layout_counts_once_its_epoch_is_the_highest_heard_of(paper, job):
    follow(paper, job, 1)
    assert job.current is not None
    event = paper.tell("epoch.started", epoch="7", reason="death")
    cut = paper._frame(tick=False, events=(event,))
    paper._events.clear()
    job.update(snapshot_of(cut), calm=True)
    assert job.epoch == 7
    assert job.current is None


def test_what_smaller_sizes_cost_is_measured_although_the_coordinators_clock_is_an_hour_ahead(paper, job):
    follow(paper, job, 5)
    began = paper.clock.now()
    paper.lose("node-b")
    paper._began += 3600.0  # the layout's time is the coordinator's
    follow(paper, job, 10)
    assert job.lost_gpu_seconds(began, began + 10) == pytest.approx(20, abs=0.5)


def test_parallel_ranks_that_become_known_later_begin_no_epoch(paper, job):
    follow(paper, job, 4)
    layout = msgspec.structs.replace(job.layout, resume_step=2)
    job._take_layout(msgspec.structs.replace(layout, epoch=layout.epoch + 1), 0.0)
    job.checkpoints[5] = True  # saved since
    sizes = list(job.sizes)
    known = tuple(msgspec.structs.replace(place, tp=place.rank) for place in layout.placements)
    job._take_layout(msgspec.structs.replace(layout, epoch=layout.epoch + 1, placements=known), 1.0)
    assert [place.tp for place in job.layout.placements] == [place.rank for place in known]
    assert 5 in job.checkpoints
    assert list(job.sizes) == sizes
