"""A report of a failed run (lines of logs, stacks, numbers, words of people) → the failures that it speaks for. Nothing of it is executed or asked."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from collectors.log.job_messages import JobMessages
from collectors.log.kernel_messages import KernelMessages
from collectors.log.log_prefix import kernel_line
from collectors.log.value_formats import ValueFormats
from detectors.failures.failure_catalogue import (
    LINES_KEPT,
    FailureCatalogue,
    FailureOrigin,
    FailureRepair,
    SuspectedFailure,
)
from detectors.failures.report_signs import ReportSign, SignTable
from detectors.failures.reported_changes import printed_changes, told_changes

MOST_LINES = 5_000
"""Lines of a report that are read word by word: the last ones. Of those before them only the ones that hold a known text of a log."""
MOST_EARLIER = 2_000
MOST_ALIKE = 20
"""Lines that are equal but for their numbers: further ones say nothing new, and reading a line takes a millisecond."""
_NUMBERS = re.compile(r"\d+")
MOST_SUSPECTED = 3
"""Failures that are told."""
_INFORMS = re.compile(r".{0,200}?:\d+:\d+ \[-?\d+\] NCCL INFO")
"""Lines of NCCL that say how it goes about it: `via P2P/CUMEM` is no trouble with P2P."""
SERIES = {"loss": "loss", "grad_norm": "grad_norm", "iteration_s": "iteration_time", "loss_scale": "loss_scale", "tokens_per_s": "throughput", "gpu_tokens_per_s": "throughput"}
"""Values that lines of training hold → quantities of reported_changes."""
INNOCENT = {
    FailureOrigin.HARDWARE: "the other machines, the program and its data",
    FailureOrigin.NETWORK: "GPUs and the nodes at both ends: evict nobody for a link",
    FailureOrigin.STORAGE: "GPUs, network and the nodes that wait: evict nobody",
    FailureOrigin.CONFIGURATION: "the hardware: another node with the same settings fails in the same way, evict nobody",
    FailureOrigin.PROGRAM: "the machines: another node would fail in the same way, evict nobody",
    FailureOrigin.TRAINING: "the machines: evict nobody for a number",
    FailureOrigin.SITE: "the machines and the program: evict nobody",
}
SURE = ((0.8, "clear"), (0.55, "likely"), (0.0, "possible"))
"""Least weight of the evidence → word for it."""


class ReportLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that speaks for a failure."""

    line: int
    text: str
    sign: str


class RivalFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What else it could be."""

    name: str
    title: str
    apart: str
    """What tells the two apart."""


class FailureExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What a report speaks for."""

    name: str
    title: str
    sure: str
    """clear, likely or possible."""
    weight: float
    """Of the evidence, 0 to 1; no probability."""
    origin: FailureOrigin
    repair: FailureRepair
    cause: str
    remedy: str
    innocent: str
    """What is not at fault."""
    source: str
    lines: tuple[ReportLine, ...]
    rivals: tuple[RivalFailure, ...]


class ReportReader:
    """Reads reports by the tables of this release."""

    def __init__(self, most_lines: int = MOST_LINES) -> None:
        self._most_lines = most_lines
        self._signs = SignTable.load()
        self.catalogue = FailureCatalogue.load()
        self._job, self._kernel, self._formats = JobMessages(), KernelMessages(), ValueFormats()

    def explain(self, lines: Sequence[str]) -> tuple[FailureExplanation, ...]:
        """The failures that a report speaks for, the strongest first; () if it speaks for none."""
        return tuple(self._explanation(each) for each in islice(self.catalogue.suspected(tuple(self.signs_of(lines))), MOST_SUSPECTED))

    def signs_of(self, lines: Sequence[str]) -> Iterator[ReportSign]:
        """Everything in a report that speaks for something."""
        series: dict[str, list[tuple[int, float]]] = {}
        texts: dict[int, str] = {}
        alike = Counter[str]()
        for number, line in self._chosen(lines):
            values = self._training_values(line)
            if not values:
                shape = _NUMBERS.sub("0", line)
                alike[shape] += 1
                if alike[shape] <= MOST_ALIKE:
                    yield from self._of_line(number, line)
                continue
            texts[number] = line
            for name, value in values.items():
                if math.isfinite(value) and name in SERIES:
                    series.setdefault(SERIES[name], []).append((number, value))
                elif name in ("loss", "grad_norm") and not math.isfinite(value):
                    yield ReportSign("not_finite", number, line.strip())
        yield from printed_changes(series, texts)

    def _chosen(self, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
        """With their numbers from 1."""
        late = max(0, len(lines) - self._most_lines)
        yield from islice(self._with_known_text(lines[:late]), MOST_EARLIER)
        yield from enumerate(lines[late:], late + 1)

    def _with_known_text(self, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Those that hold a hint of the table of jobs: found in one search over all."""
        data = "\n".join(lines).encode(errors="replace")
        number, at, last = 1, 0, 0
        for hit in self._job.hits(data):
            number += data.count(b"\n", at, hit)
            at = hit
            if number != last:
                last = number
                yield number, lines[number - 1]

    def _training_values(self, line: str) -> dict[str, float]:
        """What a line of training holds; none where it is another line."""
        found = self._formats.read(line)
        return found.values if found is not None and "step" in found.values and len(found.values) > 1 else {}

    def _of_line(self, number: int, line: str) -> Iterator[ReportSign]:
        text, job = line.strip(), self._job.read_line(line)
        if job is not None:
            yield ReportSign(f"{job.component}.{job.code}", number, text)
        if _INFORMS.match(line) or (job is not None and job.level == "notice" and not job.advice and job.code != "warning"):
            return  # healthy jobs print it, too
        written = kernel_line(line, math.nan)
        kernel = self._kernel.read(written.text)
        if kernel is not None and written.written_by:
            return  # a program that quotes the kernel, such as grep for an Xid
        yield from self._signs.read(number, line)
        yield from told_changes(number, line)
        if kernel is not None and kernel.level == "error" and kernel.qualifier != "nonfatal":
            yield ReportSign(f"xid.{kernel.number}" if kernel.code == "xid" else f"kernel.{kernel.component}.{kernel.code}", number, text)

    def _explanation(self, found: SuspectedFailure) -> FailureExplanation:
        failure = found.failure
        return FailureExplanation(
            name=failure.name, title=failure.title, sure=next(word for least, word in SURE if found.weight >= least), weight=found.weight,
            origin=failure.origin, repair=failure.repair, cause=failure.cause, remedy=failure.remedy, innocent=INNOCENT[failure.origin], source=failure.source,
            lines=tuple(_lines(found.signs)),
            rivals=tuple(RivalFailure(name=name, title=self.catalogue.by_name[name].title, apart=apart) for name, apart in failure.rivals),
        )  # fmt: skip


def _lines(signs: Iterable[ReportSign]) -> Iterator[ReportLine]:
    """Each line once, with all of its signs."""
    by_line: dict[int, list[ReportSign]] = {}
    for sign in signs:
        by_line.setdefault(sign.line, []).append(sign)
    for number, found in islice(by_line.items(), LINES_KEPT):
        yield ReportLine(line=number, text=found[0].text, sign=", ".join(dict.fromkeys(sign.name for sign in found)))
