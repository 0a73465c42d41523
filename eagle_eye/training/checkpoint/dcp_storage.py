"""torch.distributed.checkpoint (DCP) over our checkpoints: scripts keep `dcp.save`, `dcp.async_save` and `dcp.load`, and what they write is ours.

    dcp.save(state, storage_writer=DcpWriter("/data/gpt", step=step + 1))
    reader = DcpReader("/data/gpt")
    dcp.load(state, storage_reader=reader)      # the newest step whose files are all there
    start = reader.step

What DCP plans is written as `save_shard` writes it: a shard for each rank, without pickle, and a manifest that is published last, by DCP's coordinator, when
all ranks are done. `checkpoint.restore`, `checkpoint.load` and `eagle-eye checkpoint` read it, and `DcpReader` reads what `save` and `save_shard` wrote.
What storage refuses raises, as it does with DCP's own files (`CheckpointException` on all ranks); older checkpoints are untouched then.
"""

import io
import os
import pickle
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from eagle_eye.errors import ConfigError
from eagle_eye.training import state_tree
from eagle_eye.training.object_path import SCHEME, StoragePath

from . import checkpoint_directory, checkpoint_reader, checkpoint_writer, shard_file
from .checkpoint_directory import directory_of, step_number
from .checkpoint_reader import SkippedCheckpoint
from .distributed_tensor import LocalTensor, LocalTensors
from .manifest import UnusableCheckpoint
from .saved_checkpoint import SavedCheckpoint
from .tensor_regions import Region

if TYPE_CHECKING:
    from torch import Tensor

class _Part(NamedTuple):
    """Which part of a save a rank writes; DCP's coordinator tells each its own."""

    run: str
    rank: int
    world_size: int


class DcpWriter(StorageWriter):  # type: ignore[misc]  # torch has no types here
    """Of one checkpoint: that of `step`, the first one still to do. All ranks write to the same directory.

    `data_position`: where the job reads on in its data, anything that JSON holds.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, step: int, data_position: Any = None) -> None:
        self._home, self._step, self._data_position = directory_of(directory), step_number(step), data_position
        self._parts: list[StoragePath] = []
        """On the coordinator."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a directory's path, or a URL that fsspec knows a driver for; another address would be a folder of that name."""
        from fsspec import available_protocols

        protocol, scheme, _ = os.fspath(checkpoint_id).partition(SCHEME)
        return not scheme or protocol in available_protocols()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A save begins. `checkpoint_id`: the directory, in place of the one that was given."""
        if checkpoint_id is not None:
            self._home = directory_of(checkpoint_id)
        self._parts = []

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **options: Any) -> None:  # noqa: ARG002 - DCP names it
        """Raises ValueError for a save without a coordinator: nobody would know that all ranks are done."""
        if not options.get("use_collectives", True):
            raise ValueError("use_collectives=False is not possible here: the coordinator publishes the checkpoint when all ranks are done")

    def storage_meta(self) -> StorageMeta:
        """What DCP's planners may ask for."""
        return StorageMeta(checkpoint_id=self._home)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: which rank is which, and a text that no other save has."""
        run = secrets.token_hex(8)
        self._parts = [self._home / checkpoint_directory.part_name(self._step, run, rank, len(plans)) for rank in range(len(plans))]
        return [replace(plan, storage_data=_Part(run, rank, len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """This rank's shard and its part of the manifest. Raises TypeError, ValueError for what no checkpoint can hold; OSError."""
        part: _Part = plan.storage_data
        paths: Mapping[str, tuple[Any, ...]] = plan.planner_data or {}
        state: dict[Any, Any] = {}
        for item in plan.items:
            _place(state, paths.get(item.index.fqn, (item.index.fqn,)), _value(item, planner))
        prepared = checkpoint_writer.prepare(state, self._step, self._home, rank=part.rank, world_size=part.world_size, data_position=self._data_position)
        path, manifest = checkpoint_writer.put(replace(prepared, run=part.run))
        if part.world_size == 1:
            checkpoint_writer.published(path, manifest)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002 - DCP names them
        """On the coordinator, when all ranks are done: make the checkpoint visible. Raises ValueError for shards that do not fit together; OSError."""
        if len(self._parts) > 1 and not checkpoint_writer.publish(self._home, self._parts):
            raise OSError(f"not all of the {len(self._parts)} ranks have written to {self._home.absolute()}: give a directory that all nodes share")


class DcpReader(StorageReader):  # type: ignore[misc]  # torch has no types here
    """Reads the newest checkpoint whose files are all there, with their sizes, whose values are finite, and whose step is at most `at_most`.

    `at_most` (default EAGLE_EYE_RESUME_STEP; below 0: no limit). Each shard is compared with its digest before anything of it is used; one that was changed raises
    (DCP cannot go back to an older step by itself): load again with `at_most=reader.step - 1`.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, at_most: int | None = None) -> None:
        self._home, self._at_most = directory_of(directory), at_most
        self._entry: SavedCheckpoint | None = None
        self._values: Mapping[str, Any] = {}
        """By DCP's name; in the place of a tensor one without content."""
        self.step = -1
        """Of the checkpoint that was read last: the first step still to do."""
        self.skipped: tuple[SkippedCheckpoint, ...] = ()
        """Newer ones."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return DcpWriter.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A load begins. `checkpoint_id`: the directory, in place of the one that was given."""
        if checkpoint_id is not None:
            self._home = directory_of(checkpoint_id)
        self._entry, self._values, self.step, self.skipped = None, {}, -1, ()

    @property
    def data_position(self) -> Any:
        """Of the checkpoint that was read last, as it was saved."""
        return self._entry.manifest.data_position if self._entry is not None else None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What DCP's planners need to know. Raises FileNotFoundError where there is no checkpoint that can be loaded, and says why each one cannot."""
        self._entry = entry = self._newest()
        self.step = entry.step
        held = {name: torch.empty(stored.shape, dtype=shard_file.torch_dtype(stored.dtype), device="meta") for name, stored in entry.manifest.tensors.items()}
        self._values, paths = flatten_state_dict(state_tree.unflatten(held, checkpoint_reader.rest_of(entry)))
        names = {id(tensor): name for name, tensor in held.items()}
        described = {key: self._described(entry, names.get(id(value))) for key, value in self._values.items()}
        storage = {key: names[id(value)] for key, value in self._values.items() if id(value) in names}
        return Metadata(described, planner_data=paths, storage_data=storage, storage_meta=StorageMeta(checkpoint_id=self._home))

    def _newest(self) -> SavedCheckpoint:
        skipped: list[SkippedCheckpoint] = []
        found = checkpoint_reader.newest_usable(self._home, self._at_most, skipped, _usable)
        if found is not None:
            self.skipped = tuple(skipped)
            return found
        reasons = "; ".join(f"{each.path.name}: {each.reason}" for each in skipped)
        raise FileNotFoundError(f"no checkpoint in {self._home.absolute()} can be loaded{': ' if reasons else ''}{reasons}")

    def _described(self, entry: SavedCheckpoint, name: str | None) -> TensorStorageMetadata | BytesStorageMetadata:
        if name is None:
            return BytesStorageMetadata()
        stored = entry.manifest.tensors[name]
        chunks = [ChunkStorageMetadata(torch.Size(piece.region.offsets), torch.Size(piece.region.shape)) for piece in stored.pieces]
        return TensorStorageMetadata(TensorProperties(dtype=shard_file.torch_dtype(stored.dtype)), torch.Size(stored.shape), chunks)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:  # noqa: ARG002 - DCP names it
        self._names: Mapping[str, str] = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return replace(plan, storage_data=self.step)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raises ConfigError where ranks have found different steps: one was published, or deleted, in between."""
        steps = [plan.storage_data for plan in plans]
        if len(set(steps)) > 1:
            raise ConfigError(f"the ranks have found checkpoints of different steps in {self._home.absolute()}: {steps}. Load again, or give at_most={min(steps)}")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Into the tensors of this rank, once all that it needs of tensors is read and found whole. Raises UnusableCheckpoint; OSError."""
        assert self._entry is not None
        wanted = {(self._names[key.fqn], tuple(key.offset or ())) for key in (item.storage_index for item in plan.items) if key.fqn in self._names}
        pieces = checkpoint_reader.pieces_of(self._entry, lambda name, region: region if (name, region.offsets) in wanted else None)
        found = {(name, piece.region.offsets): part for name, _, piece, part in pieces}
        for item in plan.items:
            key = item.storage_index
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _saved(self._values[key.fqn]))
            else:
                _fill(item, planner, found[self._names[key.fqn], tuple(key.offset or ())])
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _usable(entry: SavedCheckpoint) -> SavedCheckpoint:
    """As far as the sizes of its files tell. Raises UnusableCheckpoint, saying why it is not."""
    why = entry.unusable or ("it was written by an older version: load it with checkpoint.load" if entry.manifest.version == 1 else "")
    if why:
        raise UnusableCheckpoint(why)
    return entry


def _fill(item: ReadItem, planner: LoadPlanner, part: "Tensor") -> None:
    """A region of a tensor of this rank."""
    for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        part = part.narrow(dimension, begin, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(part)
    planner.commit_tensor(item, target)


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """What a rank writes of one item. Raises TypeError for what JSON cannot hold."""
    found = planner.resolve_data(item)
    if item.type is WriteItemType.BYTE_IO:
        try:
            return torch.load(io.BytesIO(found.getvalue()), weights_only=True)  # DCP has pickled it
        except pickle.UnpicklingError as error:
            raise TypeError(f"a checkpoint cannot hold {item.index.fqn!r}: store numbers, text or tensors") from error
    data = item.tensor_data
    return LocalTensor(found, Region(tuple(data.chunk.offsets), tuple(data.chunk.sizes)), tuple(data.size))


def _saved(value: Any) -> io.BytesIO:
    """As DCP's planners expect it."""
    found = io.BytesIO()
    torch.save(value, found)
    found.seek(0)
    return found


def _place(state: dict[Any, Any], path: Sequence[Any], value: Any) -> None:
    """In nested dicts; a list whose tensors several ranks write becomes one, too. A further region of a tensor stands beside those before it."""
    for key in path[:-1]:
        state = state.setdefault(key, {})
    before = state.get(path[-1])
    if isinstance(before, LocalTensor | LocalTensors):
        parts = before.parts if isinstance(before, LocalTensors) else (before,)
        value = LocalTensors((*parts, value))
    state[path[-1]] = value
