"""A shard: a safetensors file with the tensors of one rank, and its CRC-32.

It is written in one pass, from the tensors' own memory, while its checksum is computed: a second copy of the state would need as much memory
again. It is read into memory once; what was checked is what is loaded. (safetensors' own reader maps the file: a page that the storage
cannot deliver is then a SIGBUS, which ends the trainer, in place of an error.)
Only tensors need torch; to check a file the standard library is enough.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eagle_eye.regular_file import open_regular
from eagle_eye.training import atomic_file
from eagle_eye.training.elastic.train_state import tensor_bytes

from .manifest import ELEMENT_BITS, ShardFile, UnusableCheckpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK_BYTES = 4 << 20
"""Written or checked at once: what was just summed up is still in the processor's cache."""
LONGEST_HEADER_BYTES = 100_000_000
"""As safetensors has it."""
_TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool", "U64": "uint64", "U32": "uint32", "U16": "uint16", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "C64": "complex64",
}  # fmt: skip
_DTYPES = {f"torch.{torch_name}": name for name, torch_name in _TORCH_NAMES.items()}
_ELSEWHERE = "Load an older step, or copy the checkpoint anew from where it is whole"


class TensorContent(NamedTuple):
    """A tensor that is to be written, whoever has it."""

    name: str
    dtype: str
    """As safetensors calls it, one of ELEMENT_BITS."""
    shape: tuple[int, ...]
    size: int
    """In bytes."""
    chunks: Callable[[], Iterator[bytes | memoryview]]
    """Its content, in order, in pieces of CHUNK_BYTES at the most."""


def dtype_of(tensor: "Tensor", name: str) -> str:
    """As safetensors calls it. Raises TypeError for one that it has no word for."""
    return dtype_named(str(tensor.dtype), name)


def dtype_named(torch_name: str, name: str) -> str:
    """As safetensors calls what torch calls so, such as torch.float32, of the tensor `name`. Raises TypeError for one that it has no word for."""
    found = _DTYPES.get(torch_name)
    if found is None:
        raise TypeError(f"a checkpoint cannot hold {torch_name} at {name!r}: convert it to one of {', '.join(sorted(_DTYPES))}")
    return found


def torch_dtype(name: str) -> "torch.dtype":
    """Of a data type as safetensors calls it, one of ELEMENT_BITS."""
    import torch

    found: torch.dtype = getattr(torch, _TORCH_NAMES[name])
    return found


def write(path: Path, tensors: Mapping[str, "Tensor"]) -> tuple[int, int]:
    """Write contiguous tensors of this process's memory; returns bytes and CRC-32. Raises OSError, and then leaves nothing behind."""
    return write_tensors(path, [_content_of(name, tensor) for name, tensor in tensors.items()])


def write_tensors(path: Path, tensors: Sequence[TensorContent]) -> tuple[int, int]:
    """As `write`, of tensors that need not be torch's."""
    checksum = size = 0

    def summed() -> Iterator[bytes | memoryview]:
        nonlocal checksum, size
        for chunk in _chunks(tensors):
            checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
            yield chunk

    atomic_file.replace(path, summed())
    return size, checksum


def _content_of(name: str, tensor: "Tensor") -> TensorContent:
    size = tensor.numel() * tensor.element_size()

    def chunks() -> Iterator[bytes | memoryview]:
        view = tensor_bytes.view(tensor)
        yield from (view[begin : begin + CHUNK_BYTES] for begin in range(0, len(view), CHUNK_BYTES))

    return TensorContent(name, dtype_of(tensor, name), tuple(tensor.shape), size, chunks)


def _chunks(tensors: Sequence[TensorContent]) -> Iterator[bytes | memoryview]:
    # widest elements first, as safetensors does: every tensor begins at a multiple of its element's size
    ordered = sorted(tensors, key=lambda each: (-ELEMENT_BITS[each.dtype], each.name))
    header, end = {}, 0
    for each in ordered:
        begin, end = end, end + each.size
        header[each.name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for each in ordered:
        yield from each.chunks()


def verify(folder: Path, shard: ShardFile, advance: Callable[[int], None] = lambda _: None) -> None:
    """Compare a shard with its manifest, without loading it. Raises UnusableCheckpoint, OSError.

    `advance` is called with the bytes that were checked since the last call.
    """
    for chunk in checked_chunks(folder, shard):
        advance(len(chunk))


def checked_chunks(folder: Path, shard: ShardFile) -> Iterator[bytes]:
    """Its content; raises UnusableCheckpoint at the end if that is not what was written."""
    path, checksum = folder / shard.name, 0
    with _open(folder, shard) as file:
        left = shard.bytes
        while left:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise _cut(path, shard.bytes - left, shard.bytes)
            checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
            yield chunk
    _compare(path, shard, checksum)


def read(folder: Path, shard: ShardFile) -> bytearray:
    """Its content, as its manifest describes it. Raises UnusableCheckpoint, OSError."""
    path, checksum, done = folder / shard.name, 0, 0
    with _open(folder, shard) as file:
        content = bytearray(shard.bytes)  # of no more than the file has: it was compared
        with memoryview(content) as view:
            while done < shard.bytes:
                count = file.readinto(view[done : done + CHUNK_BYTES])
                if not count:
                    raise _cut(path, done, shard.bytes)
                checksum, done = zlib.crc32(view[done : done + count], checksum), done + count
    _compare(path, shard, checksum)
    return content


def _open(folder: Path, shard: ShardFile) -> Any:
    """For reading, unbuffered. Nothing of a file of another size is read: what a manifest does not describe is nobody's."""
    path = folder / shard.name
    try:
        file = os.fdopen(open_regular(path), "rb", buffering=0)
    except FileNotFoundError:
        raise UnusableCheckpoint(f"{path} is missing. {_ELSEWHERE}") from None
    size = os.fstat(file.fileno()).st_size
    if size != shard.bytes:
        file.close()
        raise _cut(path, size, shard.bytes)
    return file


def _cut(path: Path, found: int, expected: int) -> UnusableCheckpoint:
    how = "is cut off" if found < expected else "is larger than its manifest says"
    return UnusableCheckpoint(f"{path} {how}: it has {found} bytes, and {expected} were written. {_ELSEWHERE}")


def _compare(path: Path, shard: ShardFile, checksum: int) -> None:
    if checksum != shard.crc32:
        raise UnusableCheckpoint(f"{path} was changed since it was written: its CRC-32 is {checksum:08x}, and {shard.crc32:08x} was written. {_ELSEWHERE}")


def tensors_in(content: bytearray, path: Path) -> dict[str, "Tensor"]:
    """The tensors of a shard; they share the memory of `content`. Raises UnusableCheckpoint for what is no safetensors file."""
    try:
        length = int.from_bytes(content[:8], "little")
        if len(content) < 8 or length > min(LONGEST_HEADER_BYTES, len(content) - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(bytes(content[8 : 8 + length]))
        header.pop("__metadata__", None)
        begin = 8 + length
        _require_no_holes(sorted(tuple(each["data_offsets"]) for each in header.values()), len(content) - begin)
        return {name: _tensor(content, begin, name, each) for name, each in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise UnusableCheckpoint(f"{path} is no safetensors file: {error}. {_ELSEWHERE}") from error


def _require_no_holes(spans: list[tuple[int, int]], size: int) -> None:
    ends = [(0, 0), *spans, (size, size)]
    if any(before[1] != after[0] or after[1] < after[0] for before, after in pairwise(ends)):
        raise ValueError("its tensors overlap, or leave a hole")


def _tensor(content: bytearray, start: int, name: str, described: Mapping[str, Any]) -> "Tensor":
    import torch

    kind, shape, (begin, end) = described["dtype"], described["shape"], described["data_offsets"]
    if kind not in ELEMENT_BITS:
        raise ValueError(f"tensor {name!r} has the data type {kind!r}, which this program does not know")
    dtype = torch_dtype(kind)
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise ValueError(f"tensor {name!r} has {end - begin} bytes, which is not its shape")
    raw = torch.frombuffer(content, dtype=torch.uint8, count=end - begin, offset=start + begin)
    if (start + begin) % dtype.itemsize:
        raw = raw.clone()  # a file of another writer
    return raw.view(dtype).view(shape)
