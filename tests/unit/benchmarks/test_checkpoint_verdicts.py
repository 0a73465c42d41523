"""What the benchmarks of checkpoints take for a goal that is met, and what not."""

import pytest

from benchmarks.checkpoint import flips, many_saves, reshard
from benchmarks.checkpoint.flips import Outcome
from benchmarks.checkpoint.lost_nodes import KINDS, Loss, losses, rows_of
from benchmarks.checkpoint.many_saves import Usage

ALONE, APART, ADJACENT = KINDS
FROM_STORAGE = dict.fromkeys(range(4), "storage")


def tiers(*lost: int) -> dict[int, str]:
    return {rank: "neighbour" if rank in lost else "memory" for rank in range(4)}


@pytest.mark.parametrize(
    ("loss", "right"),
    [
        (Loss(ALONE, (1,), 10, 10, True, tiers(1)), True),
        (Loss(APART, (1, 3), 10, 15, True, tiers(1, 3)), True),
        (Loss(ADJACENT, (1, 2), 10, 10, True, FROM_STORAGE), True),
        (Loss(ALONE, (1,), 10, 10, False, tiers(1)), False),
        (Loss(ALONE, (1,), 10, 5, True, tiers(1)), False),
        (Loss(ALONE, (1,), 10, 10, True, FROM_STORAGE), False),
        (Loss(ADJACENT, (1, 2), 10, 10, True, tiers(1, 2)), False),
        (Loss(ALONE, (1,), -1, -1, True, {}), False),
    ],
    ids=["neighbour", "a later step", "storage", "other bits", "an older step", "storage for one", "memory for two", "no end"],
)
def test_a_lost_node_is_survived_with_the_same_bits_the_safe_step_and_from_the_nearest_tier(loss: Loss, right: bool) -> None:
    [row] = rows_of([loss])
    assert row.met is right


def test_each_node_and_each_pair_of_four_is_lost_once() -> None:
    found = losses(one_each=False)
    assert [nodes for kind, nodes in found if kind == APART] == [(0, 2), (1, 3)]
    assert [nodes for kind, nodes in found if kind == ADJACENT] == [(0, 1), (0, 3), (1, 2), (2, 3)], "the ring ends where it began"
    assert len(found) == len({nodes for _, nodes in found}) == 10


def test_a_flip_that_is_told_without_its_reason_misses_that_goal_alone() -> None:
    used, reason = flips.rows_of("neighbour", {"table": [Outcome(), Outcome(has_reason=True)], "sums": [Outcome(has_reason=True)]})
    assert (used.met, reason.met, reason.figure) == (True, False, "2 of 3")
    used, _ = flips.rows_of("storage", {"shard": [Outcome("no event"), Outcome("no event")]})
    assert used.met is False
    assert "2 × shard: no event" in used.figure


@pytest.mark.parametrize(
    ("after", "met"),
    [
        (Usage(101_000_000, 8, 5, 4, 20_000_004), True), (Usage(101_000_001, 8, 5, 4, 20_000_000), False), (Usage(100_000_000, 9, 5, 4, 20_000_000), False),
        (Usage(100_000_000, 8, 6, 4, 20_000_000), False), (Usage(100_000_000, 8, 5, 5, 20_000_000), False), (Usage(100_000_000, 8, 5, 4, 20_004_096), False),
        (Usage(90_000_000, 7, 5, 4, 20_000_000), True),
    ],
    ids=["digits", "memory", "descriptors", "threads", "files", "bytes of files", "less"],
)  # fmt: skip
def test_what_grows_with_saves_misses_the_goal(after: Usage, met: bool) -> None:
    [row] = many_saves.rows_of("in memory", 10_000, {"launcher": (Usage(100_000_000, 8, 5, 4, 20_000_000), after)})
    assert row.met is met


def test_a_rank_that_fails_has_not_loaded_the_same_bits() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("rank 1 ended")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reshard, "on_ranks", fail)
        for row in (reshard.sharded_row(4, 3), reshard.pipeline_row((3, 3, 2), (8,))):
            assert (row.figure, row.met) == ("a rank failed", False)
