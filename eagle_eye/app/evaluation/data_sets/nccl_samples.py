"""Answers of NCCL's RAS, lines of NCCL Inspector and dumps of flight recorders in exact form; the file's name is the label.

An answer whose name says `ok` must make no incident, one that says `missing` must name an absent rank and one that says `mismatch` ranks that lag; RAS informs, so no
incident may have a culprit.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from collectors.nccl.outlier_ranks import OutlierMemory
from collectors.nccl.ras_json import read_json
from collectors.nccl.ras_report import RasError, RasReport
from collectors.nccl.ras_text import read_text
from eagle_eye.activity.flight_dump import read_dump
from eagle_eye.activity.inspector_log import measured_operation
from eagle_eye.activity.missing_ranks import missing_ranks
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import REMEDY, content_of
from eagle_eye.app.evaluation.log_chain import JOB, LogChain
from eagle_eye.errors import DataSetError, WireError
from eagle_eye.types import Entity, Event, Kind


def figures(folder: Path) -> Iterator[Figure]:
    """One row a file. Raises DataSetError."""
    with LogChain() as chain:
        for path in sorted(folder.iterdir()):
            if path.name.startswith("ras_"):
                yield _ras(path, chain)
            elif path.name.startswith("inspector"):
                yield _inspector(path)
            elif path.name.startswith("flight_recorder"):
                yield _dump(path)


def _ras(path: Path, chain: LogChain) -> Figure:
    report = _report(path)
    told = [each for each in report.communicators if each.stands_out]
    found = {"absent": any(each.absent_count for each in told), "lagging": any(each.lags for each in told), "failed": any(each.failed for each in told)}
    expected = _expected(path.name)
    words = ", ".join(name for name, there in found.items() if there) or "nothing stands out"
    judged = chain.judge(_events(report))
    accused = sum(bool(each.culprits) for each in judged.incidents)
    right = bool(found.get(expected)) if expected else not told
    met = right and not accused and bool(judged.incidents) == bool(expected)
    figure = f"{words}; incidents: {', '.join(each.cause for each in judged.incidents) or 'none'}; accused: {accused or 'nobody'}"
    return Figure(what=path.name, figure=figure, goal=f"{expected or 'nothing stands out'}; accused: nobody", met=met)


def _expected(name: str) -> str:
    """What the label says stands out; '' = nothing."""
    return next((expected for word, expected in (("missing", "absent"), ("mismatch", "lagging"), ("error", "failed")) if word in name), "")


def _report(path: Path) -> RasReport:
    try:
        return read_json(content_of(path)) if path.suffix == ".json" else read_text(content_of(path))
    except RasError as error:
        raise DataSetError(f"{path}: {error}; {REMEDY}") from error


def _events(report: RasReport) -> list[Event]:
    """What the collector reports once two looks have shown the same."""
    memory = OutlierMemory()
    memory.look(report, 0)
    new, _ = memory.look(report, 0)
    entity = Entity(kind=Kind.JOB, name=JOB)
    return [Event(name="nccl.outlier_ranks", job=JOB, entity=entity, time=0.0, node="", incarnation="", number=0, message=str(each), attributes={**each.attributes, "epoch": "1"}) for each in new]


def _inspector(path: Path) -> Figure:
    lines = [line for line in content_of(path).splitlines() if line.strip()]
    try:
        read = [measured_operation(line) for line in lines]
    except ValueError as error:
        raise DataSetError(f"{path}: {error}; {REMEDY}") from error
    count = sum(each is not None for each in read)
    told = sum(b"_perf" in line for line in lines)
    return Figure(what=path.name, figure=f"{count} of {told} operations read", goal="all", met=count == told)


def _dump(path: Path) -> Figure:
    try:
        dump = read_dump(path)
        entries = len(json.loads(content_of(path)).get("entries", ()))
    except (WireError, ValueError) as error:
        raise DataSetError(f"{path}: {error}; {REMEDY}") from error
    named = missing_ranks([dump]).ranks
    figure = f"{dump.recorded} of {entries} entries read; named: {', '.join(map(str, named)) or 'nobody'}"
    return Figure(what=path.name, figure=figure, goal="all entries", met=dump.recorded == entries)
