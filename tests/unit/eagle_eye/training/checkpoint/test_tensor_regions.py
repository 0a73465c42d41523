import itertools
import random

import pytest

from eagle_eye.training.checkpoint import tensor_regions
from eagle_eye.training.checkpoint.tensor_regions import Region, gap, joined, whole


def test_what_two_regions_have_in_common() -> None:
    left, right = Region((0, 2), (4, 4)), Region((3, 0), (5, 3))
    assert left.overlap(right) == right.overlap(left) == Region((3, 2), (1, 1))
    assert left.overlap(Region((4, 2), (1, 4))) is None
    assert Region((3, 2), (1, 1)).within(left) == (3, 0)
    assert whole(()).overlap(whole(())) == whole(()), "a scalar"
    assert whole((0,)).overlap(whole((0,))) is None


@pytest.mark.parametrize(
    ("shape", "regions", "why"),
    [
        ((10, 3), [Region((0, 0), (6, 3)), Region((6, 0), (4, 3))], ""),
        ((10, 3), [Region((6, 0), (4, 3)), Region((0, 0), (6, 1)), Region((0, 1), (6, 2))], ""),
        ((10, 3), [Region((0, 0), (6, 3))], "18 of 30 elements are there"),
        ((4,), [Region((0,), (3,)), Region((2,), (1,)), Region((0,), (0,))], "elements from (2,) on are there twice"),
        ((4,), [Region((2,), (4,))], "elements from (2,) on, (4,) of them, lie outside of (4,)"),
        ((2, 2), [Region((0, 0), (1, 2)), Region((0, 1), (2, 1)), Region((1, 0), (0, 1))], "elements from (0, 1) on are there twice"),
        ((4, 2), [Region((0, 0), (4, 1)), Region((0, 1), (1, 1)), Region((1, 1), (1, 1)), Region((2, 0), (2, 2))], "elements from (2, 0) on are there twice"),
        ((), [whole(())], ""),
        ((), [], "0 of 1 elements are there"),
        ((), [whole(()), whole(())], "elements from () on are there twice"),
        ((0, 3), [], ""),
    ],
)
def test_a_tensor_is_whole_where_each_element_is_there_once(shape: tuple[int, ...], regions: list[Region], why: str) -> None:
    assert gap(shape, regions) == why


def test_the_same_as_counting_elements_one_by_one() -> None:
    chance = random.Random(5)
    for _ in range(300):
        shape = (3, 3)
        regions = []
        for _ in range(chance.randrange(4)):
            offsets = chance.randrange(3), chance.randrange(3)
            regions.append(Region(offsets, tuple(chance.randint(0, 3 - offset) for offset in offsets)))
        counted = [
            sum(all(o <= i < o + n for o, n, i in zip(region.offsets, region.shape, element, strict=True)) for region in regions)
            for element in itertools.product(range(3), range(3))
        ]
        assert (gap(shape, regions) == "") == (set(counted) == {1}), regions


def test_regions_that_touch_are_one_whatever_lies_between_them_in_order() -> None:
    """Two layers of which a rank holds two slices each, as a gated layer that is cut by tensor parallelism does."""
    slices = [Region((layer, row, 0), (1, 2, 4)) for layer in range(3) for row in (0, 6)]
    found = joined(slices)
    assert [(region, numbers) for region, _, numbers in found] == [(Region((0, 0, 0), (3, 2, 4)), [0, 2, 4]), (Region((0, 6, 0), (3, 2, 4)), [1, 3, 5])]
    assert {dimension for _, dimension, _ in found} == {0}


def test_regions_of_another_width_or_with_a_gap_stay_apart() -> None:
    assert len(joined([Region((0, 0), (2, 4)), Region((2, 0), (1, 3))])) == 2
    assert len(joined([Region((0, 0), (2, 4)), Region((3, 0), (2, 4))])) == 2
    assert len(joined([Region((0, 0), (2, 4)), Region((2, 4), (2, 4))])) == 2
    assert joined([Region((), ())]) == [(Region((), ()), 0, [0])]


@pytest.mark.parametrize("along", [0, 1, 2])
def test_a_tensor_that_is_cut_along_any_dimension_costs_a_few_comparisons_per_piece(along: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, shape = 2048, tuple(2048 if dimension == along else 3 for dimension in range(3))
    regions = [Region(tuple(at if dimension == along else 0 for dimension in range(3)), tuple(1 if dimension == along else 3 for dimension in range(3))) for at in range(pieces)]
    compared = 0
    real = Region.overlap

    def counted(self: Region, other: Region) -> Region | None:
        nonlocal compared
        compared += 1
        return real(self, other)

    monkeypatch.setattr(Region, "overlap", counted)
    random.Random(3).shuffle(regions)
    assert gap(shape, regions) == ""
    assert compared <= 3 * pieces
    assert gap(shape, [*regions, regions[7]]).endswith("are there twice")


def grid(*extents: int) -> list[Region]:
    """A tensor of these extents in pieces of one element."""
    return [Region(place, (1,) * len(extents)) for place in itertools.product(*map(range, extents))]


@pytest.mark.parametrize("extents", [(40, 40), (12, 11, 12)])
def test_a_grid_of_pieces_costs_no_comparison_of_each_with_each(extents: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [0]
    overlap = Region.overlap

    def counted(self: Region, other: Region) -> Region | None:
        asked[0] += 1
        return overlap(self, other)

    monkeypatch.setattr(Region, "overlap", counted)
    pieces = grid(*extents)
    assert gap(extents, pieces) == ""
    assert asked[0] <= 3 * len(pieces)
    assert gap(extents, pieces[1:]) == f"{len(pieces) - 1} of {len(pieces)} elements are there"
    assert "there twice" in gap(extents, [*pieces[1:], pieces[-1]])
    assert asked[0] <= 9 * len(pieces)


def test_regions_are_counted_alike_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_regions, "_COMPARED", 0)
    drawn = random.Random(3)
    for _ in range(300):
        shape = tuple(drawn.randint(1, 4) for _ in range(3))
        pieces = grid(*shape)
        assert gap(shape, pieces) == ""
        if len(pieces) > 1:
            pieces[0] = drawn.choice(pieces[1:])
            assert gap(shape, pieces), (shape, pieces)
