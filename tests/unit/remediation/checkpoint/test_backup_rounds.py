"""What one node sends in a round, and what it keeps for the others until the next is over."""

from types import SimpleNamespace
from typing import Any

import pytest

from eagle_eye.training.checkpoint.memory_segment import SlotHold
from remediation.checkpoint.backup_rounds import ALONE_S, HOLD_S, BackupRounds
from remediation.checkpoint.copy_states import Copy, CopyState, Place
from remediation.checkpoint.round_leader import Round

FILE = "w"
BACKED_UP, CACHED, PENDING = CopyState.BACKED_UP, CopyState.CACHED, CopyState.PENDING


class Node:
    """One worker, whose segment notes what is held."""

    def __init__(self) -> None:
        self.rounds = BackupRounds()
        self.held: dict[SlotHold, int] = {}
        self.writes = 0
        self.copies: dict[Place, Copy] = {}
        self.now, self.epoch = 1000.0, 2

    def has(self, *steps: int, safe: tuple[int, ...] = ()) -> float | None:
        """These steps are whole in its slots, the last one is the newest."""
        self.copies = {Place(FILE, slot): Copy(BACKED_UP if step in safe else CACHED, step, slot + 1) for slot, step in enumerate(steps)}
        took = self.rounds.look(self.copies, self.epoch, 1, self.now)
        self.rounds.hold(self, self.copies, self.now)  # type: ignore[arg-type]
        return took

    def segment(self, _: str) -> Any:
        def hold(slot: int, sequence: int, seconds: float, why: SlotHold) -> None:
            assert (sequence, seconds) == (slot + 1, HOLD_S)
            self.held[why] = self.copies[Place(FILE, slot)].step
            self.writes += 1

        return SimpleNamespace(hold=hold)

    def chosen(self) -> list[int]:
        return [copy.step for copy in self.copies.values() if self.rounds.is_chosen(FILE, copy.step)]


@pytest.fixture
def node() -> Node:
    return Node()


def test_an_epoch_begins_with_the_newest_and_goes_on_with_the_first_behind_each_target(node: Node) -> None:
    node.has(4, 5, 6)
    assert (node.chosen(), node.rounds.to_tell("n0", 1, 3.0)) == ([6], None)
    node.now += 2.0
    assert node.has(5, 6, 7, safe=(6,)) == 2.0
    told = node.rounds.to_tell("n0", 4, 3.0)
    assert told is not None
    assert (told.number, told.step, told.newest, told.every) == (0, 6, 7, 4)
    node.has(6, 7, 8, safe=(6,))
    assert node.chosen() == [6], "nothing else is sent before all have told"
    node.rounds.answered(2, Round(number=1, target=10, agreed=6), node.now)
    node.has(6, 9, 11, safe=(6,))
    assert node.chosen() == [11]
    node.has(6, 11, 12, safe=(6,))
    assert node.chosen() == [11]


def test_what_all_have_stays_until_all_have_a_newer_one(node: Node) -> None:
    node.has(6)
    node.has(6, 7, safe=(6,))
    assert node.held == {SlotHold.SENT: 6}
    node.rounds.answered(2, Round(number=1, target=8, agreed=6), node.now)
    node.has(6, 7, 8, safe=(6,))
    node.has(6, 8, 9, safe=(6, 8))
    assert node.held == {SlotHold.KEPT: 6, SlotHold.SENT: 8}
    node.epoch = 3
    node.now += HOLD_S
    node.writes = 0
    node.has(6, 8, 9)
    assert (node.writes, node.held[SlotHold.KEPT]) == (1, 6), "the next epoch may lose a node before it has copied anything"
    node.has(6, 8, 9, safe=(9,))
    node.rounds.answered(3, Round(number=1, target=10, agreed=9), node.now)
    node.has(6, 8, 9, safe=(9,))
    assert node.held[SlotHold.KEPT] == 9


def test_a_hold_is_renewed_before_it_ends_and_not_at_each_look(node: Node) -> None:
    node.has(6)
    for _ in range(100):
        node.now += 0.1
        node.has(6, 7, safe=(6,))
    assert 2 <= node.writes <= 4


def test_a_copy_that_was_written_anew_before_it_was_sent_gives_way_to_the_first_that_is_there(node: Node) -> None:
    node.has(6)
    node.has(7, 8)
    assert node.chosen() == [8]
    node.has(8, safe=(8,))
    node.rounds.answered(2, Round(number=1, target=10), node.now)
    node.has(8, 10)
    node.has(11, 12)
    assert node.chosen() == [11]


def test_a_training_that_was_rolled_back_is_copied_at_once(node: Node) -> None:
    node.has(100)
    node.has(100, safe=(100,))
    node.rounds.answered(2, Round(number=1, target=110, agreed=100), node.now)
    node.has(100, 105, safe=(100,))
    assert node.chosen() == []
    node.has(100, 21, safe=(100,))
    assert node.chosen() == [21]


def test_a_node_that_is_told_no_new_round_goes_on_by_itself(node: Node) -> None:
    node.has(6)
    node.has(6, 7, safe=(6,))
    node.now += ALONE_S + 1
    node.has(6, 7, safe=(6,))
    node.has(6, 7, 8, safe=(6,))
    assert (node.chosen(), node.held[SlotHold.KEPT]) == ([8], 6)


def test_the_step_that_all_have_is_known_while_rounds_go_on(node: Node) -> None:
    node.has(6)
    assert node.rounds.common(node.now) == -1
    node.has(6, safe=(6,))
    node.rounds.answered(2, Round(number=1, target=8, agreed=6), node.now)
    assert node.rounds.common(node.now + ALONE_S) == 6
    assert node.rounds.common(node.now + ALONE_S + 1) is None


def test_an_answer_of_another_epoch_or_of_a_round_that_is_over_says_nothing(node: Node) -> None:
    node.has(6)
    node.has(6, safe=(6,))
    node.rounds.answered(1, Round(number=5, target=10, agreed=1), node.now)
    node.rounds.answered(2, Round(), node.now)
    assert node.rounds.is_over


def test_a_node_ends_its_round_when_all_its_workers_are_safe(node: Node) -> None:
    slots = {Place(file, 0): Copy(CACHED, 6, 1) for file in ("a", "b")}
    node.rounds.look(slots, 2, 1, 0.0)
    half = {Place("a", 0): Copy(BACKED_UP, 6, 1), Place("b", 0): Copy(CACHED, 6, 1)}
    assert node.rounds.look(half, 2, 1, 1.0) is None
    assert not node.rounds.is_over
    assert node.rounds.look({place: Copy(BACKED_UP, 6, 1) for place in slots}, 2, 1, 3.0) == 3.0
    assert node.rounds.is_over
