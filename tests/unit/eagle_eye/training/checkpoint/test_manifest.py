import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training.checkpoint import manifest as manifests
from eagle_eye.training.checkpoint.manifest import Manifest, ManifestTensor, ShardFile, TensorPiece, UnusableCheckpoint
from eagle_eye.training.checkpoint.tensor_regions import Region, whole

PATH = Path("somewhere/step-000000000012.json")
WHOLE = Manifest(
    step=12, epoch=3, finite=True, saved=1.5, world_size=2, layout={"dp": 2}, data_position={"sample": 7}, ranks={"1": {"rng": 5}},
    shards=(ShardFile("a.safetensors", 100, 7, 0), ShardFile("b.safetensors", 80, 0xFFFFFFFF, 1)),
    tensors={
        "state.w": ManifestTensor("BF16", (5, 2), (TensorPiece(0, Region((0, 0), (3, 2))), TensorPiece(1, Region((3, 0), (2, 2))))),
        "state.n": ManifestTensor("F32", (), (TensorPiece(0, whole(())),)),
    },
    rest={"w": {"$tensor": "state.w"}, "n": {"$tensor": "state.n"}, "lr": 0.1},
)  # fmt: skip


def test_what_is_written_is_read() -> None:
    assert manifests.decode(manifests.encode(WHOLE), PATH) == WHOLE
    assert (WHOLE.bytes, WHOLE.tensors["state.w"].bytes, WHOLE.tensors["state.n"].bytes) == (180, 20, 4)


def test_a_part_may_have_regions_and_a_checkpoint_may_not() -> None:
    part = replace(WHOLE, tensors=WHOLE.tensors | {"state.w": replace(WHOLE.tensors["state.w"], pieces=WHOLE.tensors["state.w"].pieces[1:])})  # type: ignore[operator]
    data = manifests.encode(part, part=True)
    assert manifests.decode(data, PATH, part=True).step == 12
    with pytest.raises(UnusableCheckpoint, match=r"tensor 'state\.w' is not whole: 4 of 10 elements"):
        manifests.decode(data, PATH)
    with pytest.raises(ValueError, match=r"tensor 'state\.w' is not whole: 4 of 10 elements"):
        manifests.encode(part)


def sealed(text: str) -> bytes:
    """As somebody else would write it, who means it."""
    return f'{text[:-1]}, "manifest_crc32": {zlib.crc32(text.encode())}}}'.encode()


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    plain = json.loads(manifests.encode(WHOLE))
    del plain["manifest_crc32"]
    change(plain)
    return sealed(json.dumps(plain))


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """The last is the value, the others lead to it."""
    *there, key, value = path

    def change(plain: Any) -> None:
        for each in there:
            plain = plain[each]
        plain[key] = value

    return change


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/a.safetensors", "x/a.safetensors", "..\\a.safetensors", "a\0.safetensors", ".a.safetensors", "a\x1b[31m.safetensors", "a\n.safetensors", "a\u202e.safetensors", "", "a", "a.pt", 5, None, "x" * 250 + ".safetensors"])
def test_a_shard_is_a_plain_name_in_the_folder_of_the_manifest(name: object) -> None:
    with pytest.raises(UnusableCheckpoint, match=r"is no name of a \.safetensors file in the folder") as raised:
        manifests.decode(changed(put("shards", 0, "file", name)), PATH)
    assert str(PATH) in str(raised.value)
    assert "older step" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("version", 3), "has format version 3, this program reads up to 2: load it with a newer Eagle Eye"),
        (put("version", "2"), "'version' is '2'"), (put("version", -1), "'version' is -1"), (put("version", True), "'version' is True"),
        (put("tensors", "state.w", "dtype", "F4_X"), "data type 'F4_X', which this program does not know: load it with a newer"),
        (put("tensors", "state.w", "shape", [5, 3]), "10 of 15 elements are there"), (put("tensors", "state.w", "shape", [5, -2]), "not a number from 0 on"),
        (put("tensors", "state.w", "shape", [5, 1.0]), "not a number from 0 on"), (put("tensors", "state.w", "shape", [1] * 65), "no usable shape"),
        (put("tensors", "state.w", "shape", "52"), "no usable shape"), (put("tensors", "state.w", "shape", [1 << 63, 2]), "not a number"),
        (put("tensors", "state.w", "pieces", 0, 0, 2), "not there"), (put("tensors", "state.w", "pieces", 0, 1, [0]), "not there"),
        (put("tensors", "state.w", "pieces", 1, 1, [2, 0]), "there twice"), (put("tensors", "state.w", "pieces", 1, 1, [4, 0]), "lie outside"),
        (put("tensors", "state.w", 5), "no whole manifest"), (put("tensors", []), "'tensors' is no JSON object"), (put("shards", {}), "'shards' is no list"),
        (put("shards", 1, "file", "a.safetensors"), "two shards have one file"), (put("shards", 0, "digest", "md5:00"), "digest 'md5:00'"),
        (put("shards", 0, "digest", "crc32:xxxxxxxx"), "no whole manifest"), (put("shards", 0, "digest", 7), "digest 7"), (put("shards", 0, "bytes", -1), "'bytes' is -1"),
        (put("finite", 1), "neither true nor false"), (put("saved", "now"), "no time"), (put("rest", []), "'rest' is no JSON object"),
        (put("rest", "w", {"$tensor": "state.v"}), "refers to the tensor 'state.v', which no rank wrote"), (put("ranks", "1", [{"$tensor": "x"}]), "refers to the tensor 'x'"),
        (put("rest", "w", {"$float": "abc"}), "does not say how its state is nested: could not convert"), (put("rest", "w", {"$items": 7}), "does not say how its state is nested"),
        (put("rest", "w", [{"$tuple": 5}]), "how its state is nested"), (put("rest", "w", {"$items": [[[], 1]]}), "nested"), (put("rest", "w", {"$tensor": []}), "nested"),
        (put("ranks", "1", {"$float": {}}), "how its state is nested"), (put("shards", 0, "tensor_crc32", []), "'tensor_crc32' is no JSON object"), (put("shards", 0, "tensor_crc32", {"state.w": "x"}), "no whole manifest"),
        (lambda plain: plain.pop("step"), "it has no 'step'"), (lambda plain: plain["shards"][0].pop("digest"), "it has no 'digest'"),
    ],
)  # fmt: skip
def test_what_a_stranger_wrote_is_refused_with_what_is_wrong(change: Callable[[dict[str, Any]], Any], said: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=said) as raised:
        manifests.decode(changed(change), PATH)
    assert str(PATH) in str(raised.value)


def test_twin_what_is_sealed_by_another_writer_is_read() -> None:
    assert manifests.decode(changed(put("saved", 2)), PATH) == replace(WHOLE, saved=2.0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [('"lr": 0.1', '"lr": NaN', "NaN is no JSON"), ('"lr": 0.1', '"lr": -Infinity', "-Infinity is no JSON"), ('"lr": 0.1', '"lr": 0.1, "lr": 1', "'lr' is there twice"),
     ('"step": 12', '"step": 12, "step": 12', "'step' is there twice"), ('"lr": 0.1', '"lr": ' + "[" * 100_000, "nested too deep|Expecting")],
)  # fmt: skip
def test_json_that_readers_take_in_two_ways_is_refused(before: str, after: str, said: str) -> None:
    text = json.dumps(json.loads(manifests.encode(replace(WHOLE))) | {})
    text = text[: text.index(', "manifest_crc32"')] + "}"
    assert before in text
    with pytest.raises(UnusableCheckpoint, match=said):
        manifests.decode(sealed(text.replace(before, after)), PATH)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b"\xff", b'{"version": 2}', b'{"version": 1}', b'{"version": 1, "step": "x"}'])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(UnusableCheckpoint, match="no whole manifest"):
        manifests.decode(data, PATH)


def test_one_that_is_cut_off_or_changed_anywhere_is_refused() -> None:
    data = manifests.encode(WHOLE)
    for end in range(0, len(data), 7):
        with pytest.raises(UnusableCheckpoint):
            manifests.decode(data[:end], PATH)
    for at in range(0, len(data), 5):
        harmed = bytearray(data)
        harmed[at] ^= 1
        with pytest.raises(UnusableCheckpoint):
            manifests.decode(bytes(harmed), PATH)


def test_what_json_cannot_hold_is_refused_when_it_is_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifests.encode(replace(WHOLE, rest={"loss": float("nan")}))
    kept = manifests.decode(manifests.encode(replace(WHOLE, data_position={"loss": float("inf")})), PATH)
    assert kept.data_position == {"loss": float("inf")}, "a data position is what the script gives"


def test_no_more_of_a_file_is_read_than_a_manifest_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step-000000000012.json"
    path.write_bytes(manifests.encode(WHOLE))
    assert manifests.read(path) == WHOLE
    monkeypatch.setattr(manifests, "LONGEST_BYTES", 99)
    with pytest.raises(UnusableCheckpoint, match="longer than 99 bytes"):
        manifests.read(path)


def test_a_few_bytes_that_claim_endless_chunks_are_refused_before_those_are_counted() -> None:
    def claim(plain: dict[str, Any]) -> None:
        plain["shards"][0].update(bytes=(1 << 63) - 1, chunk_bytes=1 << 10, chunk_crc32=["00000000"])

    with pytest.raises(UnusableCheckpoint, match=r"the sums of the chunks of a\.safetensors do not fit"):
        manifests.decode(changed(claim), PATH)


def test_version_1_says_as_well_how_its_state_is_nested_and_names_a_file() -> None:
    plain = {"version": 1, "step": 12, "data": "a.safetensors", "bytes": 1, "crc32": 0, "finite": True, "epoch": 1, "rest": {"w": {"$tensor": "state.w"}}}
    assert manifests.decode(json.dumps(plain).encode(), PATH).rest == plain["rest"], "twin"
    for wrong in (
        {"rest": {"$items": 7}}, {"data": "a\x1b[2J.safetensors"}, {"saved": float("nan")}, {"step": -12}, {"step": 12.0}, {"bytes": -1}, {"crc32": -1}, {"epoch": -1}, {"finite": "no"},
    ):  # fmt: skip
        with pytest.raises(UnusableCheckpoint, match="no whole manifest"):
            manifests.decode(json.dumps(plain | wrong).encode(), PATH)


def test_a_step_is_that_of_the_files_name_and_one_that_a_name_can_have() -> None:
    data = manifests.encode(WHOLE)
    for name in ("step-000000000012.json", "step-000000000012.json.discarded", "other.json"):
        assert manifests.decode(data, Path(name)).step == 12
    for name in ("step-000000000013.json", "step-000000000013.json.discarded", "step-000000000011.run.0-of-2.part"):
        with pytest.raises(UnusableCheckpoint, match=f"{name} is no whole manifest.*it is of step 12, and its name says 1[13]"):
            manifests.decode(data, Path(name))
    with pytest.raises(ValueError, match="its step is 1000000000000, and no step is 1000000000000 or more"):
        manifests.encode(replace(WHOLE, step=10**12))


def test_what_a_path_surely_does_not_name_is_known(tmp_path: Path) -> None:
    path = tmp_path / "step-000000000012.json"
    assert manifests.is_without(path, ["a.safetensors"])
    path.write_bytes(manifests.encode(WHOLE))
    assert [manifests.is_without(path, names) for names in (["c.safetensors"], ["c.safetensors", "a.safetensors"])] == [True, False]
    path.write_bytes(b"{")
    assert not manifests.is_without(path, ["c.safetensors"]), "who knows"
