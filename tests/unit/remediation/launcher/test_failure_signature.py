"""Which failures are the program's own, and when they are the same."""

import pytest

from remediation.launcher.failure_signature import FailureLog, FailureSignature, signature_of

TRACEBACK = '''\
  File "/home/ada/train.py", line 40, in <module>
    main()
  File "/home/ada/data.py", line 12, in collate
    batch = stack(rows)
  File "/venv/lib/python3.11/site-packages/torch/functional.py", line 9, in stack
    raise ValueError
'''


def failure(step: int = 40, message: str = "negative length", line: int = 12) -> FailureSignature:
    found = signature_of("ValueError", message, TRACEBACK.replace("line 12", f"line {line}"), step)
    assert found is not None
    return found


def test_a_failure_is_told_by_the_users_own_frame() -> None:
    assert str(failure()) == "ValueError: negative length, at data.py:12 in collate, step 40"
    assert str(signature_of("KeyError", "", "", -1)) == "KeyError"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", "Connection closed by peer"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered"),
        ("OSError", "[Errno 28] No space left on device"),
        ("DistBackendError", "NCCL operation timed out"),
        ("", ""),
    ],
)
def test_what_hardware_network_or_storage_do_is_not_the_programs(kind: str, message: str) -> None:
    assert signature_of(kind, message, TRACEBACK, 40) is None


@pytest.mark.parametrize(
    ("again", "worker", "epoch"),
    [(failure(), "w1", 2), (failure(), "w2", 2), (failure(message="another length"), "w1", 2)],
    ids=["after a restart", "on another worker, to which the step was dealt on", "with other words"],
)
def test_the_same_failure_again_is_the_programs(again: FailureSignature, worker: str, epoch: int) -> None:
    log = FailureLog()
    assert log.repeated(failure(), "w1", 1) == ""
    assert "the same as of worker w1 in epoch 1" in log.repeated(again, worker, epoch)


def test_twin_what_all_ranks_raise_at_once_is_one_sighting() -> None:
    """A service that all of them share was away for a moment: it need not be when they start again."""
    log = FailureLog()
    assert [log.repeated(failure(), worker, 1) for worker in ("w1", "w2", "w3")] == ["", "", ""]
    assert log.repeated(failure(step=80), "w1", 2) == ""
    assert "the same as of worker w1 in epoch 1" in log.repeated(failure(), "w2", 3)


@pytest.mark.parametrize(
    "other", [failure(step=41), failure(line=13), None], ids=["another step", "another place", "not the program's"]
)
def test_another_failure_is_not_the_same(other: FailureSignature | None) -> None:
    log = FailureLog()
    log.repeated(failure(), "w1", 1)
    assert log.repeated(other, "w1", 2) == ""


def test_without_a_step_the_words_have_to_be_the_same() -> None:
    log = FailureLog()
    log.repeated(failure(step=-1), "w1", 1)
    assert log.repeated(failure(step=-1, message="another"), "w1", 2) == ""
    assert log.repeated(failure(step=-1), "w1", 3) != ""


def no_memory(step: int = 40) -> FailureSignature:
    found = signature_of("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", TRACEBACK, step)
    assert found is not None
    return found


def test_a_step_for_which_another_node_has_no_memory_either_is_the_programs() -> None:
    """A micro-batch that is dealt to the next worker would end one after the other."""
    log = FailureLog()
    assert log.repeated(no_memory(), "r/n0/0", 1) == ""
    assert log.repeated(no_memory(), "r/n0/1", 2) == ""
    assert "the same as of worker r/n0/0 in epoch 1" in log.repeated(no_memory(), "r/n1/0", 3)


@pytest.mark.parametrize(
    ("again", "worker", "epoch"),
    [(no_memory(), "r/n0/0", 2), (no_memory(), "r/n0/1", 2), (no_memory(), "r/n1/0", 1), (no_memory(41), "r/n1/0", 2), (no_memory(-1), "r/n1/0", 2)],
    ids=["the same worker", "its neighbour on the node", "all at once", "another step", "no step is known"],
)
def test_twin_a_lack_of_memory_that_a_restart_or_another_node_may_help_against_is_not(again: FailureSignature, worker: str, epoch: int) -> None:
    log = FailureLog()
    log.repeated(no_memory(again.step if again.step < 0 else 40), "r/n0/0", 1)
    assert log.repeated(again, worker, epoch) == ""
