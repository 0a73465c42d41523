"""Who is to blame among elements that call one another: what each loses by itself, not what it waits for."""

import numpy as np
import pytest

from detectors.diagnosis.call_cost_ranking import CallCosts, loss_of, ranking
from eagle_eye.types import Doubles

HEALTHY = np.tile([0.99, 1.0, 1.01], 20)
NEEDS = {"site": {"search", "pay"}, "search": {"table"}, "pay": {"table"}, "client": {"search"}}


def element(cost: float, *, calls: float = 100.0, before: float = 1.0, healthy: Doubles = HEALTHY) -> CallCosts:
    return CallCosts(np.array([cost, cost]), np.full(2, calls), np.array([before]), healthy)


def named(elements: dict[str, CallCosts]) -> list[str]:
    losses = {name: loss_of(each) for name, each in elements.items()}
    return [each.name for each in ranking(losses, NEEDS, "site") if each.own > 0.0]


def test_the_narrowest_element_that_explains_its_dependants_is_named() -> None:
    assert named({"site": element(2.0), "search": element(2.0), "pay": element(1.0), "table": element(2.0)}) == ["table"]
    assert named({"site": element(2.0), "search": element(2.0), "pay": element(1.0), "table": element(1.0)}) == ["search"]
    assert named({"site": element(2.0), "search": element(1.0), "pay": element(1.0), "table": element(1.0)}) == ["site"]


def test_what_is_slow_for_everybody_counts_more_than_what_is_slower_for_hardly_anybody() -> None:
    assert named({"site": element(1.5), "search": element(1.5), "pay": element(3.0, calls=2.0), "table": element(1.0)})[0] == "search"


@pytest.mark.parametrize(
    "innocent",
    [element(1.03), element(9.0, before=9.0), element(9.0, healthy=np.tile([1.0, 5.0, 9.0], 20)), element(0.1)],
    ids=["as much as ever", "slow before", "often so in healthy times", "faster"],
)
def test_an_element_that_is_as_usual_is_not_named(innocent: CallCosts) -> None:
    assert named({"site": element(1.5), "search": element(1.5), "pay": innocent, "table": element(1.0)}) == ["search"]


def test_who_is_not_needed_is_not_named() -> None:
    assert named({"site": element(1.0), "client": element(9.0)}) == []


def test_without_healthy_times_the_moments_before_are_usual() -> None:
    assert loss_of(element(3.0, healthy=np.array([]))) == pytest.approx(400.0)
    assert np.isnan(loss_of(element(3.0, healthy=np.array([]), before=np.nan)))
    assert np.isnan(loss_of(element(np.nan)))


def test_a_gap_in_what_was_measured_counts_as_nothing_lost() -> None:
    costs = element(3.0)._replace(costs=np.array([np.nan, 3.0]), healthy=np.array([]))
    assert loss_of(costs) == pytest.approx(200.0)


def test_elements_that_call_one_another_in_a_circle_end_the_search() -> None:
    assert [each.name for each in ranking({"a": 1.0, "b": 5.0}, {"a": {"b"}, "b": {"a", "b"}}, "a")] == ["b", "a"]
