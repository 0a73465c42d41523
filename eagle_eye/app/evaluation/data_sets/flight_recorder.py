"""Flight-recorder dumps of jobs with injected faults: one folder a job, `_dump_RANK` of each rank, the truth in `fault_injection.log`.

The ranks that others wait for must be exactly the faulty ones: a healthy one that is named would be evicted.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from eagle_eye.activity.flight_dump import FlightDump, read_dump
from eagle_eye.activity.missing_ranks import missing_ranks
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import REMEDY, text_of
from eagle_eye.errors import DataSetError, WireError

TRUTH = "fault_injection.log"
OTHERS = "torch's torchfrtrace: no verdict; NVRx's analyser: 7 of 8 such jobs"
_FAULTY = re.compile(r"^Fault ranks: \[([\d, ]*)\]", re.MULTILINE)


def figures(folder: Path) -> Iterator[Figure]:
    """One row a job, and one for all. Raises DataSetError."""
    jobs = sorted(path for path in folder.iterdir() if path.is_dir())
    if not jobs:
        raise DataSetError(f"{folder}: it has no folder of a job; {REMEDY}")
    right = 0
    for job in jobs:
        truth = faulty_ranks(job / TRUTH)
        found = set(missing_ranks(dumps_of(job)).ranks)
        right += found == truth
        yield Figure(what=f"{job.name}: ranks that the others wait for", figure=_words(found), goal=_words(truth), met=found == truth, reason=_reason(found, truth))
    yield Figure(what="jobs with exactly the faulty ranks", figure=f"{right} of {len(jobs)}", goal="all", met=right == len(jobs), others=OTHERS)


def faulty_ranks(path: Path) -> set[int]:
    """The truth: the line `Fault ranks: [9, 14]`. Raises DataSetError."""
    found = _FAULTY.search(text_of(path))
    if found is None:
        raise DataSetError(f"{path}: it has no line `Fault ranks: [...]`; {REMEDY}")
    return {int(rank) for rank in found[1].split(",") if rank.strip()}


def dumps_of(job: Path) -> list[FlightDump]:
    """Of all ranks that left one. Raises DataSetError for one that cannot be read: to leave it out would change the question."""
    try:
        return [read_dump(path) for path in sorted(job.iterdir()) if path.is_file() and path.name != TRUTH]
    except WireError as error:
        raise DataSetError(f"{error}; {REMEDY}") from error


def _words(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks))) or "nobody"


def _reason(found: set[int], truth: set[int]) -> str:
    parts = [f"named although healthy: {_words(found - truth)}"] * bool(found - truth) + [f"not named: {_words(truth - found)}"] * bool(truth - found)
    return "; ".join(parts)
