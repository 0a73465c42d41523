"""A shard: a safetensors file with the tensors of one rank, and its CRC-32.

It is written in chunks, by several threads, from the tensors' own memory, while its checksum is computed: a second copy of the state would need as much
memory again. It is read into memory once; what was checked is what is loaded. (safetensors' own reader maps the file: a page that the storage
cannot deliver is then a SIGBUS, which ends the trainer, in place of an error.)
In an object store each chunk has a checksum of its own, so that who needs a part of the shard reads, and checks, no more than that.
Only tensors need torch; to check a file the standard library is enough.
"""

import json
import math
import mmap
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eagle_eye.regular_file import open_regular
from eagle_eye.training import atomic_file, object_path
from eagle_eye.training.elastic.train_state import tensor_bytes
from eagle_eye.training.object_path import ObjectPath, StoragePath
from eagle_eye.training.thread_map import thread_map

from . import crc32_sums
from .manifest import ELEMENT_BITS, ChunkSums, ShardFile, UnusableCheckpoint
from .shared_chunks import SharedChunks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK_BYTES = 4 << 20
"""Written or checked at once, in a file: what was just summed up is still in the processor's cache."""
THREADS = 4
"""That write or read a file."""
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
    part: Callable[[int, int], bytes | memoryview]
    """Its content from one byte to before another; called in several threads."""


class ByteSpan(NamedTuple):
    """Bytes of a shard, from one to before another."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


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


def write(path: StoragePath, tensors: Mapping[str, "Tensor"], rank: int = 0, *, sum_each: bool = False) -> ShardFile:
    """Write contiguous tensors of this process's memory. Raises OSError, and then leaves nothing behind. `sum_each`: with the CRC-32 of each tensor."""
    return write_tensors(path, [_content_of(name, tensor) for name, tensor in tensors.items()], rank, sum_each=sum_each)


def write_tensors(path: StoragePath, tensors: Sequence[TensorContent], rank: int = 0, *, sum_each: bool = False) -> ShardFile:
    """As `write`, of tensors that need not be torch's."""
    content = _ShardContent(tensors, sum_each=sum_each)
    if isinstance(path, ObjectPath):
        shard = _upload(path, content.size, content.joined, rank)
    else:
        chunks = chunks_of(content.size, CHUNK_BYTES)
        with atomic_file.replacement(Path(path)) as file:
            os.truncate(file.fileno(), content.size)
            sums = thread_map(lambda chunk: _write_chunk(file.fileno(), content, chunk), chunks, THREADS)
        shard = ShardFile(path.name, content.size, _joined(sums, chunks), rank)
    return replace(shard, tensor_crc32=content.tensor_crc32()) if sum_each else shard


def _write_chunk(file: int, content: "_ShardContent", chunk: ByteSpan) -> int:
    checksum, at = 0, chunk.begin
    for part in content.parts(chunk):
        checksum, left = content.summed(part, checksum), memoryview(part.data)
        while left:
            done = os.pwrite(file, left, at)
            left, at = left[done:], at + done
    return checksum


def _upload(path: ObjectPath, size: int, content: Callable[[ByteSpan], bytes], rank: int) -> ShardFile:
    """`content` is called in several threads."""
    chunk_bytes = object_chunk_bytes(size)
    chunks = chunks_of(size, chunk_bytes)
    sums = [0] * len(chunks)

    def part_of(index: int) -> bytes:
        data = content(chunks[index])
        sums[index] = zlib.crc32(data)
        return data

    path.upload(len(chunks), part_of)
    return ShardFile(path.name, size, _joined(sums, chunks), rank, ChunkSums(chunk_bytes, tuple(sums)))


def object_chunk_bytes(size: int) -> int:
    """Of an object of so many bytes: it has at most object_path.MOST_PARTS of them."""
    return object_path.PART_BYTES * max(1, -(-size // (object_path.PART_BYTES * object_path.MOST_PARTS)))


def chunks_of(size: int, chunk_bytes: int) -> list[ByteSpan]:
    """All of a shard, in order."""
    return [ByteSpan(begin, min(begin + chunk_bytes, size)) for begin in range(0, size, chunk_bytes)]


def _joined(sums: Sequence[int], chunks: Sequence[ByteSpan]) -> int:
    return crc32_sums.joined(zip(sums, (chunk.size for chunk in chunks), strict=True))


def _content_of(name: str, tensor: "Tensor") -> TensorContent:
    size = tensor.numel() * tensor.element_size()
    return TensorContent(name, dtype_of(tensor, name), tuple(tensor.shape), size, lambda begin, end: tensor_bytes.view(tensor)[begin:end])


class _ShardPart(NamedTuple):
    """Some bytes of a shard that is written."""

    tensor: int
    """Its place among the tensors; -1: of the header."""
    begin: int
    """Within the tensor."""
    data: bytes | memoryview


class _ShardContent:
    """The bytes of a safetensors file: its header, and tensors. `sum_each`: the CRC-32 of each tensor is kept, besides that of the file."""

    def __init__(self, tensors: Sequence[TensorContent], *, sum_each: bool) -> None:
        # widest elements first, as safetensors does: every tensor begins at a multiple of its element's size
        self._tensors = sorted(tensors, key=lambda each: (-ELEMENT_BITS[each.dtype], each.name))
        ends = list(accumulate((each.size for each in self._tensors), initial=0))
        header = {
            each.name: {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [begin, end]} for each, (begin, end) in zip(self._tensors, pairwise(ends), strict=True)
        }  # fmt: skip
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text
        self._begins = [len(self._header) + end for end in ends]
        """Of each tensor, and last the size of the file."""
        self._sums: list[dict[int, tuple[int, int]]] | None = [{} for _ in tensors] if sum_each else None
        """Of each tensor: CRC-32 and bytes of its parts, by where they begin."""

    @property
    def size(self) -> int:
        return self._begins[-1]

    def joined(self, chunk: ByteSpan) -> bytes:
        """What is from one byte to before another, in one piece."""
        parts = list(self.parts(chunk))
        if self._sums is not None:
            for part in parts:
                self.summed(part, 0)
        return b"".join(part.data for part in parts)

    def summed(self, part: _ShardPart, before: int) -> int:
        """The CRC-32 of what came before the part and of the part. That of the part alone, which is the same where nothing came before, is kept if it is to be."""
        checksum = zlib.crc32(part.data, before)
        if self._sums is not None and part.tensor >= 0:
            self._sums[part.tensor][part.begin] = (zlib.crc32(part.data) if before else checksum), len(part.data)
        return checksum

    def tensor_crc32(self) -> dict[str, int]:
        """Of each tensor, by name, once all parts were summed."""
        return {tensor.name: crc32_sums.joined(each for _, each in sorted(sums.items())) for tensor, sums in zip(self._tensors, self._sums or (), strict=True)}

    def parts(self, chunk: ByteSpan) -> Iterator[_ShardPart]:
        """What is from one byte to before another, in order."""
        if chunk.begin < len(self._header):
            yield _ShardPart(-1, 0, self._header[chunk.begin : chunk.end])
        for index in range(max(0, bisect_right(self._begins, chunk.begin) - 1), len(self._tensors)):
            start, tensor = self._begins[index], self._tensors[index]
            if start >= chunk.end:
                return
            begin, end = max(0, chunk.begin - start), min(tensor.size, chunk.end - start)
            if begin < end:
                yield _ShardPart(index, begin, tensor.part(begin, end))


def verify(folder: StoragePath, shard: ShardFile, advance: Callable[[int], None] = lambda _: None) -> None:
    """Compare a shard with its manifest, without loading it. Raises UnusableCheckpoint, OSError.

    `advance` is called with the bytes that were checked since the last call.
    """
    for chunk in checked_chunks(folder, shard):
        advance(len(chunk))


def checked_chunks(folder: StoragePath, shard: ShardFile) -> Iterator[bytes]:
    """Its content, in order; raises UnusableCheckpoint at the end if that is not what was written."""
    path, sums = folder / shard.name, list[int]()
    with _opened(path, shard) as source:
        chunks = chunks_of(shard.bytes, source.chunk_bytes)

        def fetch(chunk: ByteSpan) -> tuple[int, bytearray]:
            data = bytearray(chunk.size)
            return source.read(memoryview(data), chunk.begin), data

        for first in range(0, len(chunks), source.threads):
            for checksum, data in thread_map(fetch, chunks[first : first + source.threads], source.threads):
                sums.append(checksum)
                yield bytes(data)
    _compare(path, shard, _joined(sums, chunks))


class DescribedTensor(NamedTuple):
    """What the header of a shard says of a tensor."""

    dtype: str
    shape: tuple[int, ...]


def header(folder: StoragePath, shard: ShardFile) -> dict[str, DescribedTensor]:
    """What a shard says that it holds, by name, read as whoever loads it reads it, without the tensors. Raises UnusableCheckpoint, OSError."""
    path = folder / shard.name
    with _opened(path, shard) as source:
        content = bytearray(min(8, shard.bytes))
        source.read(memoryview(content), 0)
        content += bytes(min(int.from_bytes(content, "little"), LONGEST_HEADER_BYTES, shard.bytes - len(content)))
        with memoryview(content) as view:
            source.read(view[8:], 8)
    return {name: DescribedTensor(each["dtype"], tuple(each["shape"])) for name, each in _header_of(content, path, shard.bytes).items()}


def copy(folder: StoragePath, shard: ShardFile, target: StoragePath, advance: Callable[[int], None]) -> ShardFile:
    """To another folder, with the same name; each byte is compared on the way. Raises UnusableCheckpoint, OSError, and then leaves nothing behind. `advance`: as in `verify`."""
    path = target / shard.name
    if not isinstance(path, ObjectPath):
        atomic_file.replace(Path(path), _counted(checked_chunks(folder, shard), advance))
        return shard
    with _opened(folder / shard.name, shard) as source:

        def content(chunk: ByteSpan) -> bytes:
            data = bytearray(chunk.size)
            source.read(memoryview(data), chunk.begin)
            advance(chunk.size)
            return bytes(data)

        copied = _upload(path, shard.bytes, content, shard.rank)
    try:
        _compare(source.path, shard, copied.crc32)
    except UnusableCheckpoint:
        path.unlink(missing_ok=True)
        raise
    return copied


def _counted(chunks: Iterator[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        advance(len(chunk))


def read(folder: StoragePath, shard: ShardFile) -> bytearray:
    """Its content, as its manifest describes it. Raises UnusableCheckpoint, OSError."""
    path = folder / shard.name
    with _opened(path, shard) as source:
        content = bytearray(shard.bytes)  # of no more than the file has: it was compared
        chunks = chunks_of(shard.bytes, source.chunk_bytes)
        with memoryview(content) as view:
            sums = thread_map(lambda chunk: source.read(view[chunk.begin : chunk.end], chunk.begin), chunks, source.threads)
    _compare(path, shard, _joined(sums, chunks))
    return content


def read_needed(folder: StoragePath, shard: ShardFile, needed: Callable[[Mapping[str, ByteSpan]], Sequence[ByteSpan]]) -> "bytearray | mmap.mmap":
    """As `read`; of a shard whose chunks have sums of their own only those that are needed, each once. What was not read is zero.

    `needed`: from where the tensors lie, by name, what of the shard is.
    """
    if shard.chunks is None:
        return read(folder, shard)
    path, size = folder / shard.name, shard.chunks.bytes
    there = set[int]()
    with _opened(path, shard, shared=True) as source, memoryview(content := mmap.mmap(-1, shard.bytes)) as view:  # what is not written to takes no memory

        def fetch(*spans: ByteSpan) -> None:
            touched = {index for span in spans if span.size > 0 for index in range(span.begin // size, -(-min(span.end, shard.bytes) // size))}
            thread_map(lambda index: _read_chunk(source, view, shard, index), sorted(touched - there), source.threads)
            there.update(touched)

        fetch(ByteSpan(0, 8))
        begin = 8 + int.from_bytes(view[:8], "little")
        fetch(ByteSpan(8, begin))
        places = {name: ByteSpan(begin + each["data_offsets"][0], begin + each["data_offsets"][1]) for name, each in _header_of(content, path).items()}
        fetch(*needed(places))
    return content


def _read_chunk(source: "_ShardSource", view: memoryview, shard: ShardFile, index: int) -> None:
    assert shard.chunks is not None
    begin, end = index * shard.chunks.bytes, min((index + 1) * shard.chunks.bytes, shard.bytes)
    checksum, written = source.read(view[begin:end], begin), shard.chunks.crc32[index]
    if checksum != written and source.alone is not None:
        checksum = source.alone.read(view[begin:end], begin)
    if checksum != written:
        raise _changed(source.path, f"the CRC-32 of its bytes {begin} to {end}", checksum, written)


class _ShardSource(NamedTuple):
    """A shard that is being read."""

    path: StoragePath
    size: int
    chunk_bytes: int
    threads: int
    read_into: Callable[[memoryview, int], int]
    """Fill this with what is there from that byte on; how many bytes. Called in several threads."""
    alone: "_ShardSource | None" = None
    """The shard itself, where this one is what another worker of the node may have fetched of it."""

    def read(self, view: memoryview, begin: int) -> int:
        """What is there from `begin` on; returns its CRC-32. Raises UnusableCheckpoint where the shard ends before."""
        done = 0
        while done < len(view):
            count = self.read_into(view[done:], begin + done)
            if not count:
                raise _cut(self.path, begin + done, self.size)
            done += count
        return zlib.crc32(view)


@contextmanager
def _opened(path: StoragePath, shard: ShardFile, *, shared: bool = False) -> Iterator[_ShardSource]:
    """`shared`: what another worker of this node has just fetched of an object will do; each chunk is checked by itself. Nothing of a file of another size is read: what a manifest does not describe is nobody's."""
    if isinstance(path, ObjectPath):
        with _is_there(path):
            _require_size(path, path.stat().st_size, shard)
        alone = _ShardSource(path, shard.bytes, object_chunk_bytes(shard.bytes), object_path.THREADS, _range_reader(path, path.read_range))
        chunks = SharedChunks.here() if shared else None
        yield alone if chunks is None else alone._replace(read_into=_range_reader(path, _shared_range(path, shard, chunks)), alone=alone)
        return
    with _is_there(path):
        file = open_regular(path)
    try:
        _require_size(path, os.fstat(file).st_size, shard)
        yield _ShardSource(path, shard.bytes, CHUNK_BYTES, THREADS, lambda view, at: os.preadv(file, [view], at))
    finally:
        os.close(file)


@contextmanager
def _is_there(path: StoragePath) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UnusableCheckpoint(f"{path} is missing. {_ELSEWHERE}") from None


def _range_reader(path: ObjectPath, read_range: Callable[[int, int], bytes]) -> Callable[[memoryview, int], int]:
    def read_into(view: memoryview, at: int) -> int:
        with _is_there(path):
            data = read_range(at, at + len(view))
        view[: len(data)] = data
        return len(data)

    return read_into


def _shared_range(path: ObjectPath, shard: ShardFile, chunks: SharedChunks) -> Callable[[int, int], bytes]:
    """A shard of another save never has the same name, sum and size."""
    name = f"{path} {shard.crc32:08x} {shard.bytes}"
    return lambda begin, end: chunks.read(name, begin, end - begin, lambda: path.read_range(begin, end))


def _require_size(path: StoragePath, size: int, shard: ShardFile) -> None:
    if size != shard.bytes:
        raise _cut(path, size, shard.bytes)


def _cut(path: StoragePath, found: int, expected: int) -> UnusableCheckpoint:
    how = "is cut off" if found < expected else "is larger than its manifest says"
    return UnusableCheckpoint(f"{path} {how}: it has {found} bytes, and {expected} were written. {_ELSEWHERE}")


def _compare(path: StoragePath, shard: ShardFile, checksum: int) -> None:
    if checksum != shard.crc32:
        raise _changed(path, "its CRC-32", checksum, shard.crc32)


def _changed(path: StoragePath, what: str, found: int, written: int) -> UnusableCheckpoint:
    return UnusableCheckpoint(f"{path} was changed since it was written: {what} is {found:08x}, and {written:08x} was written. {_ELSEWHERE}")


def _header_of(content: "bytearray | mmap.mmap", path: StoragePath, size: int | None = None) -> dict[str, Any]:
    """What is said of each tensor. `size`: of the file, of which no more than the header may be given. Raises UnusableCheckpoint for what is no safetensors file."""
    size = len(content) if size is None else size
    with _no_safetensors(path):
        length = int.from_bytes(content[:8], "little")
        if size < 8 or length > min(LONGEST_HEADER_BYTES, size - 8):
            raise ValueError("its header is longer than the file")
        header: dict[str, Any] = json.loads(bytes(content[8 : 8 + length]))
        header.pop("__metadata__", None)
        _require_no_holes(sorted(tuple(each["data_offsets"]) for each in header.values()), size - 8 - length)
        for name, each in header.items():
            _require_described(name, each)
        return header


def _require_described(name: str, described: Mapping[str, Any]) -> None:
    """Raises ValueError, TypeError, KeyError where no tensor can be made of it."""
    kind, shape, (begin, end) = described["dtype"], described["shape"], described["data_offsets"]
    if kind not in ELEMENT_BITS:
        raise ValueError(f"tensor {name!r} has the data type {kind!r}, which this program does not know")
    if not isinstance(shape, list) or not all(type(each) is int and each >= 0 for each in [*shape, begin, end]):
        raise ValueError(f"tensor {name!r} has no usable shape or place")
    if math.prod(shape) * ELEMENT_BITS[kind] // 8 != end - begin:
        raise ValueError(f"tensor {name!r} has {end - begin} bytes, which is not its shape")


@contextmanager
def _no_safetensors(path: StoragePath) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:  # RecursionError is a RuntimeError
        raise UnusableCheckpoint(f"{path} is no safetensors file: {error}. {_ELSEWHERE}") from error


def tensors_in(content: "bytearray | mmap.mmap", path: StoragePath) -> dict[str, "Tensor"]:
    """The tensors of a shard; they share the memory of `content`. Raises UnusableCheckpoint for what is no safetensors file."""
    header = _header_of(content, path)
    with _no_safetensors(path):
        begin = 8 + int.from_bytes(content[:8], "little")
        return {name: _tensor(content, begin, each) for name, each in header.items()}


def _require_no_holes(spans: list[tuple[int, int]], size: int) -> None:
    ends = [(0, 0), *spans, (size, size)]
    if any(before[1] != after[0] or after[1] < after[0] for before, after in pairwise(ends)):
        raise ValueError("its tensors overlap, or leave a hole")


def _tensor(content: "bytearray | mmap.mmap", start: int, described: Mapping[str, Any]) -> "Tensor":
    import torch

    shape, (begin, end) = described["shape"], described["data_offsets"]
    dtype = torch_dtype(described["dtype"])
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(content, dtype=torch.uint8, count=end - begin, offset=start + begin)
    if (start + begin) % dtype.itemsize:
        raw = raw.clone()  # a file of another writer
    return raw.view(dtype).view(shape)
