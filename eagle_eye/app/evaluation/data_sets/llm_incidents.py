"""Incidents of real training runs from public logbooks: symptoms in the words of people, and blocks of raw logs.

A block belongs to the incident of the same source and day. Symptoms and blocks are the report that `eagle-eye explain` reads, and lines of the job's log for the chain that runs live; root cause, kind
and action are not given to either.
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
from eagle_eye.app.report_reader import ReportReader

HARDWARE = frozenset({"hw_gpu", "hw_node", "hw_ecc"})
_GPU = ("gpu_memory_error", "gpu_off_the_bus", "nvlink_failure", "gpu_halted", "broken_gpu", "gpu_internal_error")
_NODE = ("node_down", "broken_hardware", "host_hardware_error")
_HANG = ("data_loader_hang", "evaluation_hang", "collective_deadlock", "collective_timeout", "watchdog_stuck", "teardown_hang", "ranks_out_of_step", "uneven_batches")
_PERSON = (NOTHING, ADVISE)
CLASSES = {
    "hw_gpu": Expectation.of(_GPU, EVICT, RESTART),
    "hw_ecc": Expectation.of(("gpu_memory_error",), EVICT),
    "hw_node": Expectation.of((*_NODE, *_GPU), EVICT, RESTART),
    "software_hang": Expectation.of(_HANG, RESTART),
    "loss_spike": Expectation.of(("loss_spike",), *_PERSON),
    "divergence": Expectation.of(("divergence", "loss_not_finite"), *_PERSON, RESTART),
    "grad_norm_drift": Expectation.of(("gradient_growth",), *_PERSON),
    "throughput_drop": Expectation.of(("slow_hardware", "throttled_gpu"), EVICT, *_PERSON),
    "dataloader_shm": Expectation.of(("shared_memory_too_small",), RESTART, ADVISE),
    "scheduler_not_exiting": Expectation.of(("job_does_not_end",), *_PERSON, RESTART),
    "scheduler_gap": Expectation.of(("nothing_scheduled",), *_PERSON),
    "planned_or_emergency_maintenance": Expectation.of(("maintenance",), *_PERSON, RETRY),
    "cluster_deleted": Expectation.of(("cluster_gone",), *_PERSON, RESTART),
    "silent_correctness_bug": Expectation.of(("replicas_differ", "resume_state_defect"), *_PERSON),
    "silent_software_change": Expectation.of(("software_change",), *_PERSON),
}
"""Kind of the logbook → which of the known failures is the same, and which repairs help."""


def figures(folder: Path) -> Iterator[Figure]:
    """Class, repair, false evictions. Raises DataSetError."""
    rows = objects_of(folder / "incidents.jsonl", "id", "source", "time", "kind", "symptoms", "action")
    blocks = objects_of(folder / "raw_log_blocks.jsonl", "source", "section", "text") if (folder / "raw_log_blocks.jsonl").exists() else []
    cases = [Case(str(row["id"]), str(row["kind"]), (*map(str, row["symptoms"] or ()), *_lines_of(row, blocks)), bool(row["action"])) for row in rows]
    reader = ReportReader()
    with LogChain() as chain:
        yield from figures_of_cases([verdict_of(case, chain, reader) for case in cases], CLASSES, HARDWARE | {"throughput_drop"})


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
