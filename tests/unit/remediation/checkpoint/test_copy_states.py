"""States of copies: values in, values out."""

import pytest

from remediation.checkpoint.copy_states import (
    CopyState,
    Held,
    Place,
    Seen,
    Stored,
    StoredMark,
    due,
    evictable,
    neighbour_changed,
    newest_safe_step,
    newest_stored,
    newest_whole,
    observe,
    outdated,
    settled,
    stored,
    with_stored,
)

A, B = Place("0.memory", 0), Place("0.memory", 1)


def each(_file: str, _step: int) -> bool:
    return True


def test_a_copy_from_its_writing_to_storage() -> None:
    copies = observe({}, [Seen(A, -1, -1), Seen(B, -1, -1)])
    assert copies[A].state is CopyState.PENDING
    assert not due(copies, each)
    copies = observe(copies, [Seen(A, 7, 1), Seen(B, -1, -1)])
    assert copies[A].state is CopyState.CACHED
    assert list(due(copies, each)) == [A]
    assert newest_safe_step(copies) == -1
    copies = settled(copies, A, 1, broken=False)
    assert (copies[A].state, newest_safe_step(copies), due(copies, each)) == (CopyState.BACKED_UP, 7, {})
    assert stored(copies, 6)[A].state is CopyState.BACKED_UP
    copies = stored(copies, 7)
    assert copies[A].state is CopyState.PERSISTENT
    cached = observe({}, [Seen(A, 7, 1), Seen(B, -1, -1)])
    assert stored(cached, 7)[A].state is CopyState.CACHED, "the neighbour has not got it yet"
    alone = stored(cached, 7, alone=True)
    assert [alone[place].state for place in (A, B)] == [CopyState.PERSISTENT, CopyState.PENDING], "a job of one node"
    copies = observe(copies, [Seen(A, 7, 1), Seen(B, 8, 2)])
    assert (copies[A].state, list(due(copies, each))) == (CopyState.PERSISTENT, [B]), "what is known of a slot that was not written stays"
    assert observe(copies, [Seen(A, 9, 3), Seen(B, 8, 2)])[A].state is CopyState.CACHED, "written anew"


def test_the_newest_copy_is_sent_and_an_older_one_is_obsolete_then() -> None:
    seen = [Seen(A, 7, 1), Seen(B, 8, 2)]
    copies = observe({}, seen)
    assert list(due(copies, each)) == [B]
    copies = observe(settled(copies, B, 2, broken=False), seen)
    assert (copies[A].state, due(copies, each)) == (CopyState.OBSOLETE, {})
    assert due(neighbour_changed(copies), each).keys() == {B}, "the neighbour's memory may be gone: it is sent again"


def test_all_nodes_send_the_same_steps() -> None:
    copies = observe({}, [Seen(A, 20, 4), Seen(B, 21, 5)])
    assert list(due(copies, lambda _, step: step == 20)) == [A]


def test_what_was_written_last_is_the_newest() -> None:
    copies = observe({}, [Seen(A, 20, 4), Seen(B, 12, 5), Seen(Place("1.memory", 0), -1, -1)])
    assert {file: copy.step for file, copy in newest_whole(copies).items()} == {"0.memory": 12}, "it was rolled back; the other worker has nothing whole"


def test_an_answer_about_a_copy_that_was_overwritten_says_nothing() -> None:
    copies = observe({}, [Seen(A, 7, 1)])
    assert settled(copies, A, 2, broken=False) is copies
    assert settled(copies, B, 1, broken=True) is copies


def test_a_broken_copy_is_not_sent_again() -> None:
    copies = settled(observe({}, [Seen(A, 7, 1)]), A, 1, broken=True)
    assert (copies[A].state, due(copies, each)) == (CopyState.BROKEN, {})
    assert due(neighbour_changed(copies), each) == {}


def test_nothing_is_evicted_that_is_not_safe_elsewhere() -> None:
    held = [Held("a", 10, 5), Held("b", 10, 9), Held("c", 10, 5)]
    assert evictable(held, frozenset({"c"}), 9, 10, 100) == ()
    assert evictable(held, frozenset({"c"}), 9, 10, 30) == ("a",)
    assert evictable(held, frozenset({"c"}), 9, 20, 30) == ("a", "b")
    assert evictable(held, frozenset({"c"}), 5, 20, 30) is None, "storage does not have step 9 of b"
    assert evictable(held, frozenset({"c"}), 9, 30, 30) is None, "c is being filled"


def test_what_nobody_fills_any_more_goes_once_newer_steps_are_here_and_storage_has_its_own() -> None:
    held = [Held("old", 10, 5), Held("a", 10, 9), Held("b", 10, 8)]
    assert outdated(held, frozenset({"a"}), 5, 2) == ("old",)
    assert outdated(held, frozenset({"a"}), 4, 2) == (), "storage does not have step 5"
    assert outdated(held, frozenset({"a"}), 9, 3) == (), "it is one of the three newest steps that are here"
    assert outdated(held, frozenset({"old"}), 9, 2) == (), "it is being filled"
    assert outdated([Held("old", 10, 5)], frozenset(), 9, 2) == (), "nothing newer is here"
    assert outdated([Held("old", 10, 5), Held("a", 10, 9), Held("b", 10, 9)], frozenset({"a"}), 9, 2) == (), "two workers with the same step"


def test_what_was_stored_before_a_roll_back_counts_behind_it_only_up_to_the_step_from_which_the_job_went_on() -> None:
    known: Stored = ()
    for step in (300, 400, 500):
        known = with_stored(known, StoredMark(step, 1), (), 2)
    assert newest_stored(known, ()) == StoredMark(500, 1)
    assert newest_stored(known, ((2, 450),)) == StoredMark(400, 1)
    assert newest_stored(known, ((2, 90),)) == StoredMark(), "nothing of before that is known to be there still"
    assert newest_stored(known, ((1, 90),)) == StoredMark(500, 1), "twin: it was made in the epoch that went on from there"


@pytest.mark.parametrize("late", [StoredMark(500, 1), StoredMark(500, 0)])
def test_whoever_tells_late_of_what_was_abandoned_changes_nothing(late: StoredMark) -> None:
    """A neighbour that has not heard of the roll-back yet, and a launcher of before, which says no epoch."""
    rolled_back = ((2, 90),)
    known = with_stored((), StoredMark(100, 2), rolled_back, 2)
    assert newest_stored(with_stored(known, late, rolled_back, 2), rolled_back) == StoredMark(100, 2)
    assert newest_stored(with_stored(known, late, (), 2), ()) == late, "twin: without a roll-back an old launcher's word counts"


def test_a_launcher_that_says_no_epoch_takes_none_away() -> None:
    known = with_stored((StoredMark(100, 2),), StoredMark(100, 0), (), 2)
    assert known == (StoredMark(100, 2),)
    assert with_stored(known, StoredMark(-1, 0), (), 2) == known
