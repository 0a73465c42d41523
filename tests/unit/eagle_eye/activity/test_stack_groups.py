"""Groups of equal stacks: who is in one, in which order, and where one parts from another."""

import pytest

from eagle_eye.activity.motion import Motion, motion_of
from eagle_eye.activity.python_stacks import StackFrame, ThreadStack
from eagle_eye.activity.stack_facts import ProcessFact
from eagle_eye.activity.stack_groups import SampledProcess, StackGroup, group_stacks, name_ranges
from eagle_eye.activity.stack_text import group_lines
from eagle_eye.activity.thread_wait import RUNS
from fakes.process_looks import ALL_REDUCE, TRAIN, VALIDATE, look, sleep, thread

MAIN = StackFrame("/home/ada/train.py", 88, "main")
LOAD = StackFrame("/home/ada/data.py", 12, "load")
TORCH = "/usr/lib/python3/site-packages/torch/nn/module.py"
WAIT = StackFrame("/usr/lib/python3.11/threading.py", 320, "wait")


def stands(*frames: StackFrame, others: tuple[ThreadStack, ...] = (), motion: Motion = Motion.STANDS, holds: bool = False) -> SampledProcess:
    """The innermost frame first."""
    threads = (thread(*frames, holds_interpreter=holds), *others)
    return SampledProcess(samples=(threads, threads), motion=motion)


def moves(*stacks: tuple[StackFrame, ...]) -> SampledProcess:
    return SampledProcess(samples=tuple((thread(*frames),) for frames in stacks), motion=Motion.MOVES)


def text(groups: tuple[StackGroup, ...], *, full: bool = False, facts: dict[str, tuple[ProcessFact, ...]] | None = None) -> list[str]:
    return [" " * line.indent + line.text for line in group_lines(groups, "rank", facts, full=full)]


def test_ranks_with_equal_stacks_are_one_group_and_the_largest_comes_first() -> None:
    ranks = {"0": stands(LOAD, MAIN)} | {str(rank): stands(ALL_REDUCE, TRAIN, MAIN) for rank in range(1, 8)}
    first, second = group_stacks(ranks)
    assert (first.members, first.awaits_peers, first.place) == (tuple("1234567"), True, TRAIN)
    assert (second.members, second.awaits_peers, second.place) == (("0",), False, LOAD)


def test_another_line_of_the_same_function_is_another_group() -> None:
    assert len(group_stacks({"0": stands(TRAIN, MAIN), "1": stands(TRAIN._replace(line=34), MAIN)})) == 2


def test_a_rank_that_is_stopped_where_others_sleep_is_not_one_of_them() -> None:
    groups = group_stacks({"0": stands(TRAIN), "1": stands(TRAIN), "2": stands(TRAIN, motion=Motion.STOPPED)})
    assert [(group.members, group.motion) for group in groups] == [(("0", "1"), Motion.STANDS), (("2",), Motion.STOPPED)]
    assert (groups[1].like, groups[1].shared) == (0, 1)


def test_ranks_that_move_are_one_group_with_what_they_share_and_where_they_were_seen() -> None:
    ranks = {"0": moves((TRAIN, MAIN), (TRAIN, MAIN), (VALIDATE, MAIN)), "1": moves((VALIDATE, MAIN), (VALIDATE, MAIN), (VALIDATE, MAIN))}
    (group,) = group_stacks(ranks)
    assert (group.frames, group.place) == ((MAIN,), MAIN)
    assert group.places == ((VALIDATE, 4), (TRAIN, 2))


def test_ranks_that_move_in_different_functions_are_told_from_one_another() -> None:
    groups = group_stacks({"0": moves((TRAIN, MAIN), (VALIDATE, MAIN)), "1": moves((TRAIN, LOAD), (VALIDATE, LOAD))})
    assert [group.members for group in groups] == [("0",), ("1",)]


def test_a_group_shows_only_where_it_parts_from_the_one_that_it_is_most_like() -> None:
    ranks = {str(rank): stands(ALL_REDUCE, TRAIN, MAIN) for rank in range(5)} | {"5": stands(WAIT, LOAD), "6": stands(LOAD, TRAIN, MAIN), "7": stands(VALIDATE, LOAD)}
    groups = group_stacks(ranks)
    assert [(group.like, group.shared) for group in groups] == [(-1, 0), (-1, 0), (0, 2), (1, 1)]
    shown = text(groups)
    assert shown.count("     train.py:88 main") == 1, "what they share is told once"
    assert "   as group 1 down to train.py:33 step, then" in shown
    assert "   as group 2 down to data.py:12 load, then" in shown


def test_who_does_not_wait_for_the_peers_is_said_first() -> None:
    ranks = {str(rank): stands(ALL_REDUCE, TRAIN) for rank in (0, 1, 2, 4)} | {"3": stands(LOAD)}
    shown = text(group_stacks(ranks))
    assert shown[0] == "Ranks 0-2,4 wait for their peers; rank 3 does not."
    assert shown[1] == "1. ranks 0-2,4 (4 of 5): waiting for peers, standing in train.py:33 step"


def test_twin_when_all_wait_for_one_another_nobody_is_pointed_at() -> None:
    assert text(group_stacks({"0": stands(ALL_REDUCE), "1": stands(ALL_REDUCE)}))[0].startswith("1. ")


def test_a_wait_for_the_peers_in_native_code_counts() -> None:
    process = SampledProcess(samples=((thread(TRAIN),),), motion=Motion.STANDS, awaits_peers=True)
    assert group_stacks({"0": process})[0].awaits_peers


def test_threads_of_the_user_are_shown_and_helpers_of_libraries_are_counted() -> None:
    helpers = tuple(thread(WAIT, name=f"tqdm-{number}", number=number) for number in (7, 8))
    loader = thread(LOAD, name="Thread-3 (load)", number=9)
    ranks = {"0": stands(TRAIN, others=(loader, *helpers)), "1": stands(TRAIN, others=(loader._replace(name="Thread-4 (load)"),)), "2": stands(TRAIN)}
    (group,) = group_stacks(ranks)
    assert group.helpers == 2
    assert [(each.name, each.place, each.members) for each in group.threads] == [("Thread-N (load)", LOAD, ("0", "1"))]
    assert "   thread Thread-N (load) in data.py:12 load, of ranks 0-1" in text((group,))
    assert "   2 helper threads of libraries" in text((group,))


def test_a_thread_that_holds_the_interpreters_lock_in_every_look_is_named() -> None:
    holder = thread(LOAD, name="loader", holds_interpreter=True, number=5)
    (group,) = group_stacks({"0": stands(TRAIN, others=(holder,)), "1": stands(TRAIN, others=(holder._replace(holds_interpreter=False),))})
    assert "   the interpreter's lock (GIL) is held by thread loader in data.py:12 load, of rank 0" in text((group,))
    (moved,) = group_stacks({"0": SampledProcess(samples=((thread(TRAIN), holder), (thread(TRAIN, holds_interpreter=True),)), motion=Motion.STANDS)})
    assert moved.holders == (), "it goes from one to the other"


def test_frames_of_libraries_are_folded_but_for_the_innermost_one() -> None:
    inner = [StackFrame(TORCH, number, "call") for number in range(20)]
    groups = group_stacks({"0": stands(*inner, TRAIN, MAIN)})
    assert text(groups)[1:] == ["     train.py:88 main", "     train.py:33 step", "     … 19 frames of torch", "     module.py:0 call"]
    assert len(text(groups, full=True)) == 1 + 22
    assert text(group_stacks({"0": stands(*inner[:4], TRAIN)}))[-4:] == [f"     module.py:{line} call" for line in (3, 2, 1, 0)], "a few are told: where in the library it is"


def test_a_fact_of_all_is_told_once_and_one_of_some_with_their_names() -> None:
    facts = {"0": (ProcessFact("S", "state S"), ProcessFact("time", "for another 9 s")), "1": (ProcessFact("S", "state S"), ProcessFact("time", "for another 8 s")), "2": (ProcessFact("D", "state D in nfs_wait"),)}
    shown = text(group_stacks({rank: stands(TRAIN) for rank in facts}), facts=facts)
    assert shown[1:4] == ["   ranks 0-1: state S", "   ranks 0-1: for another 9 s", "   rank 2: state D in nfs_wait"]


def test_a_process_without_a_stack_is_a_group_of_its_own() -> None:
    groups = group_stacks({"0": stands(TRAIN), "1": SampledProcess(samples=())})
    assert [group.members for group in groups] == [("0",), ("1",)]
    assert "2. rank 1 (1 of 2): no stack" in text(groups)


def test_names_of_functions_steer_no_terminal() -> None:
    assert all(line.isprintable() for line in text(group_stacks({"0": stands(StackFrame("/a.py", 1, "\x1b[2Jf\n"))})))


@pytest.mark.parametrize(("names", "ranges"), [
    (map(str, range(10_000)), ("0-9999",)), (["3", "1", "2", "9"], ("1-3", "9")), (["r/n1/0", "r/n1/1", "r/n2/0"], ("r/n1/[0-1]", "r/n2/0")),
    (["mine", "mine1", "x"], ("mine", "mine1", "x")), (["a07", "a08", "a17"], ("a0[7-8]", "a17")), ([], ()), (["9" * 30], ("9" * 30,)),
])  # fmt: skip
def test_names_are_ranges(names: list[str], ranges: tuple[str, ...]) -> None:
    assert name_ranges(names) == ranges


def test_thousands_of_ranks_are_a_few_lines() -> None:
    deep = [StackFrame(TORCH if level % 3 else "/home/ada/model.py", level, f"f{level}") for level in range(60)]
    ranks = {str(rank): stands(LOAD, *deep[1:]) if rank == 777 else stands(*deep) for rank in range(2000)}
    groups = group_stacks(ranks)
    assert [len(group.members) for group in groups] == [1999, 1]
    assert "2. rank 777 (1 of 2000): standing in data.py:12 load" in text(groups)
    assert any(line.startswith("   as group 1 down to module.py:1 f1") for line in text(groups))


# --- motion -------------------------------------------------------------------------------------------------------------


def test_fault_who_stands_and_twin_who_moves_or_computes() -> None:
    still = look(TRAIN)
    assert motion_of([still, still, still]) is Motion.STANDS
    assert motion_of([still, look(VALIDATE), still]) is Motion.MOVES
    assert motion_of([look(TRAIN, wait=RUNS, state="R"), look(TRAIN, wait=RUNS, state="R")]) is Motion.COMPUTES


def test_twin_who_wants_a_processor_and_gets_little_of_it_computes() -> None:
    assert motion_of([look(TRAIN, time=0.0, demand={1: 5.0}), look(TRAIN, time=1.0, demand={1: 5.9})]) is Motion.COMPUTES
    assert motion_of([look(TRAIN, time=0.0, demand={1: 5.0, 2: 1.0}), look(TRAIN, time=1.0, demand={1: 5.1, 2: 1.9})]) is Motion.STANDS, "another thread does"


def test_the_state_of_the_kernel_says_who_is_stopped_traced_or_ended() -> None:
    assert motion_of([look(TRAIN), look(TRAIN, state="T")]) is Motion.STOPPED
    assert motion_of([look(TRAIN, state="t"), look(TRAIN, state="t")]) is Motion.TRACED
    assert motion_of([look(TRAIN), look(state="Z")]) is Motion.ENDED


def test_one_look_proves_no_motion() -> None:
    assert motion_of([look(TRAIN, wait=sleep(5.0))]) is Motion.UNKNOWN
    assert motion_of([look(TRAIN), look()]) is Motion.UNKNOWN
    assert motion_of([]) is Motion.UNKNOWN
