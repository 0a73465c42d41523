"""Conversion of checkpoints from and to torch.save and torch.distributed.checkpoint (DCP).

Both hold pickles. What a pickle names is looked up in a list of what these formats need, and everything else is refused: nothing of a file that
somebody else wrote is executed. Needs torch, and memory for the whole state.
"""

import contextlib
import errno
import io
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

from eagle_eye.errors import ConfigError, EagleEyeError
from eagle_eye.training.object_path import StoragePath
from eagle_eye.training.save_retry import room_text
from eagle_eye.training.storage_failure import StorageFailure, failure_raised, size_text, storage_failure

from . import checkpoint_directory, checkpoint_writer
from .checkpoint_reader import load_whole
from .manifest import UnusableCheckpoint
from .saved_checkpoint import SavedCheckpoint
from .tensor_regions import Region, gap

DCP_METADATA = ".metadata"
"""The file that makes a directory a checkpoint of DCP."""
_DCP_MODULE = "torch.distributed.checkpoint"
_DCP_NAMES = {
    **dict.fromkeys(("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"), f"{_DCP_MODULE}.metadata"),
    "_StorageInfo": f"{_DCP_MODULE}.filesystem", "Size": "torch", "_get_layout": "torch.serialization",
}  # fmt: skip
_NO_ROOM = {"ENOSPC", "EDQUOT", "EFBIG", ""}
"""Names of errors that more room mends; '' where torch's writer does not say which it was."""
_PATHS = {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"}


def is_dcp(path: Path) -> bool:
    """Whether a directory holds a checkpoint of DCP."""
    return (path / DCP_METADATA).is_file()


def read_torch_save(path: Path) -> dict[str, Any]:
    """The state in a file of torch.save, read with weights_only=True. Raises ConfigError for anything else in it; OSError."""
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        _require_cut_off(error, path)
        raise ConfigError(f"{path} is no whole file of torch.save: it is cut off; copy it anew from where it is whole") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is no file of torch.save that holds tensors and plain values alone: {_first_line(error)}") from error
    if not isinstance(state, dict):
        raise ConfigError(f"{path} holds no dict, but {type(state).__name__}: save a dict of state_dicts")
    return state


def _require_cut_off(error: OSError, path: Path) -> None:
    """Raises what the system says, with the path, unless it is that torch looks for the end of a file before its beginning."""
    if error.filename is not None:
        raise error
    if error.errno != errno.EINVAL:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error


def read_dcp(directory: Path) -> dict[str, Any]:
    """The state in a directory of DCP, tensors of all ranks whole. Keys are text, as DCP has them, but for the numbers of an optimizer's parameters. Raises ConfigError for what it cannot read; OSError."""
    try:
        metadata = _read_metadata(directory / DCP_METADATA)
        state: dict[str | int, Any] = {}
        for name, described in metadata.state_dict_metadata.items():
            value = _tensor(directory, metadata, name, described) if isinstance(described, _dcp().TensorStorageMetadata) else _item(directory, metadata, name, None)
            _place(state, (metadata.planner_data or {}).get(name, (name,)), value)
        nested: dict[str, Any] = _nested(state)
    except OSError as error:
        _require_cut_off(error, directory)
        raise ConfigError(f"{directory} is no whole checkpoint of torch.distributed.checkpoint: a file of it is cut off; copy it anew from where it is whole") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"{directory} is no checkpoint of torch.distributed.checkpoint that holds tensors and plain values alone: {_first_line(error)}") from error
    return nested


def _dcp() -> Any:
    from torch.distributed.checkpoint import metadata

    return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes of DCP's metadata, data types and paths, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """What the pickle names. Raises UnpicklingError for anything that is no part of DCP's metadata."""
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.partition(".")[0] == "pathlib" and name in _PATHS:
            return PurePosixPath
        if _DCP_NAMES.get(name) != module:
            raise pickle.UnpicklingError(f"its metadata names {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


def _read_metadata(path: Path) -> Any:
    metadata = _MetadataUnpickler(io.BytesIO(path.read_bytes())).load()
    if not isinstance(metadata, _dcp().Metadata):
        raise TypeError("its metadata is of another kind")
    return metadata


def _tensor(directory: Path, metadata: Any, name: str, described: Any) -> Any:
    """All of it. Raises ValueError where pieces of it are missing, or are there twice."""
    import torch

    regions = [Region(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in described.chunks]
    wrong = gap(tuple(described.size), regions)
    if wrong:
        raise ValueError(f"tensor {name!r} is not whole: {wrong}")
    whole = torch.empty(described.size, dtype=described.properties.dtype)
    for region in regions:
        target = whole
        for dimension, (begin, length) in enumerate(zip(region.offsets, region.shape, strict=True)):
            target = target.narrow(dimension, begin, length)
        target.copy_(_item(directory, metadata, name, torch.Size(region.offsets)))
    return whole


def _item(directory: Path, metadata: Any, name: str, offsets: Any) -> Any:
    import torch

    found = metadata.storage_data[_dcp().MetadataIndex(name, offsets)]
    if Path(found.relative_path).name != found.relative_path or getattr(found, "transform_descriptors", None):
        raise ValueError(f"{name!r} lies in {found.relative_path!r}, which is in another directory, or compressed")
    with (directory / found.relative_path).open("rb") as file:
        file.seek(found.offset)
        return torch.load(io.BytesIO(file.read(found.length)), map_location="cpu", weights_only=True)


def _place(state: dict[str | int, Any], keys: tuple[str | int, ...], value: Any) -> None:
    for key in keys[:-1]:
        state = state.setdefault(key, {})
    state[keys[-1]] = value


def _nested(value: Any) -> Any:
    """With lists again where DCP names places by number (it makes text of a dict's keys), and an optimizer's parameters by their numbers, as its load_state_dict wants them."""
    if not isinstance(value, dict):
        return value
    items = {key: _nested(each) for key, each in value.items()}
    if items and all(isinstance(key, int) for key in items):
        if sorted(items) != list(range(len(items))):
            raise ValueError(f"of a list of {max(items) + 1} there are {len(items)}")
        return [items[place] for place in range(len(items))]
    return _numbered(items)


def _numbered(items: dict[Any, Any]) -> dict[Any, Any]:
    state, groups = items.get("state", {}), items.get("param_groups")  # DCP leaves empty dicts out
    if not isinstance(state, dict) or not isinstance(groups, list) or not all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups):
        return items
    numbers = {str(each): each for group in groups for each in group["params"] if isinstance(each, int)}
    return {**items, "state": {numbers.get(key, key): each for key, each in state.items()}}


def store(state: dict[str, Any], step: int, directory: StoragePath) -> StoragePath:
    """Make a checkpoint of a state; no other one is deleted. Raises ConfigError where that step is there, or the state holds what no checkpoint can; OSError."""
    try:
        path = directory / checkpoint_directory.manifest_name(checkpoint_directory.step_number(step))
        if path.exists():
            raise ConfigError(f"{path} is there already: give another step or directory")
        prepared = checkpoint_writer.prepare(state, step, directory)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the state cannot be converted: {error}") from error
    try:
        return checkpoint_writer.put(prepared)[0]
    except OSError as error:
        raise EagleEyeError(f"nothing was converted: {refusal_text(error, directory, prepared.needed_bytes)}") from error


def refusal_text(error: BaseException, target: StoragePath, needed: int = 0) -> str:
    """What a person needs of a file that cannot be written or read: where, why, and how much room there is."""
    found = storage_failure(error, target) if isinstance(error, OSError) else failure_raised(error, error.__traceback__)
    if found is None:
        return f"{target}: {_first_line(error)}"
    where = os.fspath(error.filename) if isinstance(error, OSError) and isinstance(error.filename, str | os.PathLike) else os.fspath(target)
    room = StorageFailure(where, found.errno, found.reason, storage_failure(OSError(), target).free_bytes)
    said = f"{where}: {found.reason}{f' ({found.errno})' if found.errno else ''}"
    if found.errno not in _NO_ROOM:
        return said
    return f"{said}; {room_text(room)}{f', {size_text(needed)} are needed' if needed else ''}; make room, or give another place"


def _loaded(entry: SavedCheckpoint) -> dict[str, Any]:
    """Raises UnusableCheckpoint for whatever load would pass over; OSError."""
    try:
        return load_whole(entry)
    except UnusableCheckpoint:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = f"its shard has no tensor {error}" if isinstance(error, KeyError) else _first_line(error)
        raise UnusableCheckpoint(f"{entry.path} cannot be loaded: {said}. Convert an older step") from error


def write_torch_save(entry: SavedCheckpoint, target: Path) -> None:
    """All of a checkpoint's state as one file of torch.save; it appears when it is complete. Raises ConfigError where the file is there; UnusableCheckpoint, OSError."""
    import torch

    def write(file: IO[bytes]) -> None:
        torch.save(state, file)

    if target.exists():
        raise ConfigError(f"{target} is there already: give another name")
    state = _loaded(entry)
    try:
        _write_new(target, write)
    except RecursionError as error:
        raise ConfigError(f"the state of {entry.path} is nested too deep for torch.save") from error
    except (OSError, RuntimeError) as error:  # torch's writer in C++ says what the system said, and tells it as what it is not
        raise EagleEyeError(f"nothing was converted: {refusal_text(error, target, entry.manifest.bytes)}") from error


def _write_new(target: Path, write: Callable[[IO[bytes]], None]) -> None:
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def write_dcp(entry: SavedCheckpoint, target: Path) -> None:
    """All of a checkpoint's state as a directory of DCP. Raises ConfigError where the directory has something in it; UnusableCheckpoint, OSError."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty: give another directory")
    state = _loaded(entry)
    is_new = not target.exists()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group, which is as it is meant
            dcp.save(state, checkpoint_id=target, no_dist=True)
    except BaseException as error:
        _clear(target, is_new=is_new)
        cause = _cause(error)
        if isinstance(cause, OSError) or failure_raised(cause, cause.__traceback__) is not None:
            raise EagleEyeError(f"nothing was converted: {refusal_text(cause, target, entry.manifest.bytes)}") from error
        if not isinstance(error, CheckpointException | ValueError | RecursionError):
            raise
        raise ConfigError(f"torch.distributed.checkpoint does not take the state of {entry.path}: {_first_line(cause)}; convert it with --to torch, or rename the keys") from error


def _clear(target: Path, *, is_new: bool) -> None:
    """What is in a directory that was empty before, and the directory if it was not there."""
    with contextlib.suppress(OSError):
        for each in target.iterdir():
            each.unlink()
        if is_new:
            target.rmdir()


def _cause(error: BaseException) -> BaseException:
    """CheckpointException has the traceback of each rank in its text."""
    failures = getattr(error, "failures", None)
    cause: BaseException = next(iter(failures.values()))[0] if failures else error
    return cause


def left_out(entry: SavedCheckpoint) -> str:
    """What of a checkpoint is no part of its state, and so in no other format; '' if that is nothing."""
    manifest = entry.manifest
    parts = [*(["its data position"] if manifest.data_position is not None else []), *(["what each rank alone had (per_rank)"] if manifest.ranks else [])]
    return " and ".join(parts)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
