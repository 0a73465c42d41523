"""What the workers of an elastic job do after a fault, from what they hold."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from eagle_eye.errors import PermanentError
from eagle_eye.training.elastic.reduce.summation_tree import nodes_of
from eagle_eye.types import Transition, WorkerStateReport
from fakes.elastic_members import layout_of, member
from remediation.transition import plan_transition
from remediation.transition.micro_batch_shares import shares_of


def plan(held: list[WorkerStateReport], micro_batches: int = 16, segments: int = 4, layer_bytes: tuple[int, ...] = (8, 8, 4), **more: object) -> Transition:
    workers = more.pop("workers", [holding.worker for holding in held])
    nodes = {holding.worker: holding.node for holding in held}
    target = layout_of([(name, nodes.get(name, "n0")) for name in workers])  # type: ignore[union-attr]
    return plan_transition("job", 2, target, held, micro_batches=micro_batches, segments=segments, layer_bytes=layer_bytes, **more)  # type: ignore[arg-type]


# the step in flight


def test_each_survivor_does_what_unicron_says_k_plus_k_over_dp_minus_1() -> None:
    before = plan([member(rank) for rank in range(4)])
    assert before.shares == tuple(tuple(range(4 * rank, 4 * rank + 4)) for rank in range(4))
    held = [member(rank, step=7, done=before.shares[rank], phase="reducing") for rank in (0, 2, 3)]
    after = plan(held, before=before)
    assert after.lost_micro_batches == (4, 5, 6, 7)
    assert sorted(len(mine) for mine in after.recompute.values()) == [1, 1, 2]  # 4 over 3: one each, and the remainder goes round
    assert after.current[1][-4:] == (8, 9, 10, 11)
    twelve = plan([member(rank, step=3, done=range(3 * rank, 3 * rank + 3)) for rank in (0, 1, 2)], micro_batches=12)
    assert [len(mine) for mine in twelve.current] == [4, 4, 4]  # k = 3, DP = 4


def test_the_living_keep_what_they_were_to_do_and_only_the_lost_ones_move() -> None:
    before = plan([member(rank) for rank in range(4)])
    held = [member(0, step=1, done=(0, 1)), member(2, step=1, done=(8, 9, 10, 11)), member(3, step=1, done=(12,))]
    after = plan(held, before=before)
    assert set(after.current[0]) >= {0, 1, 2, 3}
    assert set(after.current[2]) >= {12, 13, 14, 15}
    assert len(after.recompute["w2"]) == 3  # it has nothing left to do of its own, so it is done first
    assert after.recompute.get("w3", ()) == ()


def test_a_slow_worker_takes_over_less() -> None:
    held = [member(rank, step=1, done=range(5 * rank, 5 * rank + 5), phase="reducing") for rank in (0, 1)]
    after = plan(held, speeds={"w0": 0.25})
    assert len(after.recompute["w1"]) == 5
    assert after.recompute["w0"] == (10,)


def test_reduced_segments_that_are_held_between_them_finish_the_step_and_nothing_is_computed_again() -> None:
    held = [member(0, step=5, done=(0, 1), segments=(0, 1, 2), phase="reducing"), member(2, step=5, done=(8,), segments=(3,), phase="reducing")]
    after = plan(held)
    assert after.finish == (0, 0, 0, 1)
    assert after.step == 5
    assert not after.recompute
    assert not after.lost_micro_batches
    assert plan(held, segments=5).finish == ()


def test_whoever_has_entered_the_commit_holds_all_segments() -> None:
    held = [member(0, step=5, done=(0, 1), phase="computing"), member(1, step=5, done=(2,), phase="committing")]
    assert plan(held).finish == (1, 1, 1, 1)


def test_givers_of_segments_are_asked_evenly() -> None:
    held = [member(rank, step=5, phase="committing") for rank in range(2)]
    assert plan(held).finish == (0, 1, 0, 1)


def test_a_member_one_step_behind_that_was_in_the_commit_only_applies() -> None:
    held = [member(0, step=6, done=(0,)), member(1, step=5, done=(4,), phase="committing")]
    after = plan(held)
    assert (after.step, after.finish, after.moves) == (6, (), ())
    assert 4 in after.lost_micro_batches  # what it did of step 5 counts for step 5
    assert after.current[1]  # and it works on step 6 as everybody


def test_of_two_that_claim_a_micro_batch_the_lower_rank_keeps_it_and_the_plan_says_so() -> None:
    after = plan([member(0, step=1, done=(3, 4)), member(1, step=1, done=(4, 5))])
    assert after.dropped == {"w1": (4,)}
    assert 4 in after.current[0]
    assert 4 not in after.current[1]


def test_at_a_boundary_everybody_takes_the_new_share_the_joiner_too() -> None:
    held = [member(0, step=8), member(1, step=8), member(9, fresh=True)]
    after = plan(held)
    assert after.current == after.shares
    assert after.lost_micro_batches == ()
    assert {receiver for _, receiver, _ in after.moves} == {2}


def test_a_joiner_gets_nothing_of_a_step_in_flight() -> None:
    after = plan([member(0, step=8, done=(0,)), member(1, step=8), member(9, fresh=True)])
    assert after.current[2] == ()
    assert after.shares[2]


# the later steps


@settings(deadline=None)
@given(some.integers(1, 60), some.lists(some.sampled_from([0.1, 0.5, 0.9, 1.0, 4.0]), min_size=1, max_size=20))
def test_no_share_out_ends_earlier_and_whoever_can_do_one_in_time_gets_one(micro_batches: int, speeds: list[float]) -> None:
    sizes = [len(share) for share in shares_of(micro_batches, tuple(speeds))]
    assert sum(sizes) == micro_batches
    ends = max(size / speed for size, speed in zip(sizes, speeds, strict=True))
    earlier = sum(int(ends * speed * (1 - 1e-6)) for speed in speeds)  # what all could do in a little less time
    assert earlier < micro_batches
    idle = [speed for size, speed in zip(sizes, speeds, strict=True) if not size]
    assert micro_batches < len(speeds) or all(1 / speed > ends for speed in idle)


@settings(deadline=None)
@given(some.integers(1, 18), some.integers(1, 4))
def test_of_all_cuts_that_end_as_early_the_one_with_the_fewest_sums_is_taken(micro_batches: int, workers: int) -> None:
    shares = shares_of(micro_batches, (1.0,) * workers)
    most = max(map(len, shares))
    assert most == -(-micro_batches // workers)
    cuts = [cut for cut in itertools.product(range(max(micro_batches >= workers, most - 2), most + 1), repeat=workers) if sum(cut) == micro_batches]
    assert sums([len(share) for share in shares], micro_batches) == min(sums(cut, micro_batches) for cut in cuts)


def sums(sizes: Sequence[int], micro_batches: int) -> int:
    """That the workers keep together, in the tree of the reduction."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return sum(len(nodes_of(range(first, end), micro_batches)) for first, end in itertools.pairwise(ends))


@pytest.mark.parametrize(("workers", "sizes"), [(4, [4, 4, 4, 4]), (3, [6, 6, 4]), (5, [4, 4, 4, 2, 2]), (1, [16])])
def test_shares_are_cut_where_the_tree_is_cut(workers: int, sizes: list[int]) -> None:
    after = plan([member(rank, step=1) for rank in range(workers)])
    assert [len(share) for share in after.shares] == sizes


def test_a_straggler_gets_fewer_whole_micro_batches() -> None:
    after = plan([member(rank, step=1) for rank in range(4)], speeds={"w2": 0.5})
    assert [len(share) for share in after.shares] == [5, 5, 2, 4]


# state


def test_state_comes_from_the_same_node_first_and_evenly() -> None:
    held = [member(0, node="a", step=2), member(1, node="b", step=2), member(2, node="b", step=2), member(3, node="b", fresh=True)]
    after = plan(held, layer_bytes=(4, 4, 4, 4))
    assert sorted(sender for sender, _, _ in after.moves) == [1, 1, 2, 2]
    assert after.bytes == 16
    elsewhere = plan([*held[:3], member(3, node="c", fresh=True)], layer_bytes=(6, 6, 6))
    assert sorted(sender for sender, _, _ in elsewhere.moves) == [0, 1, 2]


@pytest.mark.parametrize("receivers", [2, 3, 5])
def test_a_giver_is_not_asked_twice_at_once_where_that_can_be_avoided(receivers: int) -> None:
    held = [member(0, step=2), member(1, step=2), *(member(2 + number, fresh=True) for number in range(receivers))]
    moves = plan(held, layer_bytes=(9, 1, 1, 1, 1, 1)).moves
    both = 2 * min(sum(sender == each for sender, _, _ in moves) for each in (0, 1))
    for first, second in zip(moves[:both:2], moves[1:both:2], strict=True):
        assert first[0] != second[0]
        assert first[1] != second[1]


def test_only_what_is_lacking_is_sent() -> None:
    held = [member(0, step=2), member(1, step=2, fresh=True, layers=(0, 2))]
    after = plan(held)
    assert after.moves == ((0, 1, 1),)
    assert after.bytes == 8
    older = plan([member(0, step=3), member(1, step=2, fresh=True, layers=(0, 2))])
    assert len(older.moves) == 3
    applied = plan([member(0, step=2, phase="applying"), member(1, step=2, fresh=True, layers=(0, 2))])
    assert len(applied.moves) == 3  # w0 goes on to step 3 before it gives


def test_a_layer_that_arrived_torn_is_given_by_another_holder_if_there_is_one() -> None:
    held = [member(0, node="a", step=2), member(1, node="b", step=2), member(2, node="b", step=2), member(3, node="b", fresh=True)]
    assert {layer: sender for sender, _, layer in plan(held, layer_bytes=(4, 4)).moves} == {0: 1, 1: 2}
    assert {layer: sender for sender, _, layer in plan(held, layer_bytes=(4, 4), torn={"w1": {0}}).moves} == {0: 2, 1: 1}
    assert {sender for sender, _, _ in plan(held, layer_bytes=(4, 4), torn={"w1": {0, 1}, "w2": {0, 1}}).moves} == {0}, "the next nearest"
    assert {sender for sender, _, _ in plan([held[0], held[3]], layer_bytes=(4, 4), torn={"w0": {0, 1}}).moves} == {0}, "nobody else has it"


def test_what_arrived_in_part_is_given_on_to_the_neighbour() -> None:
    held = [member(0, node="a", step=2), member(1, node="b", step=2, fresh=True, layers=(0, 1)), member(2, node="b", step=2, fresh=True, layers=(2,))]
    assert sorted(plan(held).moves) == [(1, 2, 0), (1, 2, 1), (2, 1, 2)]


def test_nobody_holds_state_so_it_comes_from_a_checkpoint_and_else_from_rank_0() -> None:
    first = plan([member(rank, fresh=True) for rank in range(3)])
    assert first.source == "checkpoint"
    assert {sender for sender, _, _ in first.moves} == {0}
    assert len(first.moves) == 6
    assert first.current == first.shares
    later = plan([member(0, step=4, fresh=True), member(1, fresh=True)])
    assert (later.source, later.moves) == ("checkpoint", ())


# clear errors


def test_it_says_why_a_job_cannot_go_on_in_place() -> None:
    held = [member(0, step=2)]
    with pytest.raises(PermanentError, match="1 workers are left and the job needs 2"):
        plan(held, at_least=2)
    with pytest.raises(PermanentError, match="w7 has not reported its state"):
        plan(held, workers=["w0", "w7"])
    with pytest.raises(PermanentError, match="no living worker holds the state of layer 1 of step 2"):
        plan([member(0, step=2, layers=(0, 2)), member(1, fresh=True)])
    with pytest.raises(PermanentError, match="micro-batch 16"):
        plan([member(0, step=2, done=(16,))])
    with pytest.raises(PermanentError, match="exclude a worker that makes no progress"):
        plan(held, speeds={"w0": 0.0})


# whatever they hold


@dataclass(frozen=True)
class Case:
    held: list[WorkerStateReport]
    micro_batches: int
    segments: int
    layer_bytes: tuple[int, ...]
    order: list[int]

    def plan(self, held: list[WorkerStateReport] | None = None) -> Transition:
        workers = [holding.worker for holding in self.held]
        return plan(held or self.held, self.micro_batches, self.segments, self.layer_bytes, workers=workers)


@some.composite
def cases(draw: some.DrawFn) -> Case:
    micro_batches, segments = draw(some.integers(1, 20)), draw(some.integers(1, 5))
    layer_bytes = tuple(draw(some.lists(some.integers(0, 50), min_size=1, max_size=6)))
    held = []
    for rank in range(draw(some.integers(1, 6))):
        fresh = draw(some.booleans())
        held.append(
            member(
                rank,
                node=draw(some.sampled_from("abc")),
                step=draw(some.integers(3, 5)),
                done=draw(some.sets(some.integers(0, micro_batches - 1))) if not fresh else (),
                segments=draw(some.sets(some.integers(0, segments - 1))) if not fresh else (),
                phase=draw(some.sampled_from(["computing", "reducing", "committing"])) if not fresh else "starting",
                fresh=fresh,
            )
        )
    return Case(held, micro_batches, segments, layer_bytes, draw(some.permutations(range(len(held)))))


@settings(deadline=None)
@given(cases())
def test_no_micro_batch_is_lost_or_doubled_and_only_lost_ones_are_computed_again(case: Case) -> None:
    after = case.plan()
    everything = list(range(case.micro_batches))
    assert [number for share in after.shares for number in share] == everything
    done = {number for each in case.held if each.step == after.step for number in each.done}
    contributed = sorted(number for mine in after.current for number in mine)
    assert contributed == (sorted(done) if after.finish else everything)
    for holding, mine in zip(case.held, after.current, strict=True):
        kept = set(holding.done) - set(after.dropped.get(holding.worker, ())) if holding.step == after.step else set()
        assert kept <= set(mine)
        assert not (set(mine) - kept) & done
    recomputed = sorted(number for mine in after.recompute.values() for number in mine)
    assert recomputed == list(after.lost_micro_batches)
    assert not done & set(recomputed)


@settings(deadline=None)
@given(cases())
def test_every_taker_gets_every_layer_once_from_one_that_has_it_in_the_fewest_bytes(case: Case) -> None:
    after = case.plan()
    if after.source:
        assert all(holding.fresh for holding in case.held)
        return
    whole = [not each.fresh and (each.step == after.step or _applies(each, after.step, case.segments)) for each in case.held]
    receivers = [rank for rank, has in enumerate(whole) if not has]
    layers = range(len(case.layer_bytes))
    assert sorted((receiver, layer) for _, receiver, layer in after.moves) == [(receiver, layer) for receiver in receivers for layer in layers]
    assert all(whole[sender] for sender, _, _ in after.moves)
    assert after.bytes == len(receivers) * sum(case.layer_bytes)
    for sender, receiver, _ in after.moves:
        beside = [rank for rank, has in enumerate(whole) if has and case.held[rank].node == case.held[receiver].node]
        assert not beside or sender in beside


@settings(deadline=None)
@given(cases())
def test_the_same_holdings_in_any_order_give_the_same_transition(case: Case) -> None:
    assert case.plan([case.held[index] for index in case.order]) == case.plan()


def _applies(holding: WorkerStateReport, step: int, segments: int) -> bool:
    return holding.step == step - 1 and (holding.phase == "committing" or len(holding.segments) == segments)
