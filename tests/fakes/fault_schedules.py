"""The twenty fault schedules of `make test`: which of them there are, and how they are played.

Two files play them, so that two processes may do so at the same time. The hundred are `make soak`; what is drawn,
played and looked at is the same.
"""

from collections import Counter

from benchmarks.elastic.chaos import KINDS
from benchmarks.elastic.invariants import Expected
from benchmarks.elastic.schedules import Verdict, verdicts

COUNT = 20
FIRST_SEED = 1000
"""Others than those of `make soak`."""
IN_A_STEP = ("before the all-reduce", "during the all-reduce", "after the all-reduce", "two at once")
BEYOND = tuple(kind for kind in KINDS if kind not in IN_A_STEP)
_SHARES = Counter(KINDS[number % len(KINDS)] for number in range(COUNT))


def played(kind: str, expected: Expected) -> list[Verdict]:
    """Every run of this kind's share of the twenty, those drawn again included."""
    return list(verdicts([kind] * _SHARES[kind], FIRST_SEED, expected))


def missing(kind: str, found: list[Verdict]) -> int:
    """How many of its share the record does not prove."""
    return _SHARES[kind] - sum(verdict.counts for verdict in found)
