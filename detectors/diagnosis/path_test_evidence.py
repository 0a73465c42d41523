"""Tests that were run by themselves for an incident (`eagle_eye/tested_causes.py`): they are evidence of it, and open none of their own.

Their lines are shown whatever else there is, and the rivals that they tell apart name the result.
"""

from collections.abc import Iterable, Iterator, Sequence

from eagle_eye.tested_causes import CUT, NETWORK_TESTED, OPEN, STORAGE_TESTED, TESTS_OF
from eagle_eye.types import Evidence, Finding, Rival

TESTED = frozenset({NETWORK_TESTED, STORAGE_TESTED})
LINES_PER_TEST = 6
TOLD_BY = {
    "network to the node cut": NETWORK_TESTED,
    "control channel of the node cut": NETWORK_TESTED,
    "a broken link": NETWORK_TESTED,
    "a slow link": NETWORK_TESTED,
    "a slow link, where the backward pass hides the communication": NETWORK_TESTED,
    "a broken network between the launchers": NETWORK_TESTED,
    "launchers that have stopped": NETWORK_TESTED,
    "a hung call into a driver or a file system": STORAGE_TESTED,
    "the network to its server": STORAGE_TESTED,
}
"""Rival (causes.py) → the test that says something of it."""


def is_test_for(word: str, kind: str) -> bool:
    """Whether a finding of that kind is a test of a cause, by the cause's word."""
    return kind in TESTED and kind in TESTS_OF.get(word, ())


def without_tests(parts: Iterable[Finding]) -> list[Finding]:
    """The findings of an incident that are no tests."""
    return [part for part in parts if part.kind not in TESTED]


def test_lines(parts: Iterable[Finding]) -> Iterator[Evidence]:
    """What the tests of an incident say."""
    for part in parts:
        if part.kind in TESTED:
            yield from [line for line in part.evidence if line.metric != "over"][:LINES_PER_TEST]


def rivals_of(rivals: Iterable[tuple[str, str]], parts: Sequence[Finding]) -> tuple[Rival, ...]:
    """As the table of causes has them, with what the newest test of each says."""
    return tuple(Rival(cause=rival, apart="; ".join((apart, *_results(TOLD_BY.get(rival, ""), parts)))) for rival, apart in rivals)


def _results(kind: str, parts: Sequence[Finding]) -> list[str]:
    newest = max((part for part in parts if part.kind == kind), key=lambda part: part.since, default=None)
    line = next((line for line in newest.evidence if line.status in (OPEN, CUT)), None) if newest is not None else None
    return [line.text] if line is not None else []
