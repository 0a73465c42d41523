"""Of jobs in which one rank stops, that one is named and no other: in pipelines, behind collectives of several groups, with and without its dump."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.activity.missing_ranks import missing_ranks
from fakes.flight_dumps import call, dumps, stuck
from fakes.stopped_jobs import Shape, StoppedJob, script

SHAPES = tuple(Shape(*each) for each in ((4, 2, 2), (2, 2, 4), (1, 1, 8), (2, 1, 4), (1, 4, 2), (4, 1, 1), (1, 2, 1), (2, 4, 2), (2, 4, 1), (1, 4, 4), (1, 3, 1)))
MESSAGE = {"pp": (0, 1, 2)}


@given(st.sampled_from(SHAPES), st.data())
@settings(deadline=None, max_examples=150)
def test_fault_the_one_that_stops_is_named_alone(shape: Shape, data: st.DataObject) -> None:
    stopped = data.draw(st.integers(0, shape.world - 1))
    calls = data.draw(st.integers(1, len(script(shape, stopped)) - 1))
    job = StoppedJob(shape, stopped, calls, data.draw(st.sampled_from([1, 3, 8, 1000])), Random(data.draw(st.integers(0, 5))))
    somebody_waits = any(over < enqueued for over, enqueued in zip(job.over, job.enqueued, strict=True))
    if not somebody_waits or job.over[stopped] < job.enqueued[stopped]:
        return  # it waits itself in what it has enqueued
    left_a_dump = data.draw(st.booleans())
    most_pending = max(enqueued - over for over, enqueued in zip(job.over, job.enqueued, strict=True))
    ring = data.draw(st.sampled_from([8, 2000])) if most_pending <= 8 else 2000  # what it waits in first is in the ring
    found = missing_ranks(job.dumps(() if left_a_dump else (stopped,), ring, pending_alone=data.draw(st.booleans())))
    assert (found.ranks, found.without_dump) == ((stopped,), () if left_a_dump else (stopped,))
    assert not found.mismatches


def test_fault_who_is_to_take_a_message_and_does_nothing_is_waited_for() -> None:
    assert missing_ranks(dumps([[stuck("send 0->1", group="pp")], []], {"pp": (0, 1)})).ranks == (1,)
    chain = [[stuck("send 0->1", group="pp")], [stuck("recv 1<-2", group="pp")], []]
    assert missing_ranks(dumps(chain, MESSAGE)).ranks == (2,)
    assert missing_ranks(dumps([*chain[:2], None], MESSAGE)).ranks == (2,)


def test_a_message_that_is_queued_behind_another_wait_has_not_come() -> None:
    chain = [[stuck("recv 0<-1", group="pp")], [stuck("recv 1<-2", group="pp"), stuck("send 1->0", group="pp")], []]
    assert missing_ranks(dumps(chain, MESSAGE)).ranks == (2,)


def test_twin_where_both_ends_stand_in_a_message_neither_is_named_but_the_link_between_them() -> None:
    found = missing_ranks(dumps([[call(), stuck("send 0->1")], [call(), stuck("recv 1<-0")], [call(), stuck()]]))
    assert (found.ranks, found.between) == ((), ((0, 1),))


def test_twin_a_rank_without_a_dump_that_may_wait_itself_is_not_named() -> None:
    """Its dump was not collected: rank 1 waits for it, and it may wait for rank 3."""
    groups = {"a": (0, 1), "b": (0, 2, 3)}
    found = missing_ranks(dumps([None, [stuck(group="a")], [stuck(group="b")], []], groups))
    assert (found.ranks, found.without_dump) == ((3,), (0,))


def test_where_all_that_left_a_dump_wait_for_somebody_one_without_is_named() -> None:
    groups = {"a": (0, 1), "b": (0, 2, 3)}
    assert missing_ranks(dumps([None, [stuck(group="a")], [stuck(group="b")], [stuck(group="b")]], groups)).ranks == (0,)


@pytest.mark.parametrize("behind", [[stuck("recv 2<-1", group="pp"), stuck(group="x")], [stuck("recv 2<-1", group="pp")]])
def test_who_has_enqueued_a_collective_behind_a_wait_keeps_the_others_of_it_waiting(behind: list[dict[str, object]]) -> None:
    """Rank 3 waits in group x for rank 2, which waits for a message of rank 1."""
    groups = {"pp": (0, 1, 2), "x": (2, 3)}
    assert missing_ranks(dumps([[], [], behind, [stuck(group="x")]], groups)).ranks == (1,)
