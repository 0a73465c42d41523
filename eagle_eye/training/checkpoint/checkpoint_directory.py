"""Checkpoints in a directory: written, listed, loaded, put aside and deleted. The package says what a checkpoint is."""

import contextlib
import json
import logging
import os
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_eye.training import atomic_file, messages, state_tree
from eagle_eye.training.save_retry import WAIT_S, SaveRetry, Unwritten
from eagle_eye.training.storage_failure import StorageFailure

VERSION = 1
KEPT = 2
"""Newest checkpoints that are kept, besides the newest finite one."""
LEFT_S = 3600.0
"""Data that no manifest names for so long are nobody's: a save of another process takes less time between its two files."""
_DISCARDED = ".discarded"
_SEAL = ', "manifest_crc32": '
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""What a damaged manifest, or one nested too deep, raises."""
_DATA = ".safetensors"
_log = logging.getLogger("eagle_eye.checkpoint")


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint whose manifest can be read; whether its tensors are whole is found when they are loaded."""

    step: int
    path: Path
    """Of the manifest."""
    data: Path
    bytes: int
    checksum: int
    finite: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """A checkpoint as bytes, independent of the state that trains on."""

    home: Path
    step: int
    epoch: int
    finite: bool
    data: bytes
    manifest: dict[str, Any]
    """Without the name of the data's file, which every attempt has anew."""

    @property
    def needed_bytes(self) -> int:
        """Of its tensors; the manifest is small."""
        return len(self.data)


def directory_of(directory: str | os.PathLike[str] | None = None) -> Path:
    """The directory itself, else EAGLE_EYE_CHECKPOINT_DIR, else ./checkpoints."""
    return Path(directory or os.environ.get("EAGLE_EYE_CHECKPOINT_DIR") or "checkpoints")


def save(state: dict[str, Any], step: int, directory: str | os.PathLike[str] | None = None) -> Path | None:
    """Write `state` (tensors, numbers, texts, None, in dicts, lists and tuples) as the checkpoint of `step`.

    One rank calls this. Returns the manifest's path; or None if storage refused it, whatever its error: older checkpoints are
    untouched then, the launcher is told (event `checkpoint.failed`), and the same bytes are tried again in the background, after
    1, 2, 4, … 60 s, until they are written or the next `save` begins. Where such an attempt hangs, since the storage does not answer,
    this one is left out after WAIT_S, told in the same way. A process that ends waits ten seconds more for them.
    Raises TypeError for what cannot be stored without pickle, and whatever else is wrong with the state.
    """
    with _retry.turn(WAIT_S) as free:
        if free:
            return _retry.save(_prepared(state, step, directory))
    leave_out(step, directory)
    return None


def leave_out(step: int, directory: str | os.PathLike[str] | None = None) -> None:
    """Tell the launcher that the checkpoint of `step` is not saved, since an earlier one is still being written."""
    _retry.leave_out(directory_of(directory).absolute(), step)


def save_or_raise(state: dict[str, Any], step: int, directory: str | os.PathLike[str] | None = None) -> Path:
    """As `save`, but the launcher is told and OSError is raised; trying again is the caller's."""
    with _retry.turn():
        return _retry.attempt(_prepared(state, step, directory))


def _prepared(state: dict[str, Any], step: int, directory: str | os.PathLike[str] | None) -> PreparedCheckpoint:
    import safetensors.torch
    import torch

    tensors, rest = state_tree.flatten(state, lambda value: isinstance(value, torch.Tensor))
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    finite = all(bool(torch.isfinite(copy).all()) for copy in copies.values() if copy.is_floating_point())
    data = safetensors.torch.save(copies)
    epoch = _epoch()
    manifest = {"version": VERSION, "step": step, "epoch": epoch, "bytes": len(data), "crc32": zlib.crc32(data), "finite": finite, "rest": rest}
    json.dumps(manifest)  # what JSON cannot hold is the state's fault, and raises here
    return PreparedCheckpoint(directory_of(directory), step, epoch, finite, data, manifest)


def _epoch() -> int:
    """In which this process was started."""
    return int(os.environ.get("EAGLE_EYE_EPOCH") or 0)


def _write(prepared: PreparedCheckpoint) -> Path:
    """Raises OSError, and then leaves nothing behind."""
    home = prepared.home
    home.mkdir(parents=True, exist_ok=True)
    # a name of its own for each attempt: a worker of an older epoch that wakes up late cannot tear a newer one's
    name = f"{_stem(prepared.step)}-{prepared.epoch}-{os.getpid()}-{time.monotonic_ns()}{_DATA}"
    atomic_file.replace(home / name, prepared.data)
    path = home / f"{_stem(prepared.step)}.json"
    try:
        atomic_file.replace(path, _sealed({**prepared.manifest, "data": name, "saved": time.time()}))
    except OSError:
        with contextlib.suppress(OSError):
            (home / name).unlink(missing_ok=True)  # no manifest would ever name it, and there is no room
        raise
    try:
        _prune(home)
    except OSError as error:
        _log.warning("older checkpoints in %s could not be deleted: %s", home, error)
    _tell_launcher("checkpoint", step=prepared.step, path=str(path), finite=prepared.finite, epoch=prepared.epoch)
    return path


def _report_failure(unwritten: Unwritten, failure: StorageFailure, attempt: int, retry_s: float) -> None:
    _tell_launcher(
        "checkpoint_failed", step=unwritten.step, path=failure.path, errno=failure.errno, reason=failure.reason, free_bytes=failure.free_bytes,
        needed_bytes=unwritten.needed_bytes, attempt=attempt, retry_s=retry_s, epoch=_epoch(),
    )  # fmt: skip


_retry = SaveRetry(_write, _report_failure)
"""Of this process."""


def load(directory: str | os.PathLike[str] | None = None, at_most: int | None = None) -> tuple[dict[str, Any], int] | None:
    """State and step of the newest whole, finite checkpoint; None if there is none.

    `at_most` (default EAGLE_EYE_RESUME_STEP; below 0: no limit) is the highest number to take. One that is torn
    or was changed on disk is named in a warning and skipped.
    """
    import safetensors.torch

    limit = int(os.environ.get("EAGLE_EYE_RESUME_STEP") or -1) if at_most is None else at_most
    for entry in reversed(entries(directory_of(directory))):
        if 0 <= limit < entry.step:
            continue
        if not entry.finite:
            _log.warning("checkpoint %s holds values that are not finite: skipped", entry.path)
            continue
        try:
            data = _whole(entry)
            rest = _manifest(entry.path)["rest"]
            return state_tree.unflatten(safetensors.torch.load(data), rest), entry.step
        except _UNREADABLE as error:
            _log.warning("checkpoint %s cannot be used, an older one is tried: %s", entry.path, error)
    return None


def entries(directory: str | os.PathLike[str]) -> list[SavedCheckpoint]:
    """The visible checkpoints of a directory, oldest first; manifests that cannot be read are left out."""
    found = (_entry(path) for path in Path(directory).glob("step-*.json"))
    return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.step)


def discard_after(directory: str | os.PathLike[str], step: int) -> list[int]:
    """Rename all checkpoints above `step`, so that no later restart loads them; returns their numbers."""
    aside = [entry for entry in entries(directory) if entry.step > step]
    for entry in aside:
        entry.path.replace(entry.path.with_name(entry.path.name + _DISCARDED))
    return [entry.step for entry in aside]


def _stem(step: int) -> str:
    return f"step-{step:012d}"


def _sealed(manifest: dict[str, Any]) -> bytes:
    """With a checksum of its own: it holds the step, and what of the state is no tensor."""
    text = json.dumps(manifest)
    return f"{text[:-1]}{_SEAL}{zlib.crc32(text.encode())}}}".encode()


def _manifest(path: Path) -> dict[str, Any]:
    """Raises what _UNREADABLE names; ValueError for one that was changed since it was written."""
    text, mark, seal = path.read_text().rpartition(_SEAL)
    text = f"{text}}}" if mark else seal
    if mark and seal != f"{zlib.crc32(text.encode())}}}":
        raise ValueError("the manifest was changed since it was written (CRC-32)")
    manifest = json.loads(text)
    if not isinstance(manifest, dict):
        raise TypeError("the manifest is no JSON object")
    return manifest


def _entry(path: Path) -> SavedCheckpoint | None:
    try:
        manifest = _manifest(path)
        if manifest["version"] != VERSION:
            raise ValueError(f"version {manifest['version']}, this program reads {VERSION}")
        return SavedCheckpoint(
            step=int(manifest["step"]),
            path=path,
            data=path.parent / Path(manifest["data"]).name,
            bytes=int(manifest["bytes"]),
            checksum=int(manifest["crc32"]),
            finite=bool(manifest["finite"]),
            epoch=int(manifest["epoch"]),
        )
    except (*_UNREADABLE, OverflowError) as error:
        _log.warning("checkpoint %s cannot be used: %s", path, error)
        return None


def _whole(entry: SavedCheckpoint) -> bytes:
    data = entry.data.read_bytes()
    if len(data) != entry.bytes:
        raise ValueError(f"{entry.data.name} has {len(data)} of {entry.bytes} bytes")
    if zlib.crc32(data) != entry.checksum:
        raise ValueError(f"{entry.data.name} was changed since it was written (CRC-32)")
    return data


def _prune(home: Path) -> None:
    """Delete what is neither among the newest nor the newest finite one, then what no manifest names."""
    named_before = set(_data_names(_manifests(home)))
    found = entries(home)
    kept = {entry.path for entry in found[-KEPT:]} | {entry.path for entry in [e for e in found if e.finite][-1:]}
    for entry in found:
        if entry.path not in kept:
            entry.path.unlink(missing_ok=True)
    for path in sorted(home.glob(f"step-*.json{_DISCARDED}"))[:-KEPT]:
        path.unlink(missing_ok=True)
    named = set(_data_names(_manifests(home)))
    for path in home.glob(f"step-*{_DATA}"):
        if path.name not in named and (path.name in named_before or _is_left_over(path)):
            path.unlink(missing_ok=True)
    for path in home.glob(f".step-*{atomic_file.UNFINISHED}"):
        if atomic_file.is_abandoned(path):
            path.unlink(missing_ok=True)


def _manifests(home: Path) -> list[Path]:
    return [*home.glob("step-*.json"), *home.glob(f"step-*.json{_DISCARDED}")]


def _is_left_over(data: Path) -> bool:
    """Whether no manifest will come: ours would be there by now, another process may be about to write its own."""
    try:
        return data.name.removesuffix(_DATA).split("-")[-2] == str(os.getpid()) or time.time() - data.stat().st_mtime > LEFT_S
    except FileNotFoundError:
        return False


def _data_names(manifests: Iterable[Path]) -> Iterable[str]:
    for path in manifests:
        with contextlib.suppress(*_UNREADABLE):
            yield str(_manifest(path)["data"])


def _tell_launcher(kind: str, **fields: Any) -> None:
    launcher = os.environ.get("EAGLE_EYE_SOCKET")
    if launcher:
        worker = os.environ.get("EAGLE_EYE_WORKER", "")
        with contextlib.suppress(OSError):  # the checkpoint is valid, or missing, whether or not the launcher knows of it
            messages.send(launcher, messages.encode(kind, worker=worker, **fields))
