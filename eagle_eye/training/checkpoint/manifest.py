"""The manifest of a checkpoint: which shard files it consists of, which part of which tensor lies where, and what of the state is no tensor.

It is JSON, without code in it, sealed with a checksum of its own, and is published last: a checkpoint exists when its manifest does. It is read
as the input of a stranger: sizes, names and regions are checked before a shard is opened, and what does not hold is refused with a remedy.
Only the standard library is needed.
"""

import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle_eye.regular_file import open_regular
from eagle_eye.training import state_tree
from eagle_eye.training.object_path import ObjectPath, StoragePath

from . import crc32_sums, json_position
from .tensor_regions import Extents, Region, gap

FORMAT = 2
"""The version that is written. Version 1 had one shard, without names of tensors in the manifest; it is still read."""
LONGEST_BYTES = 1 << 30
"""No manifest is longer; a longer file is not read."""
FEWEST_CHUNK_BYTES = 1 << 10
"""No shard is cut into chunks that are smaller: a manifest is not to make its reader count for ever."""
ELEMENT_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8, "U64": 64, "U32": 32, "U16": 16,
    "F8_E4M3": 8, "F8_E4M3FNUZ": 8, "F8_E5M2": 8, "F8_E5M2FNUZ": 8, "C64": 64,
}  # fmt: skip
"""Data types by their names in safetensors → bits of an element."""
DATA = ".safetensors"
_SEAL = ', "manifest_crc32": '
_MOST_DIMENSIONS = 64
MOST_STEPS = 10**12
"""A step is below this: the names of its files have twelve digits for it."""
_NAMED_STEP = re.compile(r"step-(\d{12})\.")


class UnusableCheckpoint(ValueError):
    """A manifest or shard that is not loaded. The message names the file, what is wrong with it, and the remedy."""


@dataclass(frozen=True, slots=True)
class ChunkSums:
    """Of a shard that was written to an object store, so that a part of it can be read, and checked."""

    bytes: int
    """Of each chunk but the last."""
    crc32: tuple[int, ...]
    """Of each chunk."""


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of tensors, written by one rank."""

    name: str
    """In the folder of the manifest."""
    bytes: int
    crc32: int
    rank: int = 0
    chunks: ChunkSums | None = None
    tensor_crc32: Mapping[str, int] = field(default_factory=dict)
    """Of the bytes of each tensor, by name; in the part of a rank alone: whether what two ranks wrote is the same."""


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A region of a tensor, and the shard that holds it under the tensor's name."""

    shard: int
    """Its place in `Manifest.shards`."""
    region: Region


@dataclass(frozen=True, slots=True)
class ManifestTensor:
    """One tensor of the whole job, in the pieces that its ranks held."""

    dtype: str
    """As in ELEMENT_BITS."""
    shape: Extents
    """Of all of it."""
    pieces: tuple[TensorPiece, ...]

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return math.prod(self.shape) * ELEMENT_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is made of."""

    step: int
    epoch: int
    finite: bool
    """Whether no floating tensor holds NaN or an infinite value."""
    saved: float
    """Seconds since 1970."""
    shards: tuple[ShardFile, ...]
    tensors: Mapping[str, ManifestTensor]
    """By name; empty in version 1, where the shard alone knows them."""
    rest: Any
    """The nested state, with references in the places of tensors (state_tree)."""
    world_size: int = 1
    layout: Mapping[str, int] = field(default_factory=dict)
    """How the job was cut: size by dimension of its parallelism, such as {"dp": 4, "pp": 2}."""
    data_position: Any = None
    """Where the job reads on in its data: what the script gave, as JSON."""
    ranks: Mapping[str, Any] = field(default_factory=dict)
    """What one rank alone has (random number generators), nested as `rest`, by rank."""
    version: int = FORMAT

    @property
    def bytes(self) -> int:
        """Of all shards."""
        return sum(shard.bytes for shard in self.shards)


def encode(manifest: Manifest, *, part: bool = False) -> bytes:
    """What `decode` reads: it was checked by the same code. Raises ValueError or TypeError, saying why, for what no reader would take.

    So for what JSON cannot hold (NaN, for one, which other readers refuse), a tensor that is not whole, a step that is no number from 0 on. part: as in `read`.
    """
    try:
        text = json.dumps(_plain(manifest), allow_nan=False)
        _checked(json.loads(text, object_pairs_hook=_without_duplicates), part)
    except RecursionError:
        raise ValueError("it is nested too deep: no reader would take it") from None
    data = f"{text[:-1]}{_SEAL}{zlib.crc32(text.encode())}}}".encode()
    if len(data) > LONGEST_BYTES:
        raise ValueError(f"its manifest has {len(data)} bytes, and no reader takes more than {LONGEST_BYTES}: keep long lists and texts in tensors")
    return data


def _plain(manifest: Manifest) -> dict[str, Any]:
    return {
        "version": FORMAT, "step": manifest.step, "epoch": manifest.epoch, "finite": manifest.finite, "saved": manifest.saved,
        "world_size": manifest.world_size, "layout": dict(manifest.layout), "data_position": json_position.strict(manifest.data_position),
        "shards": [
            {"file": each.name, "bytes": each.bytes, "digest": f"crc32:{each.crc32:08x}", "rank": each.rank}
            | ({"chunk_bytes": each.chunks.bytes, "chunk_crc32": [f"{checksum:08x}" for checksum in each.chunks.crc32]} if each.chunks is not None else {})
            | ({"tensor_crc32": {name: f"{checksum:08x}" for name, checksum in each.tensor_crc32.items()}} if each.tensor_crc32 else {})
            for each in manifest.shards
        ],
        "tensors": {
            name: {"dtype": each.dtype, "shape": each.shape, "pieces": [[piece.shard, piece.region.offsets, piece.region.shape] for piece in each.pieces]}
            for name, each in manifest.tensors.items()
        },
        "rest": manifest.rest, "ranks": dict(manifest.ranks),
    }  # fmt: skip


def read(path: StoragePath, *, part: bool = False) -> Manifest:
    """Raises UnusableCheckpoint for what is no whole manifest, or one of a newer version; OSError.

    part: it is one rank's, and may have regions of tensors.
    """
    if isinstance(path, ObjectPath):
        data = path.read_range(0, min(path.stat().st_size, LONGEST_BYTES + 1))
    else:
        with os.fdopen(open_regular(path), "rb") as file:  # a FIFO of that name would be waited for without end
            data = file.read(LONGEST_BYTES + 1)
    if len(data) > LONGEST_BYTES:
        raise UnusableCheckpoint(f"{path} is longer than {LONGEST_BYTES} bytes: it is no manifest; delete it")
    return decode(data, path, part=part)


def is_without(path: StoragePath, shards: Iterable[str], *, part: bool = False) -> bool:
    """Whether the manifest of this path surely names none of these files: there is none, or it has others. On any doubt it is not. part: as in `read`."""
    try:
        named = {shard.name for shard in read(path, part=part).shards}
    except FileNotFoundError:
        return True
    except (OSError, UnusableCheckpoint):
        return False
    return named.isdisjoint(shards)


def decode(data: bytes, path: StoragePath, *, part: bool = False) -> Manifest:
    """As `read`; `path` is named in what is raised."""
    try:
        plain = _json(data)
        version = _count(plain, "version")
        if version > FORMAT:
            raise UnusableCheckpoint(f"{path} has format version {version}, this program reads up to {FORMAT}: load it with a newer Eagle Eye")
        return _of_file(_of_version_1(plain) if version == 1 else _checked(plain, part), path.name)
    except UnusableCheckpoint:
        raise
    except RecursionError:
        raise UnusableCheckpoint(f"{path} is no manifest of a checkpoint: it is nested too deep. {_REMEDY}") from None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UnusableCheckpoint(f"{path} is no whole manifest of a checkpoint: {said}. {_REMEDY}") from error


def _of_file(manifest: Manifest, name: str) -> Manifest:
    """Raises ValueError where the file is of another step: by its name it is found, kept and deleted."""
    named = _NAMED_STEP.match(name)
    if named and int(named[1]) != manifest.step:
        raise ValueError(f"it is of step {manifest.step}, and its name says {int(named[1])}")
    return manifest


_REMEDY = "Load an older step, or copy the checkpoint anew from where it is whole"


def _json(data: bytes) -> dict[str, Any]:
    text, mark, seal = data.decode().rpartition(_SEAL)
    text = f"{text}}}" if mark else seal
    if mark and seal != f"{zlib.crc32(text.encode())}}}":
        raise ValueError("the manifest was changed since it was written (CRC-32)")
    plain: dict[str, Any] = json.loads(text)
    if not isinstance(plain, dict):
        raise TypeError("it is no JSON object")
    version = plain.get("version")
    newer = isinstance(version, int) and version > FORMAT  # who knows how that is sealed
    if version != 1 and not newer:  # version 1 held NaN and infinite numbers as Python writes them
        plain = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        if not mark:
            raise ValueError("its checksum is missing: the end of the file was cut off")
    return plain


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _of_version_1(plain: dict[str, Any]) -> Manifest:
    name = Path(plain["data"]).name  # whatever folder it names: only the one of the manifest is read
    if not name.isprintable():
        raise ValueError(f"the shard {name!r} is no name of a file")
    _require_nested(plain.get("rest"))
    shard = ShardFile(name, _count(plain, "bytes"), _count(plain, "crc32"))
    return Manifest(
        step=_step(plain), epoch=_count(plain, "epoch"), finite=_truth(plain, "finite"), saved=_seconds(plain.get("saved", 0.0)), shards=(shard,),
        tensors={}, rest=plain.get("rest"), version=1,
    )  # fmt: skip


def _checked(plain: dict[str, Any], part: bool) -> Manifest:
    shards = tuple(_shard(each) for each in _list(plain, "shards"))
    if len({shard.name for shard in shards}) != len(shards):
        raise ValueError("two shards have one file")
    tensors = {name: _tensor(name, each, len(shards)) for name, each in _dict(plain, "tensors").items()}
    if not part:
        for name, tensor in tensors.items():
            require_whole(name, tensor)
    rest, ranks = _dict(plain, "rest"), _dict(plain, "ranks")
    _require_nested(rest, ranks)
    if not part:
        _require_all_tensors(tensors, rest, ranks)
    return Manifest(
        step=_step(plain), epoch=_count(plain, "epoch"), finite=_truth(plain, "finite"), saved=_seconds(plain["saved"]), shards=shards, tensors=tensors,
        rest=rest, world_size=_count(plain, "world_size"), layout={name: _whole_number(size, f"layout {name!r}") for name, size in _dict(plain, "layout").items()},
        data_position=json_position.original(plain["data_position"]), ranks=ranks,
    )  # fmt: skip


class _AnyTensor(dict[str, None]):
    """Stands for the tensors of a state of which only the nesting is looked at."""

    def __missing__(self, name: str) -> None:
        return None


def _require_nested(*states: Any) -> None:
    """Raises ValueError where no state can be made of it again: who lists checkpoints says so then, not only who loads them."""
    for state in states:
        try:
            state_tree.unflatten(_AnyTensor(), state)
        except (ValueError, TypeError) as error:
            raise ValueError(f"it does not say how its state is nested: {error}") from error


def _require_all_tensors(tensors: Mapping[str, ManifestTensor], rest: Mapping[str, Any], ranks: Mapping[str, Any]) -> None:
    """Raises ValueError where the state refers to a tensor that nobody wrote."""
    for name in _references(rest, ranks):
        if name not in tensors:
            raise ValueError(f"its state refers to the tensor {name!r}, which no rank wrote")


def _references(rest: Mapping[str, Any], ranks: Mapping[str, Any]) -> Iterator[str]:
    yield from state_tree.references(rest)
    for own in ranks.values():
        yield from state_tree.references(own)


def _shard(plain: Any) -> ShardFile:
    if not isinstance(plain, dict):
        raise TypeError("a shard is no JSON object")
    name, digest = plain["file"], plain["digest"]
    if not isinstance(name, str) or not is_plain_name(name):
        raise ValueError(f"the shard {name!r} is no name of a {DATA} file in the folder of the manifest")
    kind, _, value = digest.partition(":") if isinstance(digest, str) else ("", "", "")
    if kind != "crc32" or len(value) != 8:
        raise ValueError(f"the digest {digest!r} of {name} is of no known kind")
    sums = {tensor: int(each, 16) for tensor, each in _dict(plain, "tensor_crc32").items()} if "tensor_crc32" in plain else {}
    shard = ShardFile(name, _count(plain, "bytes"), int(value, 16), _count(plain, "rank"), tensor_crc32=sums)
    return replace(shard, chunks=_chunk_sums(plain, shard)) if "chunk_bytes" in plain else shard


def _chunk_sums(plain: Mapping[str, Any], shard: ShardFile) -> ChunkSums:
    size, crc32 = _count(plain, "chunk_bytes"), tuple(int(each, 16) for each in _list(plain, "chunk_crc32"))
    chunks = -(-shard.bytes // size) if size >= min(shard.bytes, FEWEST_CHUNK_BYTES) > 0 else 0
    fits = len(crc32) == chunks  # first of all: a few bytes may claim more chunks than memory holds
    if not fits or crc32_sums.joined(zip(crc32, _chunk_sizes(shard.bytes, size), strict=True)) != shard.crc32:
        raise ValueError(f"the sums of the chunks of {shard.name} do not fit its digest")
    return ChunkSums(size, crc32)


def _chunk_sizes(whole: int, size: int) -> Iterator[int]:
    return (min(size, whole - begin) for begin in range(0, whole, size)) if size else iter(())


def is_plain_name(name: str) -> bool:
    """Whether it is the name of a shard in the same folder: it leads nowhere else, is not hidden, and moves no terminal that shows it."""
    return name.endswith(DATA) and not name.startswith(".") and name.isprintable() and not any(each in name for each in "/\\") and len(name.encode(errors="replace")) < 256


def _tensor(name: str, plain: Any, shards: int) -> ManifestTensor:
    dtype, shape = plain["dtype"], _shape(plain["shape"], name)
    if dtype not in ELEMENT_BITS:
        raise ValueError(f"tensor {name!r} has the data type {dtype!r}, which this program does not know: load it with a newer Eagle Eye")
    pieces = tuple(_piece(each, name, len(shape), shards) for each in plain["pieces"])
    return ManifestTensor(dtype, shape, pieces)


def require_whole(name: str, tensor: ManifestTensor) -> None:
    """Raises ValueError where pieces of it are missing, or are there twice."""
    wrong = gap(tensor.shape, [piece.region for piece in tensor.pieces])
    if wrong:
        raise ValueError(f"tensor {name!r} is not whole: {wrong}")


def _piece(plain: Any, name: str, dimensions: int, shards: int) -> TensorPiece:
    shard, offsets, shape = plain
    region = Region(_shape(offsets, name), _shape(shape, name))
    if _whole_number(shard, f"tensor {name!r}: a shard") >= shards or {len(region.offsets), len(region.shape)} != {dimensions}:
        raise ValueError(f"tensor {name!r} has a piece in a shard or dimension that is not there")
    return TensorPiece(shard, region)


def _shape(plain: Any, name: str) -> Extents:
    if not isinstance(plain, list) or len(plain) > _MOST_DIMENSIONS:
        raise TypeError(f"tensor {name!r} has no usable shape")
    return tuple(_whole_number(each, f"tensor {name!r}: a length") for each in plain)


def _whole_number(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{what} is {value!r}, not a number from 0 on")
    return value


def _count(plain: Mapping[str, Any], key: str) -> int:
    return _whole_number(plain[key], repr(key))


def _step(plain: Mapping[str, Any]) -> int:
    step = _count(plain, "step")
    if step >= MOST_STEPS:
        raise ValueError(f"its step is {step}, and no step is {MOST_STEPS} or more")
    return step


def _truth(plain: Mapping[str, Any], key: str) -> bool:
    if not isinstance(plain[key], bool):
        raise TypeError(f"{key!r} is neither true nor false")
    return bool(plain[key])


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"'saved' is {value!r}, no time")
    return float(value)


def _list(plain: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(plain[key], list):
        raise TypeError(f"{key!r} is no list")
    return list(plain[key])


def _dict(plain: Mapping[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(plain[key], dict):
        raise TypeError(f"{key!r} is no JSON object")
    return dict(plain[key])
