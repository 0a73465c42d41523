"""Failures of NCCL and torch.distributed from public issue threads: facts, and log lines that were made anew from them.

Only those that a maintainer or the reporter has confirmed are counted. The lines and the facts (operation, phase, message, as the reporter told them) are the report; label and action are not given.
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

PENDING = "Timeout at NCCL work: {seq}, last enqueued NCCL work: {enq}, last completed NCCL work: {done}."
"""As torch's watchdog tells it (ProcessGroupNCCL.cpp)."""
CONFIRMED = ("maintainer", "reporter_confirmed")
HARDWARE = frozenset({"gpu_fallen_off_bus", "gpu_ecc_uncorrectable", "nvlink_error"})
_PROGRAM = (NOTHING, ADVISE, RESTART)
"""What may be done where a person has to change the program: nothing is lost by starting it anew."""
CLASSES = {
    "gpu_fallen_off_bus": Expectation.of(("gpu_off_the_bus",), EVICT),
    "gpu_ecc_uncorrectable": Expectation.of(("gpu_memory_error",), EVICT),
    "nvlink_error": Expectation.of(("nvlink_failure",), EVICT),
    "ib_peer_unreachable": Expectation.of(("fabric_peer_unreachable", "link_down"), ADVISE, RETRY, RESTART),
    "shm_too_small": Expectation.of(("shared_memory_too_small",), ADVISE),
    "host_oom": Expectation.of(("host_out_of_memory",), ADVISE, RESTART),
    "p2p_blocked_by_acs_or_iommu": Expectation.of(("peer_to_peer_blocked", "rdma_protection"), ADVISE),
    "driver_bug": Expectation.of(("driver_defect", "driver_mismatch"), ADVISE),
    "collective_shape_mismatch": Expectation.of(("collective_mismatch",), *_PROGRAM),
    "uneven_batches_across_ranks": Expectation.of(("uneven_batches",), *_PROGRAM),
    "ckpt_resume_optimizer_state_bug": Expectation.of(("resume_state_defect",), *_PROGRAM),
    "checkpoint_save_slow_rank": Expectation.of(("checkpoint_save_late", "storage_slow"), RESTART, RETRY, ADVISE),
    "cascading_error_after_timeout": Expectation.of(("follow_on_error", "collective_timeout"), RESTART, RETRY),
    "unknown_timeout": Expectation.of(("collective_timeout", "ranks_out_of_step"), RESTART, RETRY, ADVISE),
    "nccl_tuning_needed": Expectation.of(("nccl_settings",), ADVISE),
    "dataloader_shutdown_race": Expectation.of(("data_loader_shutdown_race",), *_PROGRAM),
    "teardown_hang": Expectation.of(("teardown_hang",), *_PROGRAM),
    "watchdog_stuck": Expectation.of(("watchdog_stuck",), *_PROGRAM),
    "rendezvous_unreachable": Expectation.of(("rendezvous_unreachable", "wrong_interface"), RETRY, RESTART, ADVISE),
}
"""Label → which of the known failures is the same, and which repairs help."""


def figures(folder: Path) -> Iterator[Figure]:
    """Class, repair, false evictions. Raises DataSetError."""
    rows = objects_of(folder / "incidents.jsonl", "id", "label", "label_confidence", "facts", "rendered_log", "action")
    cases = [
        Case(str(row["id"]), str(row["label"]), _report(row), bool(row["action"]))
        for row in rows
        if row["label_confidence"] in CONFIRMED
    ]
    reader = ReportReader()
    with LogChain() as chain:
        yield from figures_of_cases([verdict_of(case, chain, reader) for case in cases], CLASSES, HARDWARE)


def _report(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Its lines, and each of its facts as a line of its own, which a person reads in the same way; the numbers of collectives as torch words them."""
    facts = row["facts"] or {}
    pending = [PENDING.format(**facts)] if {"seq", "enq", "done"} <= facts.keys() else []
    return (*map(str, row["rendered_log"] or ()), *pending, *(f"{name}: {fact}" for name, fact in facts.items()))
