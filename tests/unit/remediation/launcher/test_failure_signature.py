"""Which failures are the program's own, and when they are the same."""

import signal

import pytest

from remediation.launcher.coordinator.failure_signature import (
    FailureLog,
    FailureSignature,
    signature_of,
    signature_of_end,
)

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


def test_a_failure_is_told_with_the_micro_batch_whose_data_it_came_of() -> None:
    noted = signature_of("ValueError", "negative length", TRACEBACK, 40, "in step 40, micro-batch 3\nof shard 17")
    assert noted is not None
    assert noted.key == failure().key, "the same, whichever micro-batch of the step is run first"
    assert str(noted) == "ValueError: negative length, at data.py:12 in collate, in step 40, micro-batch 3"
    assert str(signature_of("ValueError", "negative length", TRACEBACK, 40, "of shard 17")).endswith("in collate, step 40, of shard 17")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", "[pair.cc:553] Connection closed by peer"),
        ("RuntimeError", "CUDA error: uncorrectable ECC error encountered"),
        ("OSError", "[Errno 28] No space left on device"),
        ("DistBackendError", "NCCL operation timed out"),
        ("", ""),
    ],
)
def test_what_hardware_network_or_storage_do_is_not_the_programs(kind: str, message: str) -> None:
    assert signature_of(kind, message, TRACEBACK, 40) is None


@pytest.mark.parametrize(
    ("kind", "message", "whose"),
    [
        ("KeyError", "'infiniband'", "the program or its data fails"),
        ("ValueError", "watchdog_interval must be positive", "the program or its data fails"),
        ("ConnectionRefusedError", "[Errno 111] Connection refused", "the program, or a service that it asks, fails"),
        ("TimeoutError", "The read operation timed out", "the program, or a service that it asks, fails"),
    ],
)
def test_words_of_the_network_that_the_script_itself_raises_are_a_failure_as_any_other(kind: str, message: str, whose: str) -> None:
    found, log = signature_of(kind, message, TRACEBACK, 40), FailureLog()
    assert found is not None
    assert log.repeated(found, "r/n0/0", 1) == ""
    assert whose in log.repeated(found, "r/n1/0", 2)


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("index 1733 is out of bounds", "index 92 is out of bounds"),
        ("rank 3: <Batch at 0x7f3a2c10e5b0> has 0.5 tokens", "rank 12: <Batch at 0x7fa9> has 17 tokens"),
        ("sample deadbeef01 is empty", "sample 0badcafe99 is empty"),
    ],
)
def test_without_a_step_numbers_and_addresses_in_the_words_do_not_count(before: str, after: str) -> None:
    log = FailureLog()
    log.repeated(failure(step=-1, message=before), "w1", 1)
    assert log.repeated(failure(step=-1, message=after), "w1", 2) != ""
    assert failure(step=-1, message=before).kind == failure(step=-1, message=after).kind


@pytest.mark.parametrize("other", [failure(step=-1, message="index 92 is out of bounds", line=13), failure(step=-1, message="key 92 is missing")])
def test_twin_another_line_or_other_words_are_another_failure_whatever_the_numbers(other: FailureSignature) -> None:
    log = FailureLog()
    log.repeated(failure(step=-1, message="index 92 is out of bounds"), "w1", 1)
    assert log.repeated(other, "w1", 2) == ""


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


# --- ends without an exception of the program's own -------------------------------------------------------------------


def ended(code: int, step: int = 40) -> FailureSignature:
    found = signature_of_end(code, step)
    assert found is not None
    return found


def on_gpu(message: str = "an illegal memory access was encountered", line: int = 12) -> FailureSignature:
    found = signature_of("RuntimeError", f"CUDA error: {message}", TRACEBACK.replace("line 12", f"line {line}"), 40)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "step"),
    [(-signal.SIGKILL, 40), (-signal.SIGTERM, 40), (128 + signal.SIGKILL, 40), (128 + signal.SIGTERM, 40), (0, 40), (None, 40), (3, -1), (-signal.SIGSEGV, -1)],
)
def test_what_comes_from_outside_or_in_a_step_that_is_not_known_says_nothing(code: int | None, step: int) -> None:
    assert signature_of_end(code, step) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [(ended(3), ended(3)), (ended(-signal.SIGSEGV), ended(128 + signal.SIGSEGV)), (on_gpu(), on_gpu(line=13))],
    ids=["exit code", "signal, once told by a shell", "error of CUDA, told at another line"],
)
def test_the_same_end_in_the_same_step_on_another_node_is_the_programs(one: FailureSignature, other: FailureSignature) -> None:
    log = FailureLog()
    assert log.repeated(one, "r/n0/0", 1) == ""
    assert "the same as of worker r/n0/0 in epoch 1, now of worker r/n1/0" in log.repeated(other, "r/n1/0", 2)


def test_an_exit_code_is_chosen_and_need_not_come_from_another_node() -> None:
    log = FailureLog()
    assert log.repeated(ended(3), "r/n0/0", 1) == ""
    assert log.repeated(ended(3), "r/n0/1", 2) != ""


@pytest.mark.parametrize(
    ("first", "again", "worker", "epoch"),
    [
        (ended(1), ended(1), "r/n0/0", 2),
        (ended(-signal.SIGSEGV), ended(-signal.SIGSEGV, 41), "r/n1/0", 2),
        (ended(-signal.SIGSEGV), ended(-signal.SIGSEGV), "r/n0/1", 2),
        (on_gpu(), on_gpu(), "r/n0/1", 2),
        (on_gpu(), on_gpu("device-side assert triggered"), "r/n1/0", 2),
        (ended(3), ended(3), "r/n1/0", 1),
        (ended(3), ended(4), "r/n1/0", 2),
    ],
    ids=["the same worker", "another step", "its neighbour: memory", "its neighbour: GPUs", "another error", "all at once", "another code"],
)
def test_twin_an_end_that_a_machine_may_be_to_blame_for_is_not(first: FailureSignature, again: FailureSignature, worker: str, epoch: int) -> None:
    log = FailureLog()
    assert log.repeated(first, "r/n0/0", 1) == ""
    assert log.repeated(again, worker, epoch) == ""


@pytest.mark.parametrize("end", [ended(-signal.SIGSEGV), on_gpu()], ids=["signal", "error of CUDA"])
def test_a_step_that_cannot_be_dealt_away_from_the_only_node_needs_no_other_one(end: FailureSignature) -> None:
    log = FailureLog()
    log.repeated(end, "r/n0/0", 1, one_node=True)
    assert log.repeated(end, "r/n0/1", 2, one_node=True) != ""


def test_twin_peers_that_end_in_the_same_way_as_the_broken_node_before_them_prove_nothing() -> None:
    """Each worker of this script ends with code 1 once a peer is gone; whose end is told first differs."""
    log = FailureLog()
    assert [log.repeated(ended(1), worker, 1) for worker in ("r/n1/0", "r/n0/0")] == ["", ""]
    log.repeated(ended(1), "r/n0/1", 2)
    assert log.repeated(ended(1), "r/n1/0", 2) == ""
    assert log.told_again(ended(1), "r/n0/1", 2) == "", "the one that is broken has ended again"


def test_twin_ends_that_follow_a_kill_prove_nothing() -> None:
    log = FailureLog()
    for epoch, killed, worker in ((1, "r/n2/0", "r/n0/0"), (2, "r/n3/0", "r/n1/0")):
        assert log.repeated(None, killed, epoch) == ""
        assert log.repeated(ended(1), worker, epoch) == ""


def test_what_turns_out_to_have_missed_a_peer_is_forgotten() -> None:
    log = FailureLog()
    log.repeated(ended(1), "r/n0/0", 1)
    log.missed_a_peer("r/n0/0", 1)
    assert log.repeated(ended(1), "r/n1/0", 2) == ""
