import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from eagle_eye.training.checkpoint import shard_file
from eagle_eye.training.checkpoint.manifest import ELEMENT_BITS, ShardFile, UnusableCheckpoint

DTYPES = [getattr(torch, name) for name in shard_file._TORCH_NAMES.values()]


def tensors() -> dict[str, torch.Tensor]:
    """One of each data type, and odd shapes."""
    bits = torch.arange(3 * 8, dtype=torch.uint8)
    each = {f"of {dtype}": bits.view(dtype).clone() if dtype != torch.bool else bits.bool() for dtype in DTYPES}
    return each | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "table": torch.arange(6.0).reshape(2, 3), 'a "name" ü': torch.ones(1, dtype=torch.bool)}


@pytest.fixture
def written(tmp_path: Path) -> ShardFile:
    return shard_file.write(tmp_path / "a.safetensors", tensors())


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        (found[name].dtype, found[name].shape) == (each.dtype, each.shape)
        and torch.equal(found[name].reshape(-1).view(torch.uint8), each.reshape(-1).view(torch.uint8))
        for name, each in expected.items()
    )


def test_the_library_reads_what_is_written_and_what_it_writes_is_read(tmp_path: Path, written: ShardFile) -> None:
    assert same(safetensors.torch.load_file(tmp_path / written.name), tensors())
    assert same(shard_file.tensors_in(shard_file.read(tmp_path, written), tmp_path), tensors())
    theirs = bytearray(safetensors.torch.save(tensors(), metadata={"format": "pt"}))
    assert same(shard_file.tensors_in(theirs, tmp_path), tensors())


def test_data_begin_where_their_elements_may(tmp_path: Path) -> None:
    for length in range(8):
        shard_file.write(tmp_path / "x.safetensors", {"x" * length: torch.ones(1)})
        assert int.from_bytes((tmp_path / "x.safetensors").read_bytes()[:8], "little") % 8 == 0


def test_all_data_types_of_the_manifest_are_known() -> None:
    assert {name: getattr(torch, known).itemsize * 8 for name, known in shard_file._TORCH_NAMES.items()} == ELEMENT_BITS


def test_a_data_type_that_the_format_has_no_word_for_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"torch.complex128 at 'x': convert it"):
        shard_file.write(tmp_path / "x.safetensors", {"x": torch.ones(1, dtype=torch.complex128)})
    assert not list(tmp_path.iterdir())


def test_large_tensors_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_file, "CHUNK_BYTES", 100)
    content = {"x": torch.arange(200.0)}
    shard = shard_file.write(tmp_path / "x.safetensors", content)
    assert same(shard_file.tensors_in(shard_file.read(tmp_path, shard), tmp_path), content)
    told: list[int] = []
    shard_file.verify(tmp_path, shard, told.append)
    assert sum(told) == shard.bytes
    assert len(told) > 8


def flip(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


def cut(data: bytearray) -> None:
    del data[-1]


def append(data: bytearray) -> None:
    data += b"x"


@pytest.mark.parametrize("take", [shard_file.read, shard_file.verify])
@pytest.mark.parametrize(("harm", "said"), [(flip, "was changed since it was written"), (cut, "is cut off"), (append, "is larger than its manifest says")])
def test_a_shard_that_is_not_what_was_written_is_refused(tmp_path: Path, written: ShardFile, take, harm, said: str) -> None:
    path = tmp_path / written.name
    data = bytearray(path.read_bytes())
    harm(data)
    path.write_bytes(data)
    with pytest.raises(UnusableCheckpoint, match=said) as raised:
        take(tmp_path, written)
    assert str(path) in str(raised.value)
    assert "older step" in str(raised.value)


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    shard = shard_file.write(tmp_path / "x.safetensors", {"x": torch.ones(2, dtype=torch.uint8)})
    whole = (tmp_path / shard.name).read_bytes()
    for bit in range(0, 8 * len(whole), 13):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / shard.name).write_bytes(data)
        with pytest.raises(UnusableCheckpoint):
            shard_file.read(tmp_path, shard)


def test_what_is_missing_or_no_file_is_refused_at_once(tmp_path: Path, written: ShardFile) -> None:
    (tmp_path / written.name).unlink()
    with pytest.raises(UnusableCheckpoint, match="is missing"):
        shard_file.read(tmp_path, written)
    os.mkfifo(tmp_path / written.name)
    with pytest.raises(OSError, match="no regular file"):
        shard_file.read(tmp_path, written)


def described(**changes: object) -> bytearray:
    header = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}
    text = json.dumps(header).encode()
    return bytearray(len(text).to_bytes(8, "little") + text + bytes(8))


@pytest.mark.parametrize(
    "content",
    [
        bytearray(), bytearray(b"1234567"), bytearray((1 << 40).to_bytes(8, "little") + b"{}"), bytearray((2).to_bytes(8, "little") + b"[]"),
        described(dtype="PICKLE"), described(shape=[3]), described(shape=[-2]), described(shape="12"), described(data_offsets=[0, 4]), described(data_offsets=[-8, 8]),
        described(data_offsets=[0, 1 << 50]), described(data_offsets=[0]), described(data_offsets=[4, 8]),
    ],
)  # fmt: skip
def test_what_is_no_safetensors_file_is_refused(content: bytearray) -> None:
    with pytest.raises(UnusableCheckpoint, match="is no safetensors file"):
        shard_file.tensors_in(content, Path("x"))
    assert same(shard_file.tensors_in(described(), Path("x")), {"x": torch.zeros(2)}), "twin"


@pytest.mark.parametrize(("spans", "rest"), [([[0, 8]], 8), ([[8, 16]], 8), ([[0, 8], [0, 8]], 0), ([[0, 8], [12, 20]], 12)])
def test_bytes_that_belong_to_no_tensor_or_to_two_are_refused(spans: list[list[int]], rest: int) -> None:
    header = {f"x{place}": {"dtype": "F32", "shape": [2], "data_offsets": span} for place, span in enumerate(spans)}
    text = json.dumps(header).encode()
    with pytest.raises(UnusableCheckpoint, match="overlap, or leave a hole"):
        shard_file.tensors_in(bytearray(len(text).to_bytes(8, "little") + text + bytes(8 + rest)), Path("x"))


def without_bytes(shape: object) -> bytearray:
    text = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return bytearray(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize("shape", [[1000], [], [2, 3], [-1, 0], [1 << 40]])
def test_a_tensor_that_has_elements_and_no_bytes_is_refused(shape: list[int]) -> None:
    """Its values would be whatever the memory held before."""
    with pytest.raises(UnusableCheckpoint, match="is no safetensors file"):
        shard_file.tensors_in(without_bytes(shape), Path("x"))
    for empty in ([0], [0, 4], [4, 0]):
        assert list(shard_file.tensors_in(without_bytes(empty), Path("x"))["x"].shape) == empty, "twin"
