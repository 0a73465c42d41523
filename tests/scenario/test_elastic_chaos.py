"""Fault schedules on real processes that strike in a step: all end with the bits of a sequential run that uses nothing of ours."""

import pytest

from benchmarks.elastic.commits import Commit
from benchmarks.elastic.invariants import Expected, wrong_samples
from benchmarks.elastic.schedules import flipped
from fakes.fault_schedules import IN_A_STEP, missing, played

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("kind", IN_A_STEP)
def test_a_run_that_was_struck_ends_with_the_bits_of_one_that_was_not(kind: str, expected: Expected) -> None:
    found = played(kind, expected)
    assert [str(verdict) for verdict in found if verdict.wrong] == []
    assert not missing(kind, found), f"the record never proved where the fault landed: {[str(each) for each in found]}"


def test_one_flipped_bit_of_one_gradient_is_seen(expected: Expected) -> None:
    assert flipped(expected)


def commit(step: int, worker: str, **share: list[int]) -> Commit:
    return Commit(worker, ord(worker), step, 0.0, 0.0, {"micro_batches": share})


WHOLE = {"a": [0, 1, 2, 3, 4, 5, 6, 7], "b": [8, 9, 10, 11, 12, 13, 14, 15]}


@pytest.mark.parametrize(
    ("commits", "words"),
    [
        ([commit(0, "a", **WHOLE), commit(0, "b", **WHOLE)], []),
        ([commit(0, "a", a=WHOLE["a"])], ["lost or doubled"]),
        ([commit(0, "a", a=WHOLE["a"], b=[7, *WHOLE["b"]])], ["lost or doubled"]),
        ([commit(0, "a", **WHOLE), commit(0, "b", b=WHOLE["a"], a=WHOLE["b"])], ["do not agree"]),
        ([commit(0, "a", **WHOLE), commit(0, "a", **WHOLE)], ["committed twice"]),
        ([], ["nobody committed step 0"]),
    ],
)
def test_a_sample_that_is_lost_or_doubled_is_seen(commits: list[Commit], words: list[str]) -> None:
    found = wrong_samples(commits, 1)
    assert len(found) == len(words)
    assert all(word in said for word, said in zip(words, found, strict=True))


