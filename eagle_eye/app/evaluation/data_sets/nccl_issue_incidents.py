"""Failures of NCCL and torch.distributed from public issue threads: facts, and log lines that were made anew from them.

Only those that a maintainer or the reporter has confirmed are counted. Most classes are a bug or a setting of which no line tells: they count as not told.
"""

from collections.abc import Iterator
from pathlib import Path

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

CONFIRMED = ("maintainer", "reporter_confirmed")
HARDWARE = frozenset({"gpu_fallen_off_bus", "gpu_ecc_uncorrectable", "nvlink_error"})
_PROGRAM = (NOTHING, ADVISE, RESTART)
"""What may be done where a person has to change the program: nothing is lost by starting it anew."""
CLASSES = {
    "gpu_fallen_off_bus": Expectation.of(("gpu lost", "xid 79", "fell_off_the_bus"), EVICT),
    "gpu_ecc_uncorrectable": Expectation.of(("ecc error", "ecc_error", "xid 48", "xid 95", "xid 140"), EVICT),
    "nvlink_error": Expectation.of(("nvlink error", "nvlink_error", "xid 74"), EVICT),
    "ib_peer_unreachable": Expectation.of(("transport", "network error", "no_route"), ADVISE, RETRY, RESTART),
    "shm_too_small": Expectation.of(("shared_memory",), ADVISE),
    "host_oom": Expectation.of(("data_loader_killed", "oom_kill", "out_of_memory"), ADVISE, RESTART),
    "p2p_blocked_by_acs_or_iommu": Expectation.of(("iommu_fault", "peer_access_disabled"), ADVISE),
    "driver_bug": Expectation.of(("driver_mismatch",), ADVISE),
    "collective_shape_mismatch": Expectation.of(("size_mismatch",), *_PROGRAM),
    "uneven_batches_across_ranks": Expectation.of(("worker ended early",), *_PROGRAM),
    "ckpt_resume_optimizer_state_bug": Expectation.of((), *_PROGRAM),
    "checkpoint_save_slow_rank": Expectation.of(("checkpoint_write", "storage slow"), RESTART, RETRY, ADVISE),
    "cascading_error_after_timeout": Expectation.of(("collective_timeout", "collective timeout"), RESTART, RETRY),
    "unknown_timeout": Expectation.of(("collective_timeout", "collective timeout"), RESTART, RETRY),
    "nccl_tuning_needed": Expectation.of((), ADVISE),
    "dataloader_shutdown_race": Expectation.of(("data_loader_killed", "data_loader_ended"), *_PROGRAM),
    "teardown_hang": Expectation.of(("watchdog_stuck",), *_PROGRAM),
    "watchdog_stuck": Expectation.of(("watchdog_stuck",), *_PROGRAM),
    "rendezvous_unreachable": Expectation.of(("store_timeout", "connection_reset", "no_route", "network error"), RETRY, RESTART, ADVISE),
}
"""Label → what of ours is the same, and which repairs help."""


def figures(folder: Path) -> Iterator[Figure]:
    """Class, repair, false evictions. Raises DataSetError."""
    rows = objects_of(folder / "incidents.jsonl", "id", "label", "label_confidence", "rendered_log", "action")
    cases = [
        Case(str(row["id"]), str(row["label"]), tuple(map(str, row["rendered_log"] or ())), bool(row["action"]))
        for row in rows
        if row["label_confidence"] in CONFIRMED
    ]
    with LogChain() as chain:
        yield from figures_of_cases([verdict_of(case, chain) for case in cases], CLASSES, HARDWARE)
