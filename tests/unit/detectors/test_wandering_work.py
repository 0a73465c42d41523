"""Who was slow and kept up again, one after the other: that is work, and no machine."""

import pytest

from detectors.features.wandering_work import WITHIN, WanderingWork


def seen(*episodes: tuple[str, int, int]) -> WanderingWork:
    work = WanderingWork(apart=6)
    for worker, found, lasted in episodes:
        work.add(worker, found, lasted)
    return work


@pytest.mark.parametrize(
    ("episodes", "wanders"),
    [
        ([("a", 0, 12), ("b", 12, 12), ("c", 24, 12)], True),
        ([("a", 0, 12), ("b", 12, 12)], False),
        ([("a", 0, 12), ("b", 12, 12), ("me", 24, 12)], False),
        ([("a", 0, 40), ("b", 12, 40), ("c", 24, 40)], False),  # one node, one of its workers after the other
        ([("a", 0, 20), ("b", 5, 20), ("c", 10, 15), ("d", 20, 20), ("e", 28, 20), ("f", 40, 20)], True),  # several at a time
        ([("a", 0, 0), ("b", 5, 0), ("c", 10, 0)], False),
        ([("a", 0, 0), ("b", 7, 0), ("c", 14, 0)], True),
    ],
)
def test_work_wanders_where_three_others_were_slow_one_after_the_other(episodes: list[tuple[str, int, int]], wanders: bool) -> None:
    assert bool(seen(*episodes).why("me", 60)) == wanders


def test_what_was_long_ago_and_what_is_not_over_says_nothing() -> None:
    work = seen(("a", 0, 12), ("b", 12, 12), ("c", 24, 12))
    assert work.why("me", WITHIN)
    assert not work.why("me", WITHIN + 1)
    work.drop("c")
    assert not work.why("me", 60)
    work.drop("nobody")
    work.forget()
    assert work.found("a") is None


def test_who_is_slow_for_three_times_as_long_as_any_other_has_no_such_work() -> None:
    work = seen(("a", 0, 12), ("b", 12, 20))
    assert not work.outlasts("me", 40, 100)
    assert work.outlasts("me", 40, 101)
    assert not seen().outlasts("me", 0, 18)
    assert seen().outlasts("me", 0, 19)
