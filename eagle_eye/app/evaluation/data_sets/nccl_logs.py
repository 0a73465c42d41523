"""Whole logs of multi-node jobs that were healthy, or ended by their time limit: what is told as an error in them is a false alarm.

`Traceback` and `NCCL WARN` stand in logs of runs that succeeded. No such log may make an incident with a culprit.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import objects_of, text_of
from eagle_eye.app.evaluation.log_chain import LogChain

WORDS = re.compile(r"error|fail|xid", re.IGNORECASE)
TIME_LIMIT = re.compile(r"time limit", re.IGNORECASE)
HEALTHY = re.compile(r"healthy|not a fault", re.IGNORECASE)


def figures(folder: Path) -> Iterator[Figure]:
    """One row a log. Raises DataSetError."""
    with LogChain() as chain:
        for row in objects_of(folder / "labels.json", "file", "label"):
            yield _of_log(folder / str(row["file"]), str(row["label"]), chain)


def _of_log(path: Path, label: str, chain: LogChain) -> Figure:
    lines = text_of(path).splitlines()
    judged = chain.judge(chain.job_events(lines))
    codes = {event.attributes.get("code", "") for event in judged.events if event.name == "log.error"}
    accused = sum(bool(each.culprits) for each in judged.incidents)
    figure = f"errors: {', '.join(sorted(codes)) or 'none'}; incidents with a culprit: {accused or 'none'}"
    others = f"grep for error, fail and xid: {sum(bool(WORDS.search(line)) for line in lines)} lines"
    if TIME_LIMIT.search(label):
        return Figure(what=label[:80], figure=figure, goal="errors: time_limit; incidents with a culprit: none", met=codes == {"time_limit"} and not accused, others=others)
    if HEALTHY.search(label):
        return Figure(what=label[:80], figure=figure, goal="errors: none; incidents with a culprit: none", met=not codes and not accused, others=others)
    return Figure(what=label[:80], figure=figure, goal="an error is told", met=bool(codes), others=others)
