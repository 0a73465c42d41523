"""The agent keeps to its budget."""

import subprocess
import sys

from collectors.agent.agent_budget import CHECK_S, AgentBudget, AgentUse, PaceChange, children_s, processor_s

MB = 2**20


class Use:
    """What an agent uses, second by second."""

    def __init__(self, cpu_percent: float = 10.0, memory_mb: float = 100.0) -> None:
        self.budget = AgentBudget(cpu_percent, memory_mb)
        self.now, self.processor_s, self.memory = 0.0, 0.0, 50 * MB
        self.costs: dict[str, float] = {}
        self.budget.check(self._use())

    def spend(self, memory_mb: int = 50, other: float = 0.0, **of_collectors: float) -> list[PaceChange]:
        """One span of the budget: processor time in percent, of collectors by name and of the rest."""
        self.now += CHECK_S
        self.memory = memory_mb * MB
        for name, percent in {**of_collectors, "": other}.items():
            seconds = percent / 100 * CHECK_S
            self.processor_s += seconds
            if name:
                self.costs[name] = self.costs.get(name, 0.0) + seconds
        return self.budget.check(self._use())

    def _use(self) -> AgentUse:
        return AgentUse(self.now, self.processor_s, self.memory, dict(self.costs))


def paces(changes: list[PaceChange]) -> list[tuple[str, int]]:
    return [(change.collector, change.pace) for change in changes]


def test_the_costliest_collector_runs_less_often_until_the_budget_is_kept() -> None:
    use = Use()
    assert paces(use.spend(gpu=12.0, host=2.0, other=1.0)) == [("gpu", 2)]
    assert paces(use.spend(gpu=9.0, host=2.0, other=1.0)) == [("gpu", 4)]
    assert paces(use.spend(gpu=6.0, host=2.0, other=1.0)) == []


def test_twin_a_budget_that_is_kept_changes_nothing() -> None:
    use = Use()
    assert [use.spend(gpu=5.0, other=4.0) for _ in range(10)] == [[]] * 10


def test_what_was_slowed_is_made_faster_again_step_by_step() -> None:
    use = Use()
    for _ in range(2):
        use.spend(gpu=20.0)
    assert [paces(use.spend(gpu=1.0)) for _ in range(3)] == [[("gpu", 2)], [("gpu", 1)], []]


def test_between_half_the_budget_and_all_of_it_nothing_moves_to_and_fro() -> None:
    use = Use()
    use.spend(gpu=12.0)
    assert [use.spend(gpu=7.0) for _ in range(5)] == [[]] * 5


def test_a_collector_is_slowed_so_far_and_then_the_next_and_then_it_is_told_once() -> None:
    use = Use()
    changes = [paces(use.spend(gpu=20.0, host=5.0)) for _ in range(10)]
    assert changes[:4] == [[("gpu", 2)], [("gpu", 4)], [("gpu", 8)], [("gpu", 16)]]
    assert changes[4:8] == [[("host", 2)], [("host", 4)], [("host", 8)], [("host", 16)]]
    assert changes[8:] == [[("", 1)], []]


def test_what_finds_hangs_is_no_part_of_what_may_be_slowed() -> None:
    (change,) = Use().spend(other=30.0)
    assert (change.collector, change.pace) == ("", 1)
    assert "no collector is left to slow" in change.reason


def test_memory_beyond_the_budget_is_told_once_until_it_is_kept_again() -> None:
    use = Use()
    assert ["200 MB" in change.reason for change in use.spend(memory_mb=200)] == [True]
    assert use.spend(memory_mb=210) == []
    assert use.spend(memory_mb=90) == []
    assert len(use.spend(memory_mb=200)) == 1


def test_it_looks_at_spans_of_ten_seconds_and_not_at_moments() -> None:
    use = Use()
    use.now += 1.0
    use.processor_s += 1.0
    assert use.budget.check(AgentUse(use.now, use.processor_s, use.memory, {"gpu": 1.0})) == []


def test_a_program_that_has_ended_counts_with_its_processor_time() -> None:
    before, all_before = children_s(), processor_s()
    subprocess.run([sys.executable, "-c", "sum(range(1000000))"], check=True)
    assert processor_s() - all_before >= children_s() - before > 0.0
