"""States of copies: values in, values out."""

from remediation.checkpoint.copy_states import (
    CopyState,
    Held,
    Place,
    Seen,
    due,
    evictable,
    neighbour_changed,
    newest_safe_step,
    newest_whole,
    observe,
    settled,
    stored,
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
