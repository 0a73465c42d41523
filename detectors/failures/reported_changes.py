"""What numbers in a report do: `loss 2.2 -> 5.1`, `throughput +2 %`, and the values that lines of training hold, one after the other.

>>> [sign.name for sign in told_changes(1, "iteration time 105.2 -> 111 s")]
['iteration_time_rises']
>>> [sign.name for sign in told_changes(1, "from 149 to 141 TFLOPs")]
['throughput_falls']
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from .report_signs import ReportSign

_NUMBER = r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?"
_UNIT = r"(?: ?(?:%|s/it|it/s|ms|s|k|M|TFLOP\w*))?"
_ARROW = re.compile(rf"(?P<before>{_NUMBER}){_UNIT}\s*(?:->|→|=>|\bto\b)\s*(?P<after>{_NUMBER})", re.IGNORECASE)
_PERCENT = re.compile(rf"(?P<sign>[-+−])\s*(?P<share>{_NUMBER})\s*%|(?P<amount>{_NUMBER})\s*%\s*(?P<word>slower|faster|lower|higher|less|more|drop|decrease|increase|below|above)", re.IGNORECASE)
_QUANTITIES = {
    "loss_scale": re.compile(r"loss[ _-]?scale", re.IGNORECASE),
    "grad_norm": re.compile(r"grad(?:ient)?[ _-]*norm", re.IGNORECASE),
    "iteration_time": re.compile(r"(?:iteration|step|batch)[ _-]*time|time per (?:iteration|step)|s/it\b|seconds per (?:iteration|step)", re.IGNORECASE),
    "throughput": re.compile(r"through-?put|tflop\w*|tokens?(?: per |/)s|samples?(?: per |/)s|it/s|\bspeed\b|\bMFU\b", re.IGNORECASE),
    "loss": re.compile(r"\bloss\b(?![ _-]?scale)|perplexity|\bppl\b", re.IGNORECASE),
}
NEAR = 40
"""Characters before and after the numbers in which their name is looked for."""
_SPEEDS = {r"it(?:er(?:ation)?s?)?/s\b": "throughput", r"(?:tokens?|samples?|images?)/s": "throughput", r"s(?:ec(?:onds?)?)?/(?:it\b|iter|step)": "iteration_time"}
"""Units of a speed → the quantity."""
_DOWN = ("slower", "lower", "less", "drop", "decrease", "below")


class _Steps(NamedTuple):
    """How much less or more is a change."""

    falls: float
    rises: float


_CHANGES = {"loss": _Steps(0.0, 1.1), "grad_norm": _Steps(0.0, 3.0), "iteration_time": _Steps(0.0, 1.02), "throughput": _Steps(0.98, 1.015), "loss_scale": _Steps(0.5, 1e9)}
"""Of each quantity; what is no sign of anything (a loss that falls, a norm that does) has a step that nothing reaches."""


def told_changes(number: int, line: str) -> Iterator[ReportSign]:
    """Of a line in somebody's words."""
    for found in _ARROW.finditer(line):
        before, after = _value(found["before"]), _value(found["after"])
        if before > 0.0 and (quantity := _quantity_near(line, *found.span())):
            yield from _sign(quantity, after / before, number, line)
    for found in _PERCENT.finditer(line):
        share = _value(found["share"] or found["amount"]) / 100.0
        down = found["sign"] in ("-", "−") if found["sign"] else found["word"].lower() in _DOWN
        quantity = _quantity_near(line, *found.span()) or ("throughput" if (found["word"] or "").lower() in ("slower", "faster") else "")
        if quantity:
            yield from _sign(quantity, 1.0 - share if down else 1.0 + share, number, line)
    yield from _told_twice(number, line)


def _told_twice(number: int, line: str) -> Iterator[ReportSign]:
    """Two speeds with one unit, one after the other: `10 it/s at first, now 5 it/s`."""
    for unit, quantity in _SPEEDS.items():
        found = [_value(each) for each in re.findall(rf"({_NUMBER}) ?{unit}", line, re.IGNORECASE)]
        if len(found) == 2 and found[0] > 0.0:
            yield from _sign(quantity, found[1] / found[0], number, line)


def printed_changes(values: Mapping[str, Sequence[tuple[int, float]]], lines: Mapping[int, str]) -> Iterator[ReportSign]:
    """Of lines that training prints. `values`: by quantity, (number of the line, value) in their order; `lines`: their texts, by number."""
    for quantity, series in values.items():
        if len(series) < FEWEST:
            continue
        numbers = [value for _, value in series]
        third = max(1, len(numbers) // 3)
        before = median(numbers[:third])
        if before <= 0.0:
            continue
        if quantity in ("loss", "grad_norm"):
            at, peak = max(series[third:], key=lambda point: point[1])
            if quantity == "loss" and peak < SPIKE * max(numbers[:third]):
                continue  # the losses of single batches differ by as much
            yield from _sign(quantity, peak / before, at, lines.get(at, ""))
            if quantity == "loss" and numbers[-1] <= before * CAME_BACK:
                yield ReportSign("recovered", series[-1][0], lines.get(series[-1][0], ""))
        elif quantity == "loss_scale" and numbers[1] >= numbers[0]:  # a loss scaler begins too high, and comes down
            at, least = min(series, key=lambda point: point[1])
            yield from _sign(quantity, least / before, at, lines.get(at, ""))
        elif quantity in ("iteration_time", "throughput"):
            first, last = numbers[:third], numbers[-third:]
            if min(last) > max(first) or max(last) < min(first):
                yield from _sign(quantity, median(last) / before, series[-third][0], lines.get(series[-third][0], ""))


FEWEST = 4
"""Values of a series from which something is said."""
CAME_BACK = 1.05
SPIKE = 1.5
"""Times the largest loss before it."""


def _sign(quantity: str, ratio: float, number: int, line: str) -> Iterator[ReportSign]:
    steps = _CHANGES[quantity]
    if ratio >= steps.rises:
        yield ReportSign(f"{quantity}_rises", number, line.strip())
    elif ratio <= steps.falls:
        yield ReportSign(f"{quantity}_falls", number, line.strip())


def _quantity_near(line: str, begin: int, end: int) -> str:
    """The quantity whose name is nearest to the numbers, of those before them the last; '' if none is near."""
    found: list[tuple[int, str]] = []
    for name, pattern in _QUANTITIES.items():
        found += [(begin - each.end(), name) for each in pattern.finditer(line[:begin]) if begin - each.end() <= NEAR]
        found += [(each.start(), name) for each in pattern.finditer(line[end : end + NEAR])]
    return min(found, default=(0, ""))[1]


def _value(text: str) -> float:
    return float(text.replace(",", "")) if text.count(".") <= 1 else 0.0


NAMES = frozenset({"recovered", *(f"{quantity}_{way}" for quantity, steps in _CHANGES.items() for way in ("rises", "falls") if not (way == "rises" and steps.rises > 1e6) and not (way == "falls" and steps.falls <= 0.0))})
"""Signs that this file gives."""
