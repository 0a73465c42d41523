"""Incidents of real training runs from public logbooks: symptoms in the words of people, and blocks of raw logs.

A block belongs to the incident of the same source and day. Symptoms are read as lines of the job's log: what only a person could have noticed counts as not told. What a
live run would have shown beside (steps, losses, deaths) is not in the data.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.incident_cases import (
    ADVISE,
    EVICT,
    NOTHING,
    RESTART,
    RETRY,
    Case,
    Expectation,
    figures_of_cases,
    verdict_of,
)
from eagle_eye.app.evaluation.labelled_files import objects_of
from eagle_eye.app.evaluation.log_chain import LogChain

HARDWARE = frozenset({"hw_gpu", "hw_node", "hw_ecc"})
_GPU = ("gpu lost", "gpu fault", "gpu error", "cuda error", "ecc error", "nvlink error", "gpu driver error", "ecc_error", "nvlink_error")
_PERSON = (NOTHING, ADVISE)
CLASSES = {
    "hw_gpu": Expectation.of(_GPU, EVICT, RESTART),
    "hw_ecc": Expectation.of(("ecc error", "ecc_error", "xid 48", "xid 94", "xid 95"), EVICT),
    "hw_node": Expectation.of(("node lost", "node_failure", *_GPU), EVICT, RESTART),
    "software_hang": Expectation.of(("python hang", "job stalled", "collective timeout", "collective_timeout", "watchdog_stuck"), RESTART),
    "loss_spike": Expectation.of(("loss spike",), *_PERSON),
    "divergence": Expectation.of(("loss not finite", "loss_not_finite", "loss spike", "loss_scale"), *_PERSON, RESTART),
    "grad_norm_drift": Expectation.of(("loss spike",), *_PERSON),
    "throughput_drop": Expectation.of(("throughput lost", "slow worker", "slow node", "slower worker", "slower node"), EVICT, *_PERSON),
    "dataloader_shm": Expectation.of(("shared_memory", "bus_error"), RESTART, ADVISE),
    "scheduler_not_exiting": Expectation.of((), *_PERSON, RESTART),
    "scheduler_gap": Expectation.of(("job waiting", "time_limit", "preempted"), *_PERSON),
    "planned_or_emergency_maintenance": Expectation.of(("preempted", "preemption notice", "node state", "node lost"), *_PERSON, RETRY),
    "cluster_deleted": Expectation.of(("node lost", "preempted"), *_PERSON, RESTART),
    "silent_correctness_bug": Expectation.of((), *_PERSON),
    "silent_software_change": Expectation.of((), *_PERSON),
}
"""Kind of the logbook → what of ours is the same, and which repairs help."""


def figures(folder: Path) -> Iterator[Figure]:
    """Class, repair, false evictions. Raises DataSetError."""
    rows = objects_of(folder / "incidents.jsonl", "id", "source", "time", "kind", "symptoms", "action")
    blocks = objects_of(folder / "raw_log_blocks.jsonl", "source", "section", "text") if (folder / "raw_log_blocks.jsonl").exists() else []
    cases = [Case(str(row["id"]), str(row["kind"]), (*map(str, row["symptoms"] or ()), *_lines_of(row, blocks)), bool(row["action"])) for row in rows]
    with LogChain() as chain:
        yield from figures_of_cases([verdict_of(case, chain) for case in cases], CLASSES, HARDWARE | {"throughput_drop"})


def _lines_of(row: Mapping[str, Any], blocks: list[dict[str, Any]]) -> Iterator[str]:
    """Of the blocks that were written under the incident's day in the same logbook."""
    day, book = str(row["time"] or "")[:10], _book(str(row["source"]))
    if len(day) == 10:
        for block in blocks:
            if str(block["section"]).startswith(day) and _book(str(block["source"])) == book:
                yield from str(block["text"]).splitlines()


def _book(source: str) -> str:
    """`owner/name@commit:path` without the commit."""
    repository, _, path = source.partition(":")
    return f"{repository.partition('@')[0]}:{path}"
