"""What a launcher remembers of its commanders, over its own restarts."""

from pathlib import Path

import pytest

from eagle_eye.errors import ControlError, Stale
from eagle_eye.rpc.command_fence import ANSWERS, FILE, CommandFence
from eagle_eye.rpc.control_messages import Command

JOB = "tenant/gpt/run1"


def order(step: str = "restart", *, plan: str = "plan-1", term: int = 3, epoch: int = 2, job: str = JOB) -> Command:
    return Command(action="restart", job=job, leader_term=term, epoch=epoch, plan=plan, step=step)


def test_an_older_term_is_refused_with_both_numbers_even_after_a_restart(tmp_path: Path) -> None:
    CommandFence(tmp_path).admit_term(5)
    with pytest.raises(Stale, match="leader term 4 is older than term 5"):
        CommandFence(tmp_path).admit(order(term=4))


def test_an_older_epoch_is_refused_with_both_numbers_even_after_a_restart(tmp_path: Path) -> None:
    CommandFence(tmp_path).admit(order(epoch=7))
    with pytest.raises(Stale, match=f"epoch 6 of {JOB} is over: epoch 7"):
        CommandFence(tmp_path).admit(order(epoch=6))
    assert CommandFence(tmp_path).admit(order(epoch=7)) is None


def test_epochs_of_different_jobs_do_not_meet() -> None:
    fence = CommandFence()
    fence.admit(order(job="tenant/other/run1", epoch=9))
    assert fence.admit(order(epoch=1)) is None


def test_a_command_raises_what_is_remembered(tmp_path: Path) -> None:
    assert CommandFence(tmp_path).admit(order(term=4, epoch=6)) is None
    after = CommandFence(tmp_path)
    assert (after.term, after.epoch(JOB)) == (4, 6)


def test_a_term_in_which_a_digit_was_lost_is_not_believed(tmp_path: Path) -> None:
    """Every leader would be refused until its term was as high."""
    CommandFence(tmp_path).admit(order(term=4))
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b'"term":4', b'"term":9'))
    assert CommandFence(tmp_path).term == 0
    assert path.with_name(f"{FILE}.torn").exists()


def test_zero_means_no_leader_and_no_epoch() -> None:
    fence = CommandFence()
    fence.admit(order(term=5, epoch=5))
    assert fence.admit(order("stop", plan="", term=0, epoch=0)) is None
    assert (fence.term, fence.epoch(JOB)) == (5, 5)


def test_a_step_that_was_done_is_answered_from_memory_though_its_epoch_is_over(tmp_path: Path) -> None:
    before = CommandFence(tmp_path)
    before.record(order(), {"epoch": 3})
    before.admit(order("later", epoch=3))
    assert CommandFence(tmp_path).admit(order()) == {"epoch": 3}
    with pytest.raises(Stale):
        CommandFence(tmp_path).admit(order("another"))


def test_a_step_that_was_done_is_still_not_answered_to_an_old_leader(tmp_path: Path) -> None:
    fence = CommandFence(tmp_path)
    fence.record(order(), {"epoch": 3})
    fence.admit_term(4)
    with pytest.raises(Stale, match="term 3 is older than term 4"):
        fence.admit(order())


def test_commands_without_a_plan_are_done_each_time() -> None:
    fence = CommandFence()
    fence.record(order(plan=""), {"first": True})
    assert fence.admit(order(plan="")) is None


def test_steps_whose_names_run_together_are_told_apart() -> None:
    fence = CommandFence()
    fence.record(order("c", plan="a/b"), {"of": "a/b"})
    assert fence.admit(order("b/c", plan="a")) is None


def test_the_oldest_answers_go_first_and_a_long_one_is_kept_as_a_fact() -> None:
    fence = CommandFence()
    for number in range(ANSWERS + 1):
        fence.record(order(f"step-{number}"), {"number": number})
    assert fence.admit(order("step-0")) is None
    assert fence.admit(order("step-1")) == {"number": 1}
    fence.record(order("dump"), {"stack": "x" * 100_000})
    assert fence.admit(order("dump")) == {"done": True, "shortened": True}


def test_a_job_that_is_over_is_forgotten(tmp_path: Path) -> None:
    fence = CommandFence(tmp_path)
    fence.admit(order(epoch=3))
    fence.forget(JOB)
    assert CommandFence(tmp_path).epoch(JOB) == 0


def test_a_fence_that_nobody_needs_any_more_leaves_nothing(tmp_path: Path) -> None:
    fence = CommandFence(tmp_path / "7-n0")
    fence.remove()
    fence.admit_term(5)
    assert (tmp_path / "7-n0" / FILE).exists()
    fence.remove()
    assert list(tmp_path.iterdir()) == []
    CommandFence().remove()


def test_a_torn_file_is_moved_aside_and_the_next_term_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CommandFence(tmp_path).admit_term(5)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: len(whole) // 2])
    fence = CommandFence(tmp_path)
    assert fence.term == 0
    assert "cannot be read" in caplog.text
    assert (tmp_path / f"{FILE}.torn").exists()
    fence.admit_term(2)
    assert CommandFence(tmp_path).term == 2


@pytest.mark.parametrize("damaged", [b'{"jobs": {"\xff": {}}}', b'{"more": ' + b"[" * 100_000, b"\0" * 64])
def test_a_file_that_is_damaged_in_any_way_ends_no_launcher(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / FILE).write_bytes(damaged)
    assert CommandFence(tmp_path).term == 0
    assert (tmp_path / f"{FILE}.torn").exists()


def test_a_place_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("a file where a directory should be")
    with pytest.raises(ControlError, match=r"cannot read .*fence\.json.*--state-dir"):
        CommandFence(tmp_path / "terms")


def test_nothing_is_admitted_that_could_not_be_written(tmp_path: Path) -> None:
    fence = CommandFence(tmp_path / "terms")
    (tmp_path / "terms").write_text("a file where a directory should be")
    for _ in range(2):
        with pytest.raises(ControlError, match=r"cannot write .*fence\.json"):
            fence.admit(order(term=4))
    (tmp_path / "terms").unlink()
    assert fence.admit(order(term=4)) is None
    assert CommandFence(tmp_path / "terms").term == 4


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    fence = CommandFence(tmp_path)
    for term in range(1, 5):
        fence.admit_term(term)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
