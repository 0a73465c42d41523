"""Verdicts beside labels: recall, culprits, delay and false alarms of any detector. Nothing is adjusted: a verdict before the onset is a false alarm."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import text_of
from eagle_eye.errors import UNREADABLE, DataSetError

RECALL, CULPRIT, PER_HOUR = 0.99, 0.975, 1.0 / 10_000
REMEDY = "see the format in docs/evaluate.md"
_Row = TypeVar("_Row", bound=msgspec.Struct)


class JobLabel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The truth about one job: a line of labels.jsonl."""

    job: str
    scenario: str
    fault: bool
    onset: float
    """Seconds since 1970; what a twin does begins then, too."""
    end: float
    hours: float
    """That the job ran."""
    culprits: tuple[str, ...] = ()
    """Nodes at fault; () = nobody: then to accuse is a false alarm."""


class JobVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector says: a line of verdicts.jsonl."""

    job: str
    time: float
    culprits: tuple[str, ...] = ()
    """Nodes that it accuses; () = something is wrong and nobody is at fault."""
    cause: str = ""


def read_labels(path: Path) -> list[JobLabel]:
    """Raises DataSetError."""
    labels = _lines(path, JobLabel)
    if not labels:
        raise DataSetError(f"{path}: it has no label; {REMEDY}")
    return labels


def read_verdicts(path: Path) -> list[JobVerdict]:
    """Raises DataSetError. An empty file is a detector that has found nothing."""
    return _lines(path, JobVerdict)


def score(labels: Sequence[JobLabel], verdicts: Iterable[JobVerdict]) -> list[Figure]:
    """Over all, then of each kind of fault. Raises DataSetError for a verdict about a job that has no label."""
    by_job: dict[str, list[JobVerdict]] = {each.job: [] for each in labels}
    for verdict in verdicts:
        if verdict.job not in by_job:
            raise DataSetError(f"verdict about {verdict.job}: the labels have no such job; take labels and verdicts of one cluster")
        by_job[verdict.job].append(verdict)
    faults = [each for each in labels if each.fault]
    found = {each.job: first for each in faults if (first := _first(each, by_job[each.job])) is not None}
    right = [each for each in faults if each.job in found and _accused(each, by_job[each.job]) == set(each.culprits)]
    alarms = [(each, name) for each in labels for name in sorted(_falsely_accused(each, by_job[each.job]))]
    hours = sum(each.hours for each in labels)
    delays = [found[each.job] - each.onset for each in faults if each.job in found]
    rows = [
        Figure(what="faults found", figure=_share(len(found), len(faults)), goal=f"≥ {RECALL:.0%}", met=len(found) >= RECALL * len(faults), reason=_names(each for each in faults if each.job not in found)),
        Figure(
            what="culprits: exactly the nodes at fault, or nobody where none is", figure=_share(len(right), len(faults)), goal=f"≥ {CULPRIT:.1%}", met=len(right) >= CULPRIT * len(faults),
            reason=_names(each for each in faults if each not in right),
        ),
        Figure(what="delay from the onset", figure=f"median {np.median(delays):.1f} s, at most {max(delays):.1f} s" if delays else "nothing found"),
        Figure(
            what=f"healthy nodes accused, in {hours:.1f} run-hours", figure=f"{len(alarms)} ({len(alarms) / hours if hours else 0.0:.3g} per run-hour)", goal="≤ 1 per 10,000 run-hours" + (": none in so few" if PER_HOUR * hours < 1.0 else ""),
            met=len(alarms) <= PER_HOUR * hours, reason=_names(each for each, _ in alarms),
        ),
    ]  # fmt: skip
    return [*rows, *(_of_kind(name, [each for each in labels if each.scenario == name], by_job, found) for name in dict.fromkeys(each.scenario for each in labels))]


def _of_kind(name: str, labels: Sequence[JobLabel], by_job: dict[str, list[JobVerdict]], found: dict[str, float]) -> Figure:
    alarms = sum(len(_falsely_accused(each, by_job[each.job])) for each in labels)
    if not labels[0].fault:
        return Figure(what=f"twin: {name}", figure=f"{alarms} accused in {len(labels)} jobs")
    hits = [each for each in labels if each.job in found]
    right = sum(_accused(each, by_job[each.job]) == set(each.culprits) for each in hits)
    delay = f", after {np.median([found[each.job] - each.onset for each in hits]):.1f} s" if hits else ""
    return Figure(what=f"fault: {name}", figure=f"{len(hits)} of {len(labels)} found{delay}; culprit right in {right}; {alarms} healthy accused")


def _first(label: JobLabel, verdicts: Sequence[JobVerdict]) -> float | None:
    """When it was found; where somebody is at fault, only a verdict that names one of them finds it."""
    times = [each.time for each in verdicts if each.time >= label.onset and (not label.culprits or set(each.culprits) & set(label.culprits))]
    return min(times, default=None)


def _accused(label: JobLabel, verdicts: Sequence[JobVerdict]) -> set[str]:
    return {name for each in verdicts if each.time >= label.onset for name in each.culprits}


def _falsely_accused(label: JobLabel, verdicts: Sequence[JobVerdict]) -> set[str]:
    at_fault = set(label.culprits)
    return {name for each in verdicts for name in each.culprits if each.time < label.onset or name not in at_fault}


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.1%})" if of else "none to find"


def _names(labels: Iterable[JobLabel]) -> str:
    named = [f"{each.job} ({each.scenario})" for each in labels]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


def _lines(path: Path, kind: type[_Row]) -> list[_Row]:
    found = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except UNREADABLE as error:
            raise DataSetError(f"{path}, line {number}: {error}; {REMEDY}") from error
    return found
