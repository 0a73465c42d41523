"""Prints for `eagle-eye checkpoint status`: of each job the newest checkpoints that are safe."""

from collections.abc import Iterator, Mapping

import click
import msgspec
from rich.console import Console

from eagle_eye.app.printing import TableCell, TableColumn, print_table, print_text
from eagle_eye.checkpoint_safety import TIER_NAMES, JobSafety, SafeStep
from eagle_eye.durations import rounded_duration_text

COLUMNS = (TableColumn("job", name=True), TableColumn("safe"), TableColumn("step"), TableColumn("age"), TableColumn("what keeps a newer one from it", prose=True))


def print_safeties(found: Mapping[str, JobSafety], now: float, *, json_lines: bool, wide: bool) -> None:
    """A table with a row for each job and tier, or a line of JSON for each job."""
    if json_lines:
        for job, safety in found.items():
            click.echo(msgspec.json.encode({"job": job, **msgspec.structs.asdict(safety)}).decode())
        return
    console = Console()
    print_table(console, COLUMNS, [row for job, safety in found.items() for row in _rows(job, safety, now)], wide=wide)
    for job, safety in found.items():
        for pair in safety.shared:
            print_text(console, f"{job}: both copies of {pair}: if that fails, the job goes on from storage")


def _rows(job: str, safety: JobSafety, now: float) -> Iterator[tuple[TableCell, ...]]:
    for tier, name in TIER_NAMES.items():
        if tier in safety.tiers:
            safe = safety.tiers[tier]
            yield job, name, str(safe.step) if safe.step >= 0 else "none", _age(safe, now), (safe.failure, "red") if safe.failure else ""


def _age(safe: SafeStep, now: float) -> str:
    return rounded_duration_text(max(0.0, now - safe.time)) if safe.step >= 0 and safe.time else ""
