"""Verdicts beside labels: recall, culprits, delay and false alarms of any detector, and of those that say so the part at fault and the kind of the fault.

Nothing is adjusted: a verdict before the onset is a false alarm.
"""

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
    kind: str = ""
    """Of the fault, one of `fault_kinds.KINDS`; of a twin, what it looks like."""
    entities: tuple[str, ...] = ()
    """The part at fault, such as `gpu NAME`; several are names of the same suspect, and () = none that could be named."""
    informs: bool = False
    """The job trains on: it is enough to tell, and nobody has to be accused."""
    twin: str = ""
    """The scenario that is nearest to it: of a fault its twin, of a twin its fault."""
    shared: str = ""
    """The same for jobs that are hit by one and the same fault."""


class JobVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector says: a line of verdicts.jsonl."""

    job: str
    time: float
    culprits: tuple[str, ...] = ()
    """Nodes that it accuses; () = something is wrong and nobody is at fault."""
    cause: str = ""
    """In the detector's own words."""
    kind: str = ""
    """One of `fault_kinds.KINDS`; '' = not said."""
    entities: tuple[str, ...] = ()
    """The parts that it is about, accused or not, such as `gpu NAME`."""
    incident: str = ""
    """The same for verdicts about one and the same fault."""


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
    said = [Judged(each, by_job[each.job]) for each in labels]
    return [*_overall(said), *_details(said), *(_of_kind([each for each in said if each.label.scenario == name]) for name in dict.fromkeys(each.scenario for each in labels))]


class Judged:
    """A label, and what was said of its job."""

    def __init__(self, label: JobLabel, verdicts: Sequence[JobVerdict]) -> None:
        self.label, self._after = label, [each for each in verdicts if each.time >= label.onset]
        self.accused = {name for each in self._after for name in each.culprits}
        self.alarms = sorted({name for each in verdicts for name in each.culprits if each.time < label.onset or name not in label.culprits})
        self.told = bool(verdicts)
        finding = [each for each in self._after if self._finds(each)]
        self.found = min((each.time for each in finding), default=None)
        kinds = [each.kind for each in sorted(finding, key=lambda each: each.time) if each.kind]
        self.kind_right = kinds[-1:] == [label.kind]
        self.part_right = any(self._names_part(each) for each in self._after)
        self.other_parts = len({name for each in verdicts for name in each.entities} - set(label.entities))
        self.incidents = {each.incident for each in finding if each.incident}

    @property
    def right(self) -> bool:
        """Exactly those at fault; where it is enough to tell, nobody besides."""
        at_fault = set(self.label.culprits)
        return self.found is not None and (self.accused <= at_fault if self.label.informs else self.accused == at_fault)

    @property
    def delay_s(self) -> float | None:
        return None if self.found is None else self.found - self.label.onset

    @property
    def says_kind(self) -> bool:
        return any(each.kind for each in self._after)

    @property
    def says_parts(self) -> bool:
        return any(each.entities for each in self._after)

    def _finds(self, verdict: JobVerdict) -> bool:
        """Where somebody is at fault, only a verdict that names them finds it: the node, or the part."""
        label = self.label
        return not label.culprits or bool(set(verdict.culprits) & set(label.culprits)) or self._names_part(verdict)

    def _names_part(self, verdict: JobVerdict) -> bool:
        """That part, and no other: who names all of them has found none."""
        return bool(verdict.entities) and set(verdict.entities) <= set(self.label.entities)


def _overall(said: Sequence[Judged]) -> list[Figure]:
    faults = [each for each in said if each.label.fault]
    found, right = [each for each in faults if each.found is not None], [each for each in faults if each.right]
    alarms = [each for each in said for _ in each.alarms]
    hours, delays = sum(each.label.hours for each in said), [each.delay_s for each in found if each.delay_s is not None]
    return [
        Figure(what="faults found", figure=_share(len(found), len(faults)), goal=f"≥ {RECALL:.0%}", met=len(found) >= RECALL * len(faults), reason=_names(each for each in faults if each not in found)),
        Figure(
            what="culprits: exactly the nodes at fault, or nobody where none is", figure=_share(len(right), len(faults)), goal=f"≥ {CULPRIT:.1%}", met=len(right) >= CULPRIT * len(faults),
            reason=_names(each for each in faults if each not in right),
        ),
        Figure(what="delay from the onset", figure=f"median {np.median(delays):.1f} s, at most {max(delays):.1f} s" if delays else "nothing found"),
        Figure(
            what=f"healthy nodes accused, in {hours:.1f} run-hours", figure=f"{len(alarms)} ({len(alarms) / hours if hours else 0.0:.3g} per run-hour)", goal="≤ 1 per 10,000 run-hours" + (": none in so few" if PER_HOUR * hours < 1.0 else ""),
            met=len(alarms) <= PER_HOUR * hours, reason=_names(alarms),
        ),
    ]  # fmt: skip


def _details(said: Sequence[Judged]) -> list[Figure]:
    """What not every detector says; without a goal."""
    faults, twins = [each for each in said if each.label.fault], [each for each in said if not each.label.fault]
    parts = [each for each in faults if each.label.entities]
    rows = [Figure(what="twins of which something is told, accused or not", figure=_share(sum(each.told for each in twins), len(twins)))]
    if any(each.says_kind for each in said):
        rows.append(Figure(what="kind of the fault is right in the newest verdict that finds it", figure=_share(sum(each.kind_right for each in faults), len(faults)), reason=_names(each for each in faults if not each.kind_right)))
    if any(each.says_parts for each in said):
        rows.append(Figure(what="other parts that verdicts are about, for each job", figure=f"{np.mean([each.other_parts for each in said]):.2f}"))
        rows.append(Figure(what="part at fault is named, and no other in the same verdict", figure=_share(sum(each.part_right for each in parts), len(parts)), reason=_names(each for each in parts if not each.part_right)))
    if shared := [[each for each in faults if each.label.shared == name] for name in dict.fromkeys(each.label.shared for each in faults if each.label.shared)]:
        joined = sum(bool(set.intersection(*(each.incidents for each in jobs))) for jobs in shared)
        rows.append(Figure(what="faults of two jobs that are told as one", figure=_share(joined, len(shared))))
    return rows


def _of_kind(said: Sequence[Judged]) -> Figure:
    name, alarms = said[0].label.scenario, sum(len(each.alarms) for each in said)
    if not said[0].label.fault:
        return Figure(what=f"twin: {name}", figure=f"{alarms} accused in {len(said)} jobs; told in {sum(each.told for each in said)}")
    delays = [each.delay_s for each in said if each.delay_s is not None]
    delay = f", after {np.median(delays):.1f} s" if delays else ""
    kind = f"; kind right in {sum(each.kind_right for each in said)}" if any(each.says_kind for each in said) else ""
    part = f"; part named in {sum(each.part_right for each in said)}" if said[0].label.entities and any(each.says_parts for each in said) else ""
    return Figure(what=f"fault: {name}", figure=f"{len(delays)} of {len(said)} found{delay}; culprit right in {sum(each.right for each in said)}{kind}{part}; {alarms} healthy accused")


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.1%})" if of else "none to find"


def _names(said: Iterable[Judged]) -> str:
    named = [f"{each.label.job} ({each.label.scenario})" for each in said]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


def _lines(path: Path, kind: type[_Row]) -> list[_Row]:
    found = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except UNREADABLE as error:
            raise DataSetError(f"{path}, line {number}: {error}; {REMEDY}") from error
    return found
