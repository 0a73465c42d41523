"""Fault schedules on real processes that strike beyond the step: who recovers, who joins, who stands still, the coordinator."""

import pytest

from benchmarks.elastic.invariants import Expected
from fakes.fault_schedules import BEYOND, missing, played

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("kind", BEYOND)
def test_a_run_that_was_struck_ends_with_the_bits_of_one_that_was_not(kind: str, expected: Expected) -> None:
    found = played(kind, expected)
    assert [str(verdict) for verdict in found if verdict.wrong] == []
    assert not missing(kind, found), f"the record never proved where the fault landed: {[str(each) for each in found]}"
