"""How many steps are between two that are copied: so many that copying stays within its share."""

from remediation.checkpoint.backup_interval import BackupInterval


class Node:
    """One whose training saves a step each `step_s`; copying one takes `cost_s` of a processor and `copy_s` seconds."""

    def __init__(self, least: int = 1, share: float = 0.01, processors: int = 2) -> None:
        self.interval = BackupInterval(least, share, processors)
        self.now, self.used_s = 1000.0, 0.0
        self.said: list[str] = []

    def train(self, steps: int, *, step_s: float = 0.6, cost_s: float = 0.04, copy_s: float = 0.05) -> None:
        step, due = 0, 0
        while step < steps:
            step += 1
            self.now += step_s
            if step >= due:
                self.used_s += cost_s
                if said := self.interval.copied(self.now, self.used_s, copy_s):
                    self.said.append(said)
                due = step + self.interval.every


def test_each_step_is_copied_where_that_costs_little() -> None:
    node = Node()
    node.train(100, cost_s=0.01)
    assert (node.interval.every, node.said) == (1, [])


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


def test_where_a_copy_takes_more_than_half_of_the_time_steps_are_copied_less_often() -> None:
    node = Node()
    node.train(12, step_s=10.0, copy_s=18.0)
    assert node.interval.every == 2
    assert "takes 18.0 s to another node, where one is due every 10.0 s: every 2 steps" in node.said[0]
    node.train(200, step_s=10.0, copy_s=18.0)
    assert node.interval.every == 4, "18 s of 20 s are more than half, of 40 s they are less, and more than a quarter of 20 s"


def test_behind_another_neighbour_what_was_measured_before_says_nothing() -> None:
    node = Node()
    node.train(15)
    node.interval.begin_anew()
    node.train(4)
    assert node.said == []
