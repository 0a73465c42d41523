"""One condition of a rule: a metric, a comparison, and a number, the peers' median, or the value before."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Floats

Flags = NDArray[np.bool_]

COMPARISONS = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal}
HAS, RISES = "has", "rises"
PEERS = 4
"""Readings at least of which a median says what is usual."""
PEERS_SHARE = 0.25
"""Of them may differ from the median; where more do, they are machines of several kinds, and none is unusual."""
FORM = '"METRIC OP NUMBER" with OP one of > >= < <= == !=, "METRIC OP [FACTOR *] peers [+ NUMBER]", "METRIC has 0xBITS", or "METRIC rises"'
_UNSIGNED = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBER = rf"[+-]?{_UNSIGNED}"
_METRIC = r"(?P<metric>[a-z][a-z0-9_]{0,99})"
_COMPARED = re.compile(rf"{_METRIC}\s*(?P<op>>=|<=|==|!=|>|<)\s*(?:(?P<number>{_NUMBER})|(?:(?P<factor>{_NUMBER})\s*\*\s*)?peers(?:\s*(?P<sign>[+-])\s*(?P<offset>{_UNSIGNED}))?)")
_HAS = re.compile(rf"{_METRIC}\s+has\s+(?P<bits>0x[0-9a-fA-F]{{1,6}}|\d{{1,8}})")
_RISES = re.compile(rf"{_METRIC}\s+rises")


class ConditionResult(NamedTuple):
    """What a condition says of each entity; neither true nor false: it was not read."""

    true: Flags
    false: Flags
    limit: float
    """What it was compared with; NaN for `rises`."""


@dataclass(frozen=True, slots=True)
class RuleCondition:
    """As it was parsed; `str` gives it as it was written."""

    text: str
    metric: str
    op: str
    number: float = 0.0
    """To compare with; of `peers` what is added to their median; of `has` the bits."""
    factor: float = 0.0
    """Of the peers' median; 0: the number alone."""

    def __str__(self) -> str:
        return self.text

    @property
    def of_peers(self) -> bool:
        return self.factor != 0.0

    def judge(self, values: Floats, before: Floats | None = None) -> ConditionResult:
        """`before`: the last value that was read of each entity, for `rises`; NaN where there is none."""
        read = np.isfinite(values)
        if self.op == HAS:
            true = np.zeros(len(values), np.bool_)
            true[read] = (values[read].astype(np.int64) & int(self.number)) != 0
            return ConditionResult(true, read & ~true, self.number)
        if self.op == RISES:
            true = read & (values > before) if before is not None else np.zeros(len(values), np.bool_)
            return ConditionResult(true, read & ~true, float("nan"))
        if self.of_peers:
            return self._beside_peers(values, read)
        true = read & COMPARISONS[self.op](values, np.float32(self.number))
        return ConditionResult(true, read & ~true, self.number)

    def _beside_peers(self, values: Floats, read: Flags) -> ConditionResult:
        """Nothing where there are too few, or too many differ."""
        known = values[read]
        if len(known) >= PEERS:
            limit = self.factor * float(np.median(known)) + self.number
            true = read & COMPARISONS[self.op](values, np.float32(limit))
            if np.count_nonzero(true) <= PEERS_SHARE * len(known):
                return ConditionResult(true, read & ~true, limit)
        nobody = np.zeros(len(values), np.bool_)
        return ConditionResult(nobody, nobody, float("nan"))


def parse(text: str) -> RuleCondition | None:
    """A condition as FORM says; None for any other text.

    >>> parse("sm_clock_mhz < 0.5 * peers")
    RuleCondition(text='sm_clock_mhz < 0.5 * peers', metric='sm_clock_mhz', op='<', number=0.0, factor=0.5)
    >>> parse("throttle_reasons has 0x40").number, parse("remapped_rows rises").op, parse("too hot")
    (64.0, 'rises', None)
    """
    plain = " ".join(text.split())
    if found := _COMPARED.fullmatch(plain):
        if found["number"] is not None:
            return _finite(RuleCondition(plain, found["metric"], found["op"], float(found["number"])))
        offset = float(f"{found['sign']}{found['offset']}") if found["offset"] else 0.0
        return _finite(RuleCondition(plain, found["metric"], found["op"], offset, float(found["factor"] or 1.0)))
    if found := _HAS.fullmatch(plain):
        bits = int(found["bits"], 0) if found["bits"].startswith("0x") else int(found["bits"])
        return RuleCondition(plain, found["metric"], HAS, float(bits)) if 0 < bits < 1 << 24 else None
    if found := _RISES.fullmatch(plain):
        return RuleCondition(plain, found["metric"], RISES)
    return None


def _finite(condition: RuleCondition) -> RuleCondition | None:
    """Beyond float32 nothing can be compared."""
    largest = float(np.finfo(np.float32).max)
    return condition if abs(condition.number) < largest and abs(condition.factor) < largest else None
