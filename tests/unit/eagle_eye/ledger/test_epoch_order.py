"""Two halves of a job, and the server between them: the second one gets no epoch that would leave the first behind."""

import pytest

from eagle_eye.ledger.epoch_table import may_follow
from eagle_eye.types import Layout


def layout(epoch: int, *nodes: str, excluded: tuple[str, ...] = ()) -> Layout:
    launchers = {node: f"{node}:1" for node in nodes}
    return Layout(job="t/n/r", epoch=epoch, time=0.0, coordinator=nodes[0], launchers=launchers, placements=(), excluded=excluded)


@pytest.mark.parametrize(("asks", "last", "newest", "may"), [
    (("n2", "n3"), 1, None, True),
    (("n2", "n3"), 1, layout(1, "n0", "n1", "n2", "n3"), True),
    (("n2", "n3"), 1, layout(2, "n0", "n1"), False),
    (("n1", "n2"), 1, layout(2, "n0", "n1"), True),
    (("n1", "n2"), 1, layout(2, "n0", "n1", "n4"), False),
    (("n0",), 3, layout(2, "n0", "n1", "n2", "n3"), True),
    (("n1",), 1, layout(2, "n0", "n1", "n4", excluded=("n4",)), True),
])  # fmt: skip
def test_a_side_that_has_missed_an_epoch_needs_half_of_those_who_have_it(asks: tuple[str, ...], last: int, newest: Layout | None, may: bool) -> None:
    assert may_follow(layout(4, *asks), last, newest) is may
