"""Checkpoints in a directory: how their files are called, which are there, which are put aside, and which are deleted."""

import contextlib
import errno
import fnmatch
import logging
import operator
import os
import socket
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eagle_eye.training import atomic_file
from eagle_eye.training.object_path import ObjectPath, StoragePath, storage_path

from . import manifest as manifests
from .checkpoint_retention import KEPT, CheckpointRetention
from .manifest import DATA, MOST_STEPS, Manifest, UnusableCheckpoint
from .saved_checkpoint import SavedCheckpoint

LEFT_S = 3600.0
"""Data that no manifest names for so long are nobody's: a save of another process takes less time between its two files."""
LEFT_IN_A_STORE_S = 24 * 3600.0
"""The same in an object store: an upload may take hours, and S3 counts an object's age from when its upload was begun."""
FROM_MEMORY = "memory"
"""Folder beside the checkpoints that a script saves itself: those that launchers have stored from memory."""
PART = ".part"
"""Suffix of the manifest of one rank's shard, until all of them are there."""
_DISCARDED = ".discarded"
_STARTED = time.time()
"""Of this process, or of the one that it was forked from."""
_log = logging.getLogger("eagle_eye.checkpoint")


@dataclass(frozen=True, slots=True)
class UnreadableManifest:
    """A file that is named as a manifest, and why it is none."""

    path: StoragePath
    reason: str


def step_number(step: object) -> int:
    """`step` as a number: int, or what stands for one (numpy.int64). Raises TypeError, ValueError for what is no step."""
    if isinstance(step, bool):
        raise TypeError(f"step={step}: give the number of the first step still to do")
    try:
        number = operator.index(step)  # type: ignore[arg-type]  # what cannot be a number raises
    except TypeError:
        raise TypeError(f"step={step!r} is of type {type(step).__name__}: give the number of the first step still to do, an int") from None
    if not 0 <= number < MOST_STEPS:
        raise ValueError(f"step={number}: give the number of the first step still to do, from 0 to below {MOST_STEPS}")
    return number


def directory_of(directory: str | os.PathLike[str] | None = None) -> StoragePath:
    """The directory itself, or the URL (`s3://bucket/prefix`), else EAGLE_EYE_CHECKPOINT_DIR, else ./checkpoints."""
    return storage_path(directory or os.environ.get("EAGLE_EYE_CHECKPOINT_DIR") or "checkpoints")


def names(home: StoragePath, pattern: str) -> list[StoragePath]:
    """The files of a directory whose names are like this; none where there is no directory. Raises OSError where it cannot be read, or is none.

    (pathlib's glob finds nothing in a directory that may not be read: the training would begin anew.)
    """
    if isinstance(home, ObjectPath):
        return list(home.glob(pattern))
    try:
        return [path for path in Path(home).iterdir() if fnmatch.fnmatchcase(path.name, pattern)]
    except FileNotFoundError:
        return []


def entries(directory: str | os.PathLike[str]) -> list[SavedCheckpoint]:
    """The visible checkpoints of a directory, oldest first; manifests that cannot be read are left out, with a warning. Raises OSError as `contents` does."""
    readable, unreadable = contents(directory)
    for each in unreadable:
        _log.warning("checkpoint %s cannot be used: %s", each.path, each.reason)
    return readable


def contents(directory: str | os.PathLike[str]) -> tuple[list[SavedCheckpoint], list[UnreadableManifest]]:
    """The visible checkpoints of a directory, oldest first, and the manifests that cannot be read; nothing where there is no directory.

    Raises OSError where storage does not say what is there: an object store refuses, a directory may not be read or is none, or not one of its manifests may be read.
    """
    readable, unreadable, refused = list[SavedCheckpoint](), list[UnreadableManifest](), list[OSError]()
    for path in sorted(names(storage_path(directory), "step-*.json"), key=lambda path: path.name):
        try:
            readable.append(SavedCheckpoint(path, manifests.read(path)))
        except (OSError, UnusableCheckpoint) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.EINVAL):  # gone meanwhile; no regular file
                refused.append(error)
            if refused and isinstance(path, ObjectPath):
                raise
            unreadable.append(UnreadableManifest(path, str(error)))
    if refused and not readable:
        raise refused[0]
    return sorted(readable, key=lambda each: each.step), unreadable


def discard_after(directory: str | os.PathLike[str], step: int) -> list[int]:
    """Rename all checkpoints above `step`, so that no later restart loads them; returns their numbers."""
    aside = [entry for entry in entries(directory) if entry.step > step]
    for entry in aside:
        discard(entry.path)
    return [entry.step for entry in aside]


def discard(manifest: StoragePath) -> None:
    """Rename a checkpoint, so that no later restart loads it. Raises OSError."""
    manifest.replace(manifest.with_name(manifest.name + _DISCARDED))


def manifest_name(step: int) -> str:
    """Of a checkpoint."""
    return f"step-{step:012d}.json"


def part_name(step: int, run: str, rank: int, world_size: int) -> str:
    """Of one rank's manifest. `run`: digits and letters that the ranks of one start of the job share, and no other start has."""
    return f"step-{step:012d}.{run}.{rank}-of-{world_size}{PART}"


def new_shard_name(step: int, epoch: int, rank: int) -> str:
    """A name of its own for each attempt: a worker of an older epoch that wakes up late cannot tear a newer one's."""
    return f"step-{step:012d}-{epoch}-{rank}-{_machine()}-{os.getpid()}-{time.monotonic_ns()}{DATA}"


@cache
def _machine() -> str:
    """Where the number of a process means this process: a host, since its start, and in it the container."""
    processes = boot = ""
    with contextlib.suppress(OSError):
        processes = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - what it names is no path
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return f"{zlib.crc32(f'{socket.gethostname()} {boot} {processes}'.encode()):08x}"


def prune(home: StoragePath, kept: int | CheckpointRetention = KEPT, published: StoragePath | None = None) -> list[StoragePath]:
    """Delete the manifests that are neither among the `kept` newest ones nor the newest finite one (nor what else a CheckpointRetention says), then what no manifest names.

    Only checkpoints whose files are all there, with their sizes, count as kept: the newest whole one is never deleted for one that is cut
    off. A manifest that cannot be read, such as that of a newer version, keeps its shards. `published`: what was just saved, which stays whatever else is there; what it has overtaken
    is put aside. Returns the manifests that were deleted. Raises OSError: where storage does not say whether a checkpoint is whole, nothing is deleted.
    """
    survey = _survey(home)
    if published is not None:
        _put_aside_overtaken(survey, published)
    found = sorted((SavedCheckpoint(path, manifest) for path, manifest in survey.items() if manifest and path.suffix == ".json"), key=lambda each: each.step)
    complete = [entry for entry in found if not entry.missing]
    retention = CheckpointRetention(newest=kept) if isinstance(kept, int) else kept
    staying = {entry.path for entry in retention.staying(complete)} | {published}
    newest = max((entry.step for entry in complete), default=-1)
    gone = [entry.path for entry in found if entry.path not in staying and entry.step < newest]
    discarded = sorted((path for path in survey if path.name.endswith(_DISCARDED)), key=lambda path: path.name)[:-KEPT]
    for path in [*gone, *discarded]:
        path.unlink(missing_ok=True)
    _sweep(home, _shards_named(survey), {path: manifest for path, manifest in survey.items() if path not in {*gone, *discarded}})
    return gone


def _put_aside_overtaken(survey: dict[StoragePath, Manifest | None], published: StoragePath) -> None:
    """Steps above the one that was just saved, of states that were there before its own: the training has gone back, and is not to end up where it left.

    Their states are older though their steps are higher, so it is no save of an older step that has come late: that one's state is the older one. Nor may a worker of an older
    epoch that wakes up put aside what the workers of a newer one have saved meanwhile. Nothing goes for a state that nobody would load. Raises OSError.
    """
    saved = survey.get(published)
    if saved is None or not saved.finite or SavedCheckpoint(published, saved).missing:
        return
    for path, manifest in list(survey.items()):
        if manifest is None or path.suffix != ".json" or manifest.step <= saved.step or manifest.saved >= saved.saved:
            continue
        if manifest.epoch > saved.epoch and manifest.saved > _STARTED:
            continue
        _log.warning("checkpoint %s is put aside: step %d was saved after it, so the training has gone back behind step %d", path, saved.step, manifest.step)
        discard(path)
        survey[path.with_name(path.name + _DISCARDED)] = survey.pop(path)


def sweep(home: StoragePath, named_before: set[str]) -> None:
    """Delete shards that no manifest names and files that were never finished, where nobody is about to name or finish them.

    `named_before`: shards that manifests named until now; nobody is about to name them again. Raises OSError.
    """
    _sweep(home, named_before, _survey(home))


def _sweep(home: StoragePath, named_before: set[str], survey: dict[StoragePath, Manifest | None]) -> None:
    left = dict(survey)
    for path in survey:
        if path.suffix == PART and _is_old(path):
            path.unlink(missing_ok=True)
            del left[path]
    named, unreadable = _shards_named(left), {_step_of(path) for path, manifest in left.items() if manifest is None}
    for path in names(home, f"step-*{DATA}"):
        if path.name in named or _step_of(path) in unreadable:
            continue
        if path.name in named_before or _is_own(path) or _is_old(path):
            path.unlink(missing_ok=True)
    if isinstance(home, ObjectPath):
        home.delete_unfinished(LEFT_IN_A_STORE_S)
        return
    for path in names(home, f".step-*{atomic_file.UNFINISHED}"):
        if _is_old(path) or (f"-{_machine()}-" in path.name and atomic_file.is_abandoned(Path(path))):
            path.unlink(missing_ok=True)


def _survey(home: StoragePath) -> dict[StoragePath, Manifest | None]:
    """Every manifest of a directory, read once (one of a thousand ranks is long): of checkpoints, of those put aside, and of ranks. None: cannot be read."""
    found: dict[StoragePath, Manifest | None] = {}
    for path in names(home, "step-*"):
        if path.name.endswith((".json", _DISCARDED, PART)):
            found[path] = None
            with contextlib.suppress(OSError, UnusableCheckpoint):
                found[path] = manifests.read(path, part=path.suffix == PART)
    return found


def _shards_named(survey: dict[StoragePath, Manifest | None]) -> set[str]:
    return {shard.name for manifest in survey.values() if manifest for shard in manifest.shards}


def _step_of(path: StoragePath) -> str:
    """The beginning of its name, which all files of a step share."""
    return path.name[: len("step-") + 12]


def _is_own(shard: StoragePath) -> bool:
    """Whether this process wrote it: its manifest would be there by now."""
    return shard.name.split("-")[-3:-1] == [_machine(), str(os.getpid())]


def _is_old(path: StoragePath) -> bool:
    try:
        return time.time() - path.stat().st_mtime > (LEFT_IN_A_STORE_S if isinstance(path, ObjectPath) else LEFT_S)
    except FileNotFoundError:
        return False
