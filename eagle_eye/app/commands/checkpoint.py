"""`eagle-eye checkpoint status | ls | memory | verify | show | copy | prune | convert | interval`."""

import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from eagle_eye.app import checkpoint_files, memory_copies, options
from eagle_eye.app.printing import TableColumn, brief_time, local_time, print_table, print_text
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import EagleEyeError
from eagle_eye.training.checkpoint import (
    KEPT,
    CheckpointRetention,
    SavedCheckpoint,
    checkpoint_directory,
    json_position,
)
from eagle_eye.training.checkpoint.checkpoint_retention import LEAST_HOURS
from eagle_eye.training.object_path import SCHEME, StoragePath, storage_path
from eagle_eye.training.storage_failure import size_text
from remediation.planner.decision.checkpoint_interval import advise_interval, overhead

CHECKPOINTS = (
    TableColumn("step"), TableColumn("saved", brief=brief_time, drop=2), TableColumn("size"), TableColumn("shards", drop=1), TableColumn("ranks", drop=1),
    TableColumn("state", prose=True),
)  # fmt: skip
TENSORS = (TableColumn("tensor", name=True), TableColumn("type"), TableColumn("shape"), TableColumn("size", drop=1), TableColumn("shards", drop=2))


class _PathOrUrl(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A StoragePath."""
        return storage_path(value if SCHEME in value else str(super().convert(value, param, ctx)))


def _require_hours(context: click.Context, option: click.Parameter, hours: float) -> float:
    """Raises BadParameter, which names the option; FloatRange takes NaN."""
    if hours and not LEAST_HOURS <= hours < math.inf:
        raise click.BadParameter(f"{hours:g} is no span of hours; give {LEAST_HOURS:g} or more, or 0 for none", context, option)
    return hours


_step = click.option("--step", type=click.IntRange(min=0), default=None, help="Of this step. Default: the newest.")
_directory = click.argument("directory", required=False, default="")


@click.group(short_help="newest safe step of running jobs; list, verify, show, copy, delete and convert checkpoints; how often to save")
def command() -> None:
    """Look after the checkpoints of jobs: `status` shows those of running ones, in memory and in storage, as the server knows them; the others look after files that
    `eagle_eye.training.checkpoint` saves. DIRECTORY is where the job saves to, a path or a URL such as s3://bucket/prefix; without it EAGLE_EYE_CHECKPOINT_DIR,
    else ./checkpoints.

    \b
    Examples:
      eagle-eye checkpoint status
      eagle-eye checkpoint ls /data/gpt
      eagle-eye checkpoint memory
      eagle-eye checkpoint verify /data/gpt
      eagle-eye checkpoint show /data/gpt --step 1200
      eagle-eye checkpoint copy /data/gpt s3://archive/gpt --step 1200
      eagle-eye checkpoint prune /data/gpt --keep 3
      eagle-eye checkpoint convert model.pt /data/gpt --step 1200
      eagle-eye checkpoint interval --save-s 12 --failures 3 --hours 72
    """


@command.command(short_help="newest safe step of each running job")
@click.option("--job", default="", help="Of one job (tenant/name/run), also if it is over. Default: of all that run.")
@options.as_json
@options.wide
@options.deployment
def status(config: Config, job: str, json_lines: bool, wide: bool) -> None:
    """Print the newest checkpoint of each running job that is safe in memory, on another node and in storage: its step, how old its state is, and what keeps a
    newer one from being safe there. After a failure the job goes on from the newest that is left.

    \b
    Examples:
      eagle-eye checkpoint status
      eagle-eye checkpoint status --job team/gpt/20251120-083000 --json
    """
    from eagle_eye.app.safety_printing import print_safeties
    from eagle_eye.ledger.factory import open_ledger
    from eagle_eye.ledger.job_safety import job_safeties

    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        found = job_safeties(ledger, job)
    if found or json_lines:
        print_safeties(found, SystemClock().now(), json_lines=json_lines, wide=wide)
    else:
        click.echo(f"no checkpoint of {job} was told of: is the name right, and does its script save any?" if job else "no running job has told of a checkpoint")


@command.command(short_help="list the checkpoints of a directory")
@_directory
@options.as_json
@options.wide
def ls(directory: str, json_lines: bool, wide: bool) -> None:
    """List the checkpoints of DIRECTORY, oldest first, and those that launchers have stored there from memory (DIRECTORY/memory); last of all the newest
    that can be loaded. Sizes of files are compared, their content is not: see `verify`.

    \b
    Examples:
      eagle-eye checkpoint ls /data/gpt
      eagle-eye checkpoint ls --json
    """
    home = checkpoint_files.existing_directory(directory)
    found = {place: checkpoint_directory.contents(place) for place in checkpoint_files.places(home)}
    if not (any(map(any, found.values())) or json_lines):
        click.echo(f"no checkpoint in {home}")
        return
    listed = {place: [(entry, entry.unusable) for entry in readable] for place, (readable, _) in found.items()}
    for place, (readable, unreadable) in found.items():
        _print_place(home, place, json_lines=json_lines)
        if json_lines or readable or unreadable:
            _print(listed[place], unreadable, "complete", json_lines=json_lines, wide=wide)
    if not json_lines:
        _print_newest([entry for rows in listed.values() for entry, missing in rows if entry.finite and not missing])


def _print_place(home: StoragePath, place: StoragePath, *, json_lines: bool) -> None:
    if place != home and not json_lines:
        print_text(Console(), f"stored from memory, in {place}:")


def _print_newest(loadable: Sequence[SavedCheckpoint]) -> None:
    """What a restart would go on from, as far as the sizes of the files tell."""
    newest = max(loadable, key=lambda entry: entry.step, default=None)
    told = "none of them can be loaded" if newest is None else f"the newest that can be loaded: step {newest.step}, saved {local_time(newest.manifest.saved)}, in {newest.path.parent}"
    print_text(Console(), told)


@command.command(short_help="list the copies in the memory of this node, or show what one holds")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=memory_copies.SHARED_MEMORY)
@click.option("--worker", default="", metavar="RUN/NODE/SLOT", help="Of one worker, as it is listed. Default: of all jobs of this user.")
@click.option("--step", type=click.IntRange(min=0), default=None, help="Show what the copy of this step holds, and where it reads on in its data.")
@options.as_json
@options.wide
def memory(folder: Path, worker: str, step: int | None, json_lines: bool, wide: bool) -> None:
    """List the copies of states in the memory of this node: those of its own workers, and those that it keeps for another node. FOLDER is where launchers have
    them (/dev/shm). Of each copy its description and table are compared with their digest; its tensors are not read.

    \b
    Examples:
      eagle-eye checkpoint memory
      eagle-eye checkpoint memory --worker 20251120-083000/node-a/0 --step 1200
    """
    memory_copies.print_copies(folder, worker, step, json_lines=json_lines, wide=wide)


@command.command(short_help="read checkpoints and compare every byte with its digest")
@_directory
@click.option("--step", type=click.IntRange(min=0), default=None, help="Of this step. Default: all.")
@options.as_json
@options.wide
def verify(directory: str, step: int | None, json_lines: bool, wide: bool) -> None:
    """Read the checkpoints of DIRECTORY, and those that launchers have stored there from memory (DIRECTORY/memory), and compare each shard with the size and CRC-32
    in its manifest. Exits with 1 where one is damaged, or where there is none.

    \b
    Examples:
      eagle-eye checkpoint verify /data/gpt
      eagle-eye checkpoint verify /data/gpt --step 1200 --json
    """
    home = checkpoint_files.existing_directory(directory)
    there = {place: checkpoint_directory.contents(place) for place in checkpoint_files.places(home)}
    if step is not None:
        there = {place: ([entry for entry in readable if entry.step == step], []) for place, (readable, _) in there.items()}
    if not any(map(any, there.values())):
        if step is not None:
            checkpoint_files.chosen(home, step)  # says which there are
        raise EagleEyeError(f"there is no checkpoint in {home}: nothing was verified")
    damaged = False
    for place, (readable, unreadable) in there.items():
        if not (readable or unreadable):
            continue
        found = _verified(readable)
        _print_place(home, place, json_lines=json_lines)
        _print([(each.entry, each.damage) for each in found], unreadable, "whole", json_lines=json_lines, wide=wide)
        damaged |= bool(unreadable) or any(each.damage for each in found)
    if damaged:
        raise SystemExit(1)


@command.command(short_help="what a checkpoint holds: layout, data position, shards, tensors")
@_directory
@_step
@options.as_json
@options.wide
def show(directory: str, step: int | None, json_lines: bool, wide: bool) -> None:
    """Show one checkpoint of DIRECTORY, from its manifest: step, epoch, how the job was cut, where it reads on in its data, its shards and its tensors.

    \b
    Examples:
      eagle-eye checkpoint show /data/gpt
      eagle-eye checkpoint show /data/gpt --step 1200 --json
    """
    entry = checkpoint_files.chosen(checkpoint_files.existing_directory(directory), step)
    manifest = entry.manifest
    tensors = {name: {"dtype": each.dtype, "shape": each.shape, "shards": sorted({piece.shard for piece in each.pieces})} for name, each in sorted(manifest.tensors.items())}
    if json_lines:
        shards = [{"file": shard.name, "bytes": shard.bytes, "crc32": f"{shard.crc32:08x}", "rank": shard.rank} for shard in manifest.shards]
        click.echo(json.dumps({**_facts(entry, entry.unusable), "layout": dict(manifest.layout), "data_position": json_position.strict(manifest.data_position), "parts": shards, "tensors": tensors}))
        return
    print_text(Console(), f"step {entry.step}, epoch {manifest.epoch}, saved {local_time(manifest.saved)}, format version {manifest.version}: {entry.unusable or _state(entry, 'complete')}")
    cut = ", ".join(f"{name} {size}" for name, size in manifest.layout.items())
    print_text(Console(), f"saved by {manifest.world_size} rank(s){f' ({cut})' if cut else ''}, {size_text(manifest.bytes)} in {len(manifest.shards)} shard(s)")
    if manifest.data_position is not None:
        print_text(Console(), f"data position {json.dumps(manifest.data_position)}")
    for shard in manifest.shards:
        print_text(Console(), f"rank {shard.rank}: {shard.name}, {size_text(shard.bytes)}, CRC-32 {shard.crc32:08x}", indent=2)
    if not tensors:
        click.echo("its manifest does not name the tensors (format version 1)")
        return
    rows = [(name, each.dtype, "x".join(map(str, each.shape)) or "scalar", size_text(each.bytes), str(len({piece.shard for piece in each.pieces}))) for name, each in sorted(manifest.tensors.items())]
    print_table(Console(), TENSORS, rows, wide=wide)


@command.command(short_help="copy a checkpoint to another directory, verified")
@click.argument("directory")
@click.argument("target", type=_PathOrUrl())
@_step
def copy(directory: str, target: StoragePath, step: int | None) -> None:
    """Copy a checkpoint of DIRECTORY to TARGET; each is a directory or a URL. Each shard is compared with its digest while it is copied, and the manifest comes last: what
    is cut off or damaged never becomes a checkpoint there. Nothing is overwritten.

    \b
    Examples:
      eagle-eye checkpoint copy /data/gpt /archive/gpt
      eagle-eye checkpoint copy /data/gpt s3://archive/gpt --step 1200
    """
    entry = checkpoint_files.chosen(checkpoint_files.existing_directory(directory), step)
    with checkpoint_files.progress("copying", entry.manifest.bytes) as advance:
        path = checkpoint_files.copy(entry, target, advance)
    print_text(Console(), f"{path}: step {entry.step}, {size_text(entry.manifest.bytes)}")


@command.command(short_help="delete old checkpoints, never the newest whole one")
@_directory
@click.option("--keep", type=click.IntRange(min=1), default=KEPT, show_default=True, help="Newest whole checkpoints that are kept, besides the newest finite one.")
@click.option("--keep-steps", type=click.IntRange(min=0), default=0, metavar="N", help="Besides, the first one of each span of N steps is kept, as with checkpoints.storage_keep_steps.")
@click.option(
    "--keep-hours", type=click.FloatRange(min=0), default=0.0, metavar="H", callback=_require_hours,
    help="Besides, the first one of each span of H hours (0.001 or more) is kept, as with checkpoints.storage_keep_hours.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be deleted.")
def prune(directory: str, keep: int, keep_steps: int, keep_hours: float, dry_run: bool) -> None:
    """Delete the checkpoints of DIRECTORY that are older than the newest whole ones. All are read first: a damaged one does not count as
    kept. Where none is whole nothing is deleted, and one that is newer than those that are kept is left as it is.

    \b
    Examples:
      eagle-eye checkpoint prune /data/gpt --dry-run
      eagle-eye checkpoint prune /data/gpt --keep 3
      eagle-eye checkpoint prune /data/gpt/memory --keep 3 --keep-steps 1000
    """
    home = checkpoint_files.existing_directory(directory)
    found = _verified(checkpoint_directory.contents(home)[0])
    gone = checkpoint_files.superfluous(found, CheckpointRetention(newest=keep, each_steps=keep_steps, each_hours=keep_hours)) if found else []
    if not dry_run:
        checkpoint_files.delete(home, gone)
    for entry in gone:
        click.echo(f"{'would be deleted' if dry_run else 'deleted'}: step {entry.step}, {size_text(entry.manifest.bytes)}")
    for each in found:
        if each.damage and each.entry not in gone:
            print_text(Console(), f"left as it is: step {each.entry.step}: {each.damage}")
    if not gone:
        click.echo("nothing to delete")


@command.command(short_help="from and to torch.save and torch.distributed.checkpoint")
@click.argument("source", type=_PathOrUrl(exists=True))
@click.argument("target", type=_PathOrUrl())
@click.option("--to", type=click.Choice(["torch", "dcp"]), default=None, help="SOURCE is a directory of ours: write a file of torch.save, or a directory of torch.distributed.checkpoint.")
@click.option("--step", type=click.IntRange(min=0), default=None, help="First step still to do, of what is made; with --to: which checkpoint (default: the newest).")
def convert(source: StoragePath, target: StoragePath, to: str | None, step: int | None) -> None:
    """Make a checkpoint in the directory TARGET of SOURCE, a file of torch.save or a directory of torch.distributed.checkpoint; with --to the
    other way round. Nothing in SOURCE is executed: what is neither tensor nor plain value is refused. Nothing is overwritten or deleted.
    The whole state is held in memory, twice.

    \b
    Examples:
      eagle-eye checkpoint convert model.pt /data/gpt --step 1200
      eagle-eye checkpoint convert /old/dcp-1200 /data/gpt --step 1200
      eagle-eye checkpoint convert /data/gpt model.pt --to torch
      eagle-eye checkpoint convert /data/gpt /new/dcp-1200 --to dcp --step 1200
    """
    print_text(Console(), checkpoint_files.convert(source, target, to, step))


@command.command(short_help="how often to save, from what a save costs and how often the job fails")
@click.option("--save-s", type=click.FloatRange(min=0, min_open=True), required=True, help="Seconds by which one save holds training up.")
@click.option("--failures", type=click.IntRange(min=0), required=True, help="Failures of the whole job ...")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), required=True, help="... in so many hours.")
@click.option("--restart-s", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Seconds that a restart takes.")
@click.option("--now-s", type=click.FloatRange(min=0, min_open=True), default=None, help="The interval in use, to compare with.")
@options.as_json
def interval(save_s: float, failures: int, hours: float, restart_s: float, now_s: float | None, json_lines: bool) -> None:
    """Print the interval between two checkpoints at which saves and work that is done again cost least (Young 1974; Daly 2006), and the share of the
    time that is lost at it. What a running job has measured stands in the log of its launcher and in its event checkpoint.saved.

    \b
    Examples:
      eagle-eye checkpoint interval --save-s 12 --failures 3 --hours 72
      eagle-eye checkpoint interval --save-s 270 --failures 10 --hours 240 --restart-s 600 --now-s 3600
    """
    advice = advise_interval(save_s, failures, hours * 3600, restart_s)
    lost = None if now_s is None else overhead(now_s, save_s, advice.mtbf_s, restart_s)
    if json_lines:
        click.echo(json.dumps({
            "interval_s": advice.interval_s, "young_s": advice.young_s, "mtbf_s": advice.mtbf_s, "loss": advice.overhead, "observed": advice.observed, "loss_now": lost,
        }))  # fmt: skip
        return
    click.echo(f"save every {advice.interval_s:,.0f} s (Daly; Young: {advice.young_s:,.0f} s): {advice.overhead:.2%} of the time is lost to saves, restarts and work done again")
    click.echo(f"a failure every {advice.mtbf_s / 3600:,.1f} h: {advice.observed}")
    if lost is not None:
        click.echo(f"every {now_s:,.0f} s, as now: {lost:.2%}")


def _verified(entries: list[SavedCheckpoint]) -> list[checkpoint_files.VerifiedCheckpoint]:
    with checkpoint_files.progress("verifying", sum(entry.manifest.bytes for entry in entries)) as advance:
        return [checkpoint_files.verify(entry, advance) for entry in entries]


def _print(
    found: Sequence[tuple[SavedCheckpoint, str]], unreadable: Sequence[checkpoint_directory.UnreadableManifest], good: str, *, json_lines: bool, wide: bool,
) -> None:  # fmt: skip
    """A table, or a line of JSON each. `found`: with the damage of each, '' for none; `good`: what is said of one without."""
    if json_lines:
        for line in [*(_facts(entry, damage) for entry, damage in found), *({"file": str(each.path), "damage": each.reason} for each in unreadable)]:
            click.echo(json.dumps(line))
        return
    print_table(Console(), CHECKPOINTS, [_row(entry, damage, good) for entry, damage in found], wide=wide)
    for each in unreadable:
        print_text(Console(), each.reason)


def _state(entry: SavedCheckpoint, good: str) -> str:
    return good if entry.finite else f"{good}, but holds values that are not finite: it is not loaded"


def _row(entry: SavedCheckpoint, damage: str, good: str) -> tuple[Any, ...]:
    manifest = entry.manifest
    state = (damage, "red") if damage else _state(entry, good)
    return str(entry.step), local_time(manifest.saved), size_text(manifest.bytes), str(len(manifest.shards)), str(manifest.world_size), state


def _facts(entry: SavedCheckpoint, damage: str) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        "step": entry.step, "epoch": manifest.epoch, "saved": manifest.saved, "bytes": manifest.bytes, "shards": len(manifest.shards), "ranks": manifest.world_size,
        "finite": entry.finite, "version": manifest.version, "file": str(entry.path), "damage": damage,
    }  # fmt: skip
