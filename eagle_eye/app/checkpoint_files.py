"""What `eagle-eye checkpoint` does with the checkpoints of a directory: verify, copy, delete, convert; with a progress bar, since each reads gigabytes."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from eagle_eye.errors import ConfigError, EagleEyeError
from eagle_eye.training import object_path
from eagle_eye.training.checkpoint import (
    CheckpointRetention,
    SavedCheckpoint,
    checkpoint_directory,
    conversion,
    directory_of,
    manifest,
    shard_agreement,
    shard_file,
)
from eagle_eye.training.checkpoint.conversion import refusal_text
from eagle_eye.training.checkpoint.manifest import ShardFile, UnusableCheckpoint
from eagle_eye.training.object_path import ObjectPath, StoragePath

Advance = Callable[[int], None]
"""Called with the bytes that were read since the last call."""


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint of which every byte was read."""

    entry: SavedCheckpoint
    damage: str
    """Which file is not as it was written, or cannot be read; '' if all are as they were."""
    is_answered: bool = True
    """Storage has said how its files are; else they may be whole."""


@contextmanager
def progress(what: str, size: int) -> Iterator[Advance]:
    """A bar of so many bytes on a terminal, which leaves nothing behind."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=size)
        yield lambda count: bar.advance(task, count)


def existing_directory(directory: str) -> StoragePath:
    """The one that was given, else that of EAGLE_EYE_CHECKPOINT_DIR, else ./checkpoints. Raises EagleEyeError where there is none."""
    home = directory_of(directory or None)
    if not home.is_dir():
        raise EagleEyeError(f"there is no directory {home}: name the one that the job saves to (EAGLE_EYE_CHECKPOINT_DIR, or the second argument of checkpoint.save)")
    return home


def chosen(home: StoragePath, step: int | None) -> SavedCheckpoint:
    """The checkpoint of this step, else the newest one that can be read. Raises EagleEyeError where there is none, or its manifest cannot be read."""
    readable, unreadable = checkpoint_directory.contents(home)
    for entry in reversed(readable):
        if step is None or entry.step == step:
            return entry
    for each in unreadable:
        if step is not None and each.path.name == checkpoint_directory.manifest_name(step):
            raise EagleEyeError(each.reason)
    there = _steps(readable)
    if len(others := places(home)) > 1:
        there += f"; in {others[1]}, stored from memory: {_steps(checkpoint_directory.contents(others[1])[0])}; name that directory"
    raise EagleEyeError(f"there is no checkpoint {'' if step is None else f'of step {step} '}in {home}; there: {there}")


def _steps(entries: Sequence[SavedCheckpoint]) -> str:
    return ", ".join(str(entry.step) for entry in entries) or "none"


def places(home: StoragePath) -> list[StoragePath]:
    """The directory itself, and the one in it for what launchers have stored from memory, if it is there."""
    stored = home / checkpoint_directory.FROM_MEMORY
    return [home, *([stored] if stored.is_dir() else [])]


def verify(entry: SavedCheckpoint, advance: Advance) -> VerifiedCheckpoint:
    """Read all of it, and what the shards say that they hold: what load refuses is not whole."""
    try:
        shard_agreement.require_loadable(entry)
        for shard in entry.manifest.shards:
            shard_file.verify(entry.path.parent, shard, advance)
    except (UnusableCheckpoint, FileNotFoundError) as error:
        return VerifiedCheckpoint(entry, str(error))
    except OSError as error:
        return VerifiedCheckpoint(entry, str(error), is_answered=False)
    return VerifiedCheckpoint(entry, "")


def copy(entry: SavedCheckpoint, target: StoragePath, advance: Advance) -> StoragePath:
    """Copy a checkpoint to another directory or store, its manifest last; returns that. Raises EagleEyeError for one that is damaged, and where its step is there."""
    path = target / entry.path.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        is_there = path.exists()
    except OSError as error:
        raise EagleEyeError(f"nothing can be copied to {target}: {error.strerror or error}; give a directory, or one that can be made") from error
    if is_there:
        raise EagleEyeError(f"{path} is there already: give another directory, or delete it first")
    written, kept = list[ShardFile](), set[str]()
    tried = False
    try:
        shard_agreement.require_loadable(entry)
        for shard in entry.manifest.shards:
            if _is_copied(target, shard, advance):
                kept.add(shard.name)
            written.append(shard if shard.name in kept else shard_file.copy(entry.path.parent, shard, target, advance))
        tried = True
        is_as_it_was = entry.manifest.version == 1 or written == list(entry.manifest.shards)
        object_path.put(path, entry.path.read_bytes() if is_as_it_was else manifest.encode(replace(entry.manifest, shards=tuple(written))))
    except BaseException as error:
        if not tried or (isinstance(path, Path) and manifest.is_without(path, [shard.name for shard in written])):  # a store may still be about to put it
            _delete_files(target / shard.name for shard in written if shard.name not in kept)
        elif isinstance(error, OSError):
            raise EagleEyeError(f"{path} may be there or not: {error}; verify it with `eagle-eye checkpoint verify`, or delete it and copy again") from error
        if isinstance(error, UnusableCheckpoint | OSError):
            said = refusal_text(error, target, entry.manifest.bytes) if isinstance(error, OSError) else error
            raise EagleEyeError(f"nothing was copied: {said}") from error
        raise
    return path


def _delete_files(paths: Iterable[StoragePath]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _is_copied(target: StoragePath, shard: ShardFile, advance: Advance) -> bool:
    """A copy that was killed has left it there, whole; what is there and is not whole is written over. To a store all are copied, since their sums are made on the way."""
    if isinstance(target, ObjectPath):
        return False
    try:
        shard_file.verify(target, shard)
    except (UnusableCheckpoint, OSError):
        return False
    advance(shard.bytes)
    return True


def superfluous(verified: Sequence[VerifiedCheckpoint], keep: CheckpointRetention) -> list[SavedCheckpoint]:
    """What may be deleted: older than the newest whole ones that are to be kept, and not the newest finite whole one, nor the first of a span. Oldest first.
    One of which storage does not say whether it is whole stays.

    Raises EagleEyeError where no checkpoint is whole: then none is deleted.
    """
    whole = [each.entry for each in verified if not each.damage]
    if not whole:
        raise EagleEyeError("no checkpoint is whole: nothing is deleted; `eagle-eye checkpoint verify` says what is wrong with each")
    staying = keep.staying(whole)
    oldest = whole[-keep.newest :][0].step
    return [each.entry for each in verified if each.is_answered and each.entry.step < oldest and each.entry not in staying]


def delete(home: StoragePath, entries: Sequence[SavedCheckpoint]) -> None:
    """Delete manifests first: what is half deleted is no checkpoint. Raises OSError."""
    shards = {shard.name for entry in entries for shard in entry.manifest.shards}
    for entry in entries:
        entry.path.unlink(missing_ok=True)
    checkpoint_directory.sweep(home, shards)


def convert(source: StoragePath, target: StoragePath, to: str | None, step: int | None) -> str:
    """What `eagle-eye checkpoint convert` does; returns what was made. Raises EagleEyeError."""
    console = Console(stderr=True)
    try:
        with console.status(f"converting {source}"):
            return _convert_ours(source, _local(target), to, step) if to else _convert_theirs(_local(source), target, step)
    except OSError as error:
        raise EagleEyeError(f"nothing was converted: {refusal_text(error, target)}") from error
    except UnusableCheckpoint as error:
        raise EagleEyeError(f"nothing was converted: {error}") from error
    except ModuleNotFoundError as error:
        raise EagleEyeError(f"the module {error.name!r} is missing: pip install 'eagle-eye[training]' where this command runs") from error


def _local(path: StoragePath) -> Path:
    """Of theirs. Raises ConfigError for a URL."""
    if isinstance(path, ObjectPath):
        raise ConfigError(f"{path} is a URL: only a checkpoint of ours may be in an object store; give a path")
    return Path(path)


def _convert_ours(source: StoragePath, target: Path, to: str, step: int | None) -> str:
    entry = chosen(source, step)
    missing = conversion.left_out(entry)
    note = f"; not in it: {missing}" if missing else ""
    if to == "torch":
        conversion.write_torch_save(entry, target)
        return f"{target}: step {entry.step}, for torch.load(weights_only=True){note}"
    conversion.write_dcp(entry, target)
    return f"{target}: step {entry.step}, for torch.distributed.checkpoint.load{note}"


def _convert_theirs(source: Path, target: StoragePath, step: int | None) -> str:
    if step is None:
        raise ConfigError("give --step: a checkpoint has the number of the first step still to do")
    if source.is_dir() and not conversion.is_dcp(source):
        raise ConfigError(f"{source} is no directory of torch.distributed.checkpoint (it has no {conversion.DCP_METADATA}): to convert one of ours give --to")
    state = conversion.read_dcp(source) if source.is_dir() else conversion.read_torch_save(source)
    return f"{conversion.store(state, step, target)}: step {step}"
