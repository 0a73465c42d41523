"""The examples of a rule, run through the detector: which lines of metrics fire it, and which do not."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from detectors.metric_rules import MetricRules
from eagle_eye.frames import Frame
from eagle_eye.types import Kind

from .pack import RuleSet
from .rule import Example, MetricRule
from .rule_state import READINGS

PEERS = 7
"""Others of its kind beside the one that an example is about."""
SUBJECT = "example"
LONGEST_STEP_S, TICKS = 30.0, 20
"""Between two ticks, and in what a rule waits for."""


class ExampleResult(NamedTuple):
    """What came of one example."""

    rule: MetricRule
    example: Example
    expected: bool
    """It must fire, about the subject and nobody else; else it must not fire at all."""
    told: frozenset[str]
    """About whom it fired."""

    @property
    def passed(self) -> bool:
        return self.told == (frozenset((SUBJECT,)) if self.expected else frozenset())


def run_examples(rule: MetricRule) -> Iterator[ExampleResult]:
    """Each example of a rule, those that must fire first."""
    for expected, examples in ((True, rule.table.fires), (False, rule.table.quiet)):
        for example in examples:
            yield ExampleResult(rule, example, expected, _told(rule, example))


def _told(rule: MetricRule, example: Example) -> frozenset[str]:
    """About whom a rule fires. Of a list one value is read a tick; the last one stays."""
    detector = MetricRules(_rules=RuleSet((rule,)))
    return frozenset(claim.entity.name for frame in _frames(rule, example) for claim in detector.update(frame) if claim.active)


def _frames(rule: MetricRule, example: Example) -> Iterator[Frame]:
    table = rule.table
    step = min(LONGEST_STEP_S, max(1.0, table.for_s / TICKS))
    if table.mean_s:
        step = min(step, table.mean_s / (2 * READINGS))
    longest = max((len(value) for value in example.values() if isinstance(value, tuple)), default=1)
    ticks = longest + int((table.for_s + 2 * table.mean_s) / step) + 3
    names = (SUBJECT, *(f"peer-{number}" for number in range(PEERS)))
    for tick in range(ticks):
        columns = {condition.metric: _column(condition.metric, example, tick) for condition in rule.conditions}
        yield Frame(job="examples/rules/run", number=tick + 1, generation=1, time=1e9 + tick * step, tick=True, entities={table.entity: names}, metrics={Kind(table.entity): columns})


def _column(metric: str, example: Example, tick: int) -> np.ndarray:
    """Of the subject, then of the others; what an example does not give was not read."""
    peers = example.get("peers")
    others = peers.get(metric, np.nan) if isinstance(peers, dict) else np.nan
    given = example.get(metric, np.nan)
    own = given[min(tick, len(given) - 1)] if isinstance(given, tuple) and given else given
    return np.array([own if isinstance(own, float | int) else np.nan, *[others] * PEERS], np.float32)
