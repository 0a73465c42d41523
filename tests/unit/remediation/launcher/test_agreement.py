"""The model check of launchers and server (`python -m benchmarks.faults.agreement`), on the seeds that once showed a mistake."""

import pytest

from benchmarks.faults.agreement.bugs import put_back
from benchmarks.faults.agreement.schedule import drawn
from benchmarks.faults.agreement.world import world_of


def violations(seed: int) -> list[str]:
    with world_of(drawn(seed)) as world:
        return [str(each) for each in world.run()]


@pytest.mark.parametrize(("seed", "why"), [
    (4, "most votes cannot be read any more: everybody is there, and nobody may count"),
    (14, "two launchers wait for each other, since the last coordinator was started again"),
    (52, "a launcher that answered too late was never asked to join again"),
    (81, "a majority with too few nodes ended its workers, and who came back did not say that it had none left"),
    (134, "a kernel that holds workers ended their launcher"),
    (168, "workers of a newer epoch were ended for those that the kernel held"),
    (535, "a coordinator followed itself"),
    (675, "a coordinator gave way to a candidate in the moment in which it had won its majority"),
    (27, "a launcher had voted for an epoch, never heard that it was valid, and voted for another one after the same last epoch"),
    (47, "a launcher joined a coordinator that knew less than it did, and both sides began an epoch of the same number"),
    (117, "the server let both halves of a job go on, under two numbers"),
    (688, "who was left out kept to a coordinator that had given up; its ballots stood in the way of the next one"),
    (20136, "a session broke before its launcher had answered that it starts its workers, and they were ended as if they had failed"),
    (1650, "a launcher was started again while a majority was away, and once that was back nobody knew that its workers had ended"),
    (1811, "who was asked twice for its vote ended the workers that it had started meanwhile"),
    (1919, "workers were started while those of an older epoch were ended, and ended with them"),
    (3078, "a coordinator that was asked to join again took itself for a launcher without workers"),
    (959, "a number above all lost votes was named once, and its answer was lost"),
])  # fmt: skip
def test_a_schedule_that_once_broke_something_breaks_nothing(seed: int, why: str) -> None:
    assert not violations(seed), why


@pytest.mark.parametrize(("bug", "seed"), [
    ("silence", 39), ("unreadable", 7), ("spares", 17), ("number", 27), ("cut off", 27), ("left behind", 7), ("undecided", 27), ("undecided", 47),
    ("both halves", 117),
])  # fmt: skip
def test_a_mistake_that_is_put_back_is_found(bug: str, seed: int) -> None:
    with put_back(bug):
        assert violations(seed)
