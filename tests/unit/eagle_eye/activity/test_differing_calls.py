"""Who called a collective otherwise than its group, and each fault's nearest innocent twin."""

from dataclasses import replace
from typing import Any

import pytest

from eagle_eye.activity.flight_dump import dump_of
from eagle_eye.activity.missing_ranks import MissingRanks, missing_ranks
from tests.fakes.flight_dumps import WORLD, call, dumps, record, stuck

USUAL = [call(sent=8), call("broadcast", sent=16), stuck(sent=8)]


def told(found: MissingRanks) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(each.kind, each.number, each.ranks) for each in found.mismatches]


# --- one that differs


@pytest.mark.parametrize(("kind", "other", "shown"), [
    ("size", [*USUAL[:2], stuck(sent=9)], "all_reduce of 9 Float"),
    ("size", [*USUAL[:2], stuck(sent=8, received=9)], "all_reduce of 8 into 9 Float"),
    ("type", [*USUAL[:2], stuck(sent=8, kind="BFloat16")], "all_reduce of 8 BFloat16"),
    ("operation", [*USUAL[:2], stuck("reduce", sent=8)], "reduce of 8 Float"),
    ("operation", [*USUAL[:2], stuck("barrier", sent=8)], "barrier"),
])  # fmt: skip
def test_fault_the_one_that_passed_something_else_is_named(kind: str, other: list[Any], shown: str) -> None:
    found = missing_ranks(dumps([USUAL, USUAL, other, USUAL]))
    assert told(found) == [(kind, 3, (2,))]
    assert [(side.ranks, side.call) for side in found.mismatches[0].sides] == [((0, 1, 3), "all_reduce of 8 Float"), ((2,), shown)]
    assert (found.ranks, found.victims) == ((2,), 3)


@pytest.mark.parametrize("other", [
    [call(sent=8), stuck(sent=32), stuck("broadcast", sent=16), stuck(sent=64)],  # two swapped
    [call(sent=8), stuck(sent=32)],  # the first of two left out, or swapped, and it waits there
    [call(sent=8), stuck(sent=32), stuck(sent=64), stuck(sent=128)],  # one left out
    [call(sent=8), stuck("barrier"), stuck("broadcast", sent=16), stuck(sent=32)],  # one in excess
])  # fmt: skip
def test_fault_another_order_is_told_once_and_as_that(other: list[Any]) -> None:
    usual = [call(sent=8), stuck("broadcast", sent=16), stuck(sent=32), stuck(sent=64), stuck(sent=128)]
    found = missing_ranks(dumps([usual, other, usual, usual]))
    assert (told(found), found.ranks) == ([("order", 2, (1,))], (1,))
    assert found.mismatches[0].sides[0].call == "broadcast of 16 Float, then all_reduce of 32 Float, then all_reduce of 64 Float"


def test_another_size_followed_by_the_same_calls_is_no_order() -> None:
    usual = [call(sent=8) for _ in range(6)]
    assert told(missing_ranks(dumps([usual, usual, [call(sent=9), *usual[1:]]]))) == [("size", 1, (2,))]


def test_what_follows_from_the_first_difference_is_not_told_and_another_rank_s_own_is() -> None:
    usual = [call(sent=number) for number in range(20)]
    late = [*usual[:9], call("reduce", sent=9), *usual[10:]]
    moved = [*usual[:4], *usual[5:]]
    assert told(missing_ranks(dumps([usual, moved, usual, late, usual, usual, usual]))) == [("order", 5, (1,)), ("operation", 10, (3,))]


def test_fault_a_group_of_other_ranks() -> None:
    """Three ranks have made the group of four, and one a group of three of them."""
    right, wrong = {WORLD: range(4), "7": range(4)}, {WORLD: range(4), "7": (1, 2, 3)}
    found = missing_ranks(dump_of(record([stuck(group="7")], wrong if rank == 3 else right), rank) for rank in range(4))
    assert (told(found), found.ranks) == ([("group", 0, (3,))], (3,))
    assert [side.call for side in found.mismatches[0].sides] == ["ranks 0, 1, 2, 3", "ranks 1, 2, 3"]


# --- no majority


@pytest.mark.parametrize("ranks", [[USUAL, [*USUAL[:2], stuck(sent=9)]], [USUAL, USUAL, [*USUAL[:2], stuck(sent=9)], [*USUAL[:2], stuck(sent=9)]]])
def test_twin_without_a_majority_nobody_is_named_and_both_sides_are_told(ranks: list[Any]) -> None:
    found = missing_ranks(dumps(ranks))
    assert (told(found), found.ranks) == ([("size", 3, ())], ())
    assert [side.call for side in found.mismatches[0].sides] == ["all_reduce of 8 Float", "all_reduce of 9 Float"]


def test_ranks_without_a_dump_may_be_on_either_side() -> None:
    """Two against one of four is no majority."""
    assert told(missing_ranks(dumps([USUAL, USUAL, [*USUAL[:2], stuck(sent=9)], None]))) == [("size", 3, ())]


def test_groups_that_are_called_in_another_order_lock_all_of_them() -> None:
    """One is in the second group first: it is named by the majority, and of two that wait for each other nobody."""
    of = {WORLD: range(4), "1": range(4)}
    found = missing_ranks(dumps([[stuck()], [stuck()], [stuck(group="1")], [stuck()]], of))
    assert (told(found), found.ranks) == ([("order", 1, (2,))], (2,))
    found = missing_ranks(dumps([[stuck()], [stuck(group="1")]], {WORLD: (0, 1), "1": (0, 1)}))
    assert (told(found), found.ranks) == ([("order", 1, ())], ())
    assert [(side.ranks, side.call) for side in found.mismatches[0].sides] == [((0,), "all_reduce 1 of 0 group 0"), ((1,), "all_reduce 1 of 1 group 1")]


# --- a wavefront


GRID = {WORLD: range(8), "tp0": (0, 1), "tp1": (2, 3), "tp2": (4, 5), "tp3": (6, 7), "dp0": (0, 2), "dp1": (1, 3), "dp2": (4, 6), "dp3": (5, 7), "pp": (0, 4), "ep": (4, 5, 6, 7)}
"""Two stages of two replicas of two tensor ranks."""


def wavefront(origin: list[Any], beside: list[Any]) -> MissingRanks:
    """Rank 4 is the origin, 5 in its tensor group, 6 waits for it in its data group, 7 in the experts', 0 to take a message, and the others for those."""
    ranks = [[stuck("recv 0<-1", group="pp")], [stuck(group="tp0")], [stuck(group="dp0")], [stuck(group="tp1")], origin, beside, [stuck(group="dp2")], [stuck("all_to_all", group="ep")]]
    return missing_ranks(dumps(ranks, GRID))


def test_of_a_wavefront_over_tp_pp_dp_and_ep_the_origin_alone_is_named() -> None:
    found = wavefront([call(group="tp2")], [call(group="tp2"), stuck(group="tp2")])
    assert (found.ranks, found.victims, found.mismatches) == ((4,), 7, ())


def test_of_a_wavefront_behind_a_mismatch_nobody_of_the_groups_that_wait_is_named() -> None:
    """Two ranks of a tensor group that passed different sizes: neither has a majority, and who waits for them is their victim."""
    found = wavefront([stuck(group="tp2")], [stuck(group="tp2", sent=9)])
    assert (found.ranks, told(found), found.victims) == ((), [("size", 1, ())], 8)


def test_who_is_in_a_collective_that_all_have_entered_is_not_at_fault_for_sure() -> None:
    found = wavefront([stuck(group="tp2")], [stuck(group="tp2")])
    assert (found.ranks, found.mismatches) == ((), ())
    assert [(wait.group, wait.waiting) for wait in found.waits if not wait.missing] == [("tp2", (4, 5))]


# --- legally different


@pytest.mark.parametrize("operation", ["all_to_all", "all_to_all_v_single", "gather", "scatter", "all_gather_v", "reduce_scatter_v", "gloo:sparse_all_reduce", "coalesced"])
def test_twin_sizes_that_ranks_may_choose(operation: str) -> None:
    ranks = [[call(), call(operation, sent=rank, received=3 * rank), stuck()] for rank in range(4)]
    found = missing_ranks(dumps(ranks))
    assert (found.mismatches, found.ranks) == ((), ())


def test_twin_shapes_of_as_many_elements() -> None:
    ranks = [[call(input_sizes=[[2, 4]]), call(input_sizes=[[8], []], output_sizes=[[9]])], [call(input_sizes=[[8]]), call(input_sizes=[[4, 2], [1]], output_sizes=[[3, 3]])]]
    assert missing_ranks(dumps(ranks)).mismatches == ()


def test_twin_only_the_root_of_a_broadcast_and_of_a_reduction_passes_all() -> None:
    ranks = [[call("broadcast", sent=8 if rank == 0 else 0, received=8), call("reduce", sent=8, received=8 if rank == 0 else 0)] for rank in range(3)]
    assert missing_ranks(dumps(ranks)).mismatches == ()


def test_twin_messages_from_one_to_one() -> None:
    ranks = [[call(), call("send 0->1", sent=5), stuck()], [call(), call("recv 1<-0", sent=5), stuck()], [call(), stuck()]]
    assert missing_ranks(dumps(ranks)).mismatches == ()


def test_twin_batches_of_messages_count_up_the_collectives_of_those_that_take_part() -> None:
    batch = [call("send 0->1", sent=5), call("coalesced")]
    ranks = [[call(sent=1), *batch, call(sent=2)], [call(sent=1), *batch, call(sent=2)], [call(sent=1), *batch, call(sent=2)], [call(sent=1), call(sent=2), call(sent=3)]]
    assert missing_ranks(dumps(ranks)).mismatches == ()


def test_twin_a_batch_of_which_a_part_has_left_the_ring() -> None:
    """An uneven all-gather is a batch of broadcasts with one number."""
    calls = [call("_broadcast_oop", sent=5), call("_broadcast_oop", sent=6, counts=0), call("ALLGATHER_coalesced", counts=0), call()]
    ranks = [dump_of(record(calls, {WORLD: range(3)}, lost), lost) for lost in range(3)]
    assert missing_ranks(ranks).mismatches == ()


def test_twin_a_group_that_was_made_anew_counts_from_one_again() -> None:
    """One ring has both, one has lost the first, and one has not come to the second."""
    assert missing_ranks(dumps([[call(sent=5), call(sent=6, counts=0)], [call(sent=6)], [call(sent=5)]])).mismatches == ()


@pytest.mark.parametrize("lost", [(0, 5, 11), (12, 12, 0)])
def test_twin_a_ring_that_has_wrapped(lost: tuple[int, ...]) -> None:
    calls = [call(sent=number) for number in range(20)]
    assert missing_ranks(dump_of(record(calls, {WORLD: range(3)}, each), rank) for rank, each in enumerate(lost)).mismatches == ()


def test_twin_who_is_behind_called_the_same() -> None:
    calls = [call(sent=number) for number in range(20)]
    found = missing_ranks(dumps([calls, calls[:13], calls, calls[:19]]))
    assert (found.mismatches, found.ranks) == ((), ())


@pytest.mark.parametrize(("early_s", "named"), [(60, ()), (0, (1,))])
def test_twin_a_dump_that_was_taken_before_the_others_called(early_s: int, named: tuple[int, ...]) -> None:
    zero, one, two = dumps([[call(), stuck()], [call()], [call(), stuck()]])
    early = replace(one, taken_ns=1_700_000_000_000_000_000 - early_s * 1_000_000_000)
    assert missing_ranks([zero, early, two]).ranks == named


def test_twin_parts_of_a_split_have_one_name() -> None:
    """Ranks 0 and 1 are far ahead of ranks 2 and 3 in groups of the same name, which do other things."""
    def rank(number: int, calls: list[Any]) -> Any:
        return dump_of(record(calls, {WORLD: range(4), "5": (0, 1) if number < 2 else (2, 3)}), number)

    ahead, others = [call(group="5"), call("broadcast", group="5"), call(group="5"), stuck(group="5")], [call("reduce", group="5", sent=3)]
    found = missing_ranks([rank(0, ahead), rank(1, ahead), rank(2, others), rank(3, others)])
    assert (found.mismatches, found.ranks) == ((), ())


def test_twin_one_name_for_groups_that_share_ranks_while_nobody_waits_in_them() -> None:
    """torch counts names on each rank, and ranks that were not in a split count one less."""
    of = [{WORLD: range(4), "1": (0, 1), "2": range(4)}] * 2 + [{WORLD: range(4), "1": range(4)}] * 2
    assert missing_ranks(dump_of(record([call(group="1"), stuck()], groups), rank) for rank, groups in enumerate(of)).mismatches == ()


def test_twin_who_tells_of_a_group_that_it_is_not_in() -> None:
    of = [{WORLD: range(4), "7": (0, 1, 2)}] * 3 + [{WORLD: range(4), "7": (0, 1)}]
    assert missing_ranks(dump_of(record([stuck(group="7")] if rank < 3 else [], groups), rank) for rank, groups in enumerate(of)).mismatches == ()


def test_twin_backends_of_one_group_count_apart() -> None:
    assert missing_ranks(dumps([[call()], [call("gloo:barrier")]])).mismatches == ()


def test_twin_dumps_before_version_2_count_messages_with_the_collectives() -> None:
    def old(rank: int, *names: str) -> Any:
        entries = [{"pg_id": 0, "seq_id": number, "profiling_name": f"nccl:{name}", "input_sizes": [[4]], "state": "completed"} for number, name in enumerate(names, 1)]
        return dump_of({"version": "1.4", "pg_config": {"0": [0, 1, 2]}, "entries": entries}, rank)

    found = missing_ranks([old(0, "send 0->1", "all_reduce"), old(1, "recv 1<-0", "all_reduce"), old(2, "all_reduce", "broadcast")])
    assert found.mismatches == ()
