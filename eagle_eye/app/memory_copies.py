"""What `eagle-eye checkpoint memory` shows: the copies that lie in the shared memory of this node, of its own workers and of those of other nodes.

Read as launchers read them: no lock is taken, nothing is mapped or written, and a worker may write a slot anew meanwhile. Files of other users are left alone.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from eagle_eye.errors import EagleEyeError
from eagle_eye.training.checkpoint import json_position, slot_table
from eagle_eye.training.checkpoint.memory_segment import SUFFIX, SegmentFile, segment_of
from eagle_eye.training.storage_failure import size_text

from .printing import TableColumn, brief_time, brief_worker, local_time, print_table, print_text

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # it is looked at, not written to
COPIES = (
    TableColumn("worker", brief=brief_worker, name=True), TableColumn("rank"), TableColumn("step"), TableColumn("epoch", drop=1), TableColumn("saved", brief=brief_time, drop=2),
    TableColumn("size"), TableColumn("slot", drop=3), TableColumn("state", prose=True),
)  # fmt: skip
TENSORS = (TableColumn("tensor", name=True), TableColumn("type"), TableColumn("shape"), TableColumn("size", drop=1))
_BACKUP = re.compile(rf"backup-\d+of\d+{re.escape(SUFFIX)}$")


class TableInMemory(msgspec.Struct, frozen=True):
    """The table of a slot, as far as people want to see it."""

    step: int
    rank: int
    world: int
    finite: bool
    saved: float = 0.0
    epoch: int = 0
    data_position: Any = None
    tensors: dict[str, tuple[str, tuple[int, ...], int, int, str]] = {}
    """Name → torch's dtype, shape, offset, bytes, shard."""


@dataclass(frozen=True, slots=True)
class CopyInMemory:
    """A slot."""

    file: Path
    slot: int
    worker: str
    """Whose state it is: run/node/slot; of a copy that is kept for another node who keeps it, run/node."""
    is_backup: bool
    table: TableInMemory | None
    """None: nothing whole is there."""
    sequence: int = -1
    bytes: int = 0
    why: str = ""
    """Nothing whole is there."""

    @property
    def state(self) -> str:
        if self.table is None:
            return self.why
        kept = f"kept for another node by {self.worker}" if self.is_backup else "whole"
        return kept if self.table.finite else f"{kept}, but holds values that are not finite: it is not loaded"

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        told = {"file": str(self.file), "slot": self.slot, "worker": self.worker, "backup": self.is_backup, "state": self.state}
        if self.table is None:
            return told
        table = self.table
        return told | {"step": table.step, "epoch": table.epoch, "rank": table.rank, "ranks": table.world, "saved": table.saved, "bytes": self.bytes, "finite": table.finite}


def copies(folder: Path) -> list[CopyInMemory]:
    """Those of all jobs of this user, by worker and step."""
    found = [copy for path in sorted(folder.glob(f"*{SUFFIX}")) for copy in _copies_of(path)]
    return sorted(found, key=lambda each: (each.worker, each.is_backup, each.file, each.table is None, each.table.step if each.table else 0, each.sequence))


def _copies_of(path: Path) -> Iterator[CopyInMemory]:
    try:
        segment, worker = SegmentFile(path), segment_of(path).worker
    except OSError:  # gone, another user's, or no segment of this version
        return
    is_backup = bool(_BACKUP.search(path.name))
    with closing(segment):
        for slot in range(segment.slots):
            try:
                content = segment.read(slot)
                table = msgspec.convert(slot_table.decode(content.table), type=TableInMemory)
            except (ValueError, msgspec.ValidationError) as error:
                yield CopyInMemory(path, slot, worker.rpartition("/")[0] if is_backup else worker, is_backup, None, why=str(error))
            else:
                yield CopyInMemory(path, slot, worker.rpartition("/")[0] if is_backup else worker, is_backup, table, content.sequence, content.payload_bytes)


def print_copies(folder: Path, worker: str, step: int | None, *, json_lines: bool, wide: bool) -> None:
    """Those of a worker ('': of all); with a step what that one holds. Raises EagleEyeError for a step that is not there."""
    found = [each for each in copies(folder) if worker in {"", each.worker}]
    if step is not None:
        _print_content(_chosen(found, worker, step, folder), json_lines=json_lines, wide=wide)
    elif json_lines:
        for each in found:
            click.echo(json.dumps(each.facts()))
    elif found:
        print_table(Console(), COPIES, [_row(each) for each in found], wide=wide)
    else:
        click.echo(f"no checkpoint of this user{f' and of {worker}' if worker else ''} is in the memory of this node ({folder})")


def _chosen(found: Sequence[CopyInMemory], worker: str, step: int, folder: Path) -> CopyInMemory:
    whole = [each for each in found if each.table is not None and each.table.step == step]
    of_workers = [each for each in whole if not each.is_backup] or whole
    if not of_workers:
        there = ", ".join(str(each) for each in sorted({each.table.step for each in found if each.table is not None})) or "none"
        raise EagleEyeError(f"no copy of step {step}{f' of {worker}' if worker else ''} is in {folder}; there: {there}")
    names = sorted({each.worker for each in of_workers})
    if len(names) > 1:
        raise EagleEyeError(f"several workers have a copy of step {step}: name one with --worker: {', '.join(names)}")
    return max(of_workers, key=lambda each: each.sequence)


def _print_content(copy: CopyInMemory, *, json_lines: bool, wide: bool) -> None:
    table = copy.table
    assert table is not None
    if json_lines:
        tensors = {name: {"dtype": dtype, "shape": shape, "bytes": size, "shard": shard} for name, (dtype, shape, _, size, shard) in sorted(table.tensors.items())}
        click.echo(json.dumps({**copy.facts(), "data_position": json_position.strict(table.data_position), "tensors": tensors}))
        return
    print_text(Console(), f"step {table.step}, epoch {table.epoch}, saved {local_time(table.saved)}, rank {table.rank} of {table.world}, {size_text(copy.bytes)}: {copy.state}")
    print_text(Console(), f"slot {copy.slot} of {copy.file}")
    if table.data_position is not None:
        print_text(Console(), f"data position {json.dumps(table.data_position)}")
    rows = [(name, dtype.removeprefix("torch."), "x".join(map(str, shape)) or "scalar", size_text(size)) for name, (dtype, shape, _, size, _) in sorted(table.tensors.items())]
    print_table(Console(), TENSORS, rows, wide=wide)


def _row(copy: CopyInMemory) -> tuple[Any, ...]:
    table = copy.table
    if table is None:
        return copy.worker, "", "", "", "", "", str(copy.slot), copy.state
    return copy.worker, f"{table.rank} of {table.world}", str(table.step), str(table.epoch), local_time(table.saved), size_text(copy.bytes), str(copy.slot), copy.state
