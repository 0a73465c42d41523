"""Which steps are copied: so many that copying stays within its share, and the same ones on all nodes."""

import random

import pytest

from remediation.checkpoint.backup_interval import BackupInterval

FILE = "0.memory"


class Node:
    """One whose training saves a step each `step_s`; copying one takes `cost_s` of a processor and `copy_s` seconds."""

    def __init__(self, least: int = 1, share: float = 0.01, processors: int = 2) -> None:
        self.interval = BackupInterval(least, share, processors)
        self.now, self.used_s, self.step = 1000.0, 0.0, 0
        self.said: list[str] = []
        self.copied: list[int] = []

    def train(self, steps: int, *, step_s: float = 0.6, cost_s: float = 0.04, copy_s: float = 0.05, stride: int = 1) -> None:
        done_at = 0.0
        for _ in range(steps):
            self.now += step_s
            self.step += stride
            if said := self.interval.step_seen(FILE, self.step, self.now, self.used_s, fetching=done_at > self.now):
                self.said.append(said)
            if self.interval.is_chosen(FILE, self.step):
                self.copied.append(self.step)
                done_at = self.now + copy_s
                self.used_s += cost_s
                self.interval.settled(FILE, self.step, done_at)


def test_each_step_is_copied_where_that_costs_little() -> None:
    node = Node()
    node.train(100, cost_s=0.01)
    assert (node.copied, node.said) == ([*range(1, 101)], [])


def test_copying_takes_no_more_than_its_share_of_the_processors() -> None:
    node = Node()
    node.train(200)
    assert node.interval.every == 4, "each second step would take 1.7 % of two processors"
    assert "take 3.3% of this node's processors, more than 1.0%: every 2 steps" in node.said[0]
    before = node.used_s
    node.train(200)
    assert (node.used_s - before) / (200 * 0.6) / 2 < 0.01


def test_without_a_limit_each_step_is_copied() -> None:
    node = Node(share=0.0)
    node.train(200, cost_s=0.5)
    assert node.interval.every == 1


def test_steps_are_copied_more_often_again_once_that_costs_less() -> None:
    node = Node()
    node.train(200)
    node.train(400, step_s=5.0)
    assert node.interval.every == 1


def test_what_is_not_copied_before_the_next_is_due_is_copied_less_often() -> None:
    node = Node()
    node.train(12, step_s=10.0, copy_s=35.0)
    assert node.interval.every == 4
    assert "still on its way" in node.said[0]
    node.train(200, step_s=10.0, copy_s=35.0)
    assert node.interval.every == 4, "it would be late again with half of it"


def test_nodes_that_differ_copy_the_steps_of_the_rarer_one_both() -> None:
    nodes = [Node(), Node(processors=8)]
    for node in nodes:
        node.train(200)
        node.train(400)
    often, rare = sorted((set(node.copied[-50:]) for node in nodes), key=min, reverse=True)
    assert [node.interval.every for node in nodes] == [4, 1]
    assert often & rare == {step for step in rare if step >= min(often)}


@pytest.mark.parametrize("stride", [3, 7, 10])
def test_a_script_that_saves_each_so_many_steps_has_the_first_one_behind_each_multiple_copied(stride: int) -> None:
    node = Node(least=16)
    node.step = random.Random(stride).randrange(100)
    node.train(60, cost_s=0.0, stride=stride)
    behind = node.copied[1:]
    assert len(behind) == len({step // 16 for step in behind}) > 5
    assert all(step % 16 < stride for step in behind)


def test_behind_another_neighbour_the_newest_step_is_copied_whichever_it_is() -> None:
    node = Node(least=100)
    node.train(7)
    node.interval.begin_anew()
    node.train(1)
    assert node.copied == [1, 8]


def test_a_training_that_was_rolled_back_is_copied_at_once() -> None:
    node = Node(least=100)
    node.train(60)
    node.step = 20
    node.train(1)
    assert node.copied == [1, 21]
