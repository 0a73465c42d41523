"""A rule as a pack holds it, and the file that a mistake in it is told of."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from eagle_eye.ranges import Delay
from eagle_eye.types import Kind, Severity

from .condition import RuleCondition

Text = Annotated[str, msgspec.Meta(max_length=1000)]
RuleName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]{0,63}$")]
Example = dict[str, float | tuple[float, ...] | dict[str, float]]
"""Metric → its value, or its values one after the other; `peers` → metric → the value of seven others."""
ENTITIES = (Kind.GPU, Kind.LINK, Kind.MOUNT, Kind.WORKER, Kind.NODE)
SCORES = {Severity.SEV1: 0.9, Severity.SEV2: 0.8, Severity.SEV3: 0.7, Severity.INFO: 0.5}


class RuleTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table [[rule]] of a pack."""

    name: RuleName
    entity: Kind = Kind.JOB
    """gpu, link, mount, worker or node; the default stands for a rule that does not say it."""
    when: Text | tuple[Text, ...] = ()
    """Conditions that must all be true."""
    for_s: Delay = 0.0
    """For so many seconds without a break."""
    clear_s: Delay = 60.0
    """Withdrawn when it was not true for so many seconds."""
    mean_s: Delay = 0.0
    """Judge the mean of each span of so many seconds, not each reading; 0: each reading."""
    new: bool = False
    """Only of an entity that was read before without it being true."""
    severity: Severity = Severity.INFO
    summary: Text = ""
    advice: Text = ""
    runbook: Text = ""
    enabled: bool = True
    fires: tuple[Example, ...] = ()
    quiet: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricRule:
    """A rule that is in order, and where it was read."""

    table: RuleTable
    conditions: tuple[RuleCondition, ...]
    file: str
    line: int

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def kind(self) -> str:
        """Of its findings."""
        return f"rule.{self.table.name}"

    @property
    def when(self) -> str:
        return " and ".join(map(str, self.conditions))


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """What is wrong in a pack, and how it is put right."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"
