"""What a state may be: refused at the door with a remedy, or saved so that every reader takes it."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from eagle_eye import DcpWriter
from eagle_eye.errors import ConfigError
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import (
    LocalTensor,
    LocalTensors,
    Region,
    checkpoint_directory,
    checkpoint_writer,
    conversion,
)
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints

from .test_distributed_tensor import mesh  # type: ignore[import-not-found]  # tests are no package


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(checkpoint_writer, "_told_not_finite", set())


# --- tensors without elements ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dimension"), [((0, 4), 0), ((4, 0), 0), ((0, 4), 1), ((0,), 0)])
def test_a_distributed_tensor_without_elements_is_saved_and_loaded(tmp_path: Path, shape: tuple[int, ...], dimension: int) -> None:
    from torch.distributed.tensor import DTensor, Shard

    full = torch.empty(shape)

    def state(on: object, rank: int, value: float) -> dict[str, Any]:
        parts = list(torch.chunk(full, 2, dimension))
        own = parts[rank] if rank < len(parts) else full.narrow(dimension, 0, 0)
        return {"none": DTensor.from_local(own.clone(), on, [Shard(dimension)], run_check=False, shape=full.shape, stride=full.stride()), "x": torch.full((2,), value)}

    for rank in range(2):
        with mesh(rank, 2) as on:
            checkpoint.save_shard(state(on, rank, 3.0), 5, tmp_path, rank=rank, world_size=2, run="a")
    loaded = checkpoint.load(tmp_path)
    assert loaded is not None
    assert (loaded[0]["none"].shape, loaded[0]["x"].tolist()) == (shape, [3.0, 3.0])
    with mesh(1, 2) as on:
        template = state(on, 1, 0.0)
        assert checkpoint.restore(template, tmp_path, rank=1) is not None
        assert template["x"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("region", [Region((0, 0), (0, 0)), Region((0, 0), (0, 4))])
def test_so_is_one_that_is_cut_by_other_means(tmp_path: Path, region: Region) -> None:
    for rank in range(2):
        state = {"none": LocalTensor(torch.empty(region.shape), region, (0, 4)), "few": LocalTensor(torch.ones(1 - rank), Region((0,), (1 - rank,)), (1,))}
        checkpoint.save_shard(state, 5, tmp_path, rank=rank, world_size=2, run="a")
    loaded = checkpoint.load(tmp_path)
    assert loaded is not None
    assert (loaded[0]["none"].shape, loaded[0]["few"].tolist()) == ((0, 4), [1.0]), "twin: a rank that holds nothing of a tensor that has something"
    assert len(checkpoint.entries(tmp_path)[0].manifest.tensors["state.few"].pieces) == 1


def test_a_tensor_that_nobody_wrote_makes_no_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for rank in range(2):
        checkpoint.save_shard({"x": torch.ones(2), "y": torch.ones(2)} if rank else {"x": torch.ones(2)}, 5, tmp_path, rank=rank, world_size=2, run="a")
    assert checkpoint.entries(tmp_path) == []
    assert not list(tmp_path.glob("*.json"))
    assert "refers to the tensor 'state.y', which no rank wrote" in caplog.text


def test_a_checkpoint_with_such_a_reference_does_not_count_as_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older version has written it."""
    checkpoint.save({"x": torch.ones(2)}, 10, tmp_path)
    with monkeypatch.context() as older:
        older.setattr("eagle_eye.training.checkpoint.manifest._require_all_tensors", lambda *_: None)
        older.setattr(checkpoint_writer, "_copy_into", lambda shards, name, parts, real=checkpoint_writer._copy_into: real(shards, name, parts if name != "state.y" else [_unwritten(parts[0])]))
        for step in (20, 30):
            checkpoint.save({"x": torch.ones(2), "y": torch.ones(2)}, step, tmp_path)
        assert [entry.step for entry in checkpoint.entries(tmp_path)] == [20, 30]
    readable, unreadable = checkpoint_directory.contents(tmp_path)
    assert (readable, [each.path.name for each in unreadable]) == ([], ["step-000000000020.json", "step-000000000030.json"])
    assert "which no rank wrote" in unreadable[0].reason
    checkpoint.save({"x": torch.ones(2)}, 40, tmp_path)
    checkpoint.save({"x": torch.ones(2)}, 50, tmp_path)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [40, 50]


def _unwritten(part: LocalTensor) -> LocalTensor:
    return LocalTensor(part.tensor, part.region, part.shape, written_here=False)


# --- the door ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [-1, 1 << 63, 10**12, 10**400])
def test_a_step_that_has_no_name_is_refused(tmp_path: Path, step: int) -> None:
    for save in (checkpoint.save, checkpoint.save_or_raise, checkpoint.save_shard):
        with pytest.raises(ValueError, match="give the number of the first step still to do, from 0 to below 1000000000000"):
            save({"x": 1}, step, tmp_path)
    for other in (lambda: checkpoint.leave_out(step, tmp_path), lambda: DcpWriter(tmp_path, step=step)):
        with pytest.raises(ValueError, match="give the number"):
            other()
    with pytest.raises(ConfigError, match="give the number"):
        conversion.store({"x": 1}, step, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [True, False, 1.0, "1", None, numpy.float64(1)])
def test_what_is_no_whole_number_is_no_step(tmp_path: Path, step: Any) -> None:
    for save in (checkpoint.save, checkpoint.save_or_raise, checkpoint.save_shard):
        with pytest.raises(TypeError, match="give the number of the first step still to do"):
            save({"x": 1}, step, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [0, 7, 10**12 - 1, numpy.int64(7), numpy.uint8(7), torch.tensor(7)])
def test_twin_what_stands_for_a_whole_number_is_one(tmp_path: Path, step: Any) -> None:
    assert checkpoint.save({"x": 1}, step, tmp_path) == tmp_path / f"step-{int(step):012d}.json"
    assert (checkpoint.load(tmp_path) or ({}, -1))[1] == int(step)


@pytest.mark.parametrize("state", [[torch.ones(2)], torch.ones(2), (1,), None, "x"])
def test_a_state_that_is_no_dict_is_refused(tmp_path: Path, state: Any) -> None:
    with pytest.raises(TypeError, match=rf"the state is of type {type(state).__name__}: save a dict"):
        checkpoint.save(state, 2, tmp_path)
    assert not list(tmp_path.iterdir())


def test_twin_dicts_of_any_keys_are_states(tmp_path: Path) -> None:
    states: list[dict[Any, Any]] = [{}, {1: torch.ones(2), "1": 3}, {"$tensor": 5}]
    for step, state in enumerate(states):
        assert checkpoint.save(state, step, tmp_path) is not None
        found = checkpoint.load(tmp_path)
        assert found is not None
        assert (found[1], str(found[0])) == (step, str(state))


def test_a_part_of_a_tensor_is_no_state_of_one_rank(tmp_path: Path) -> None:
    half = LocalTensor(torch.ones(2), Region((0,), (2,)), (4,))
    with pytest.raises(ValueError, match=r"tensor 'state\.x' is not whole: 2 of 4 elements are there\. Of a tensor that is cut save all of it, or call save_shard on every rank"):
        checkpoint.save({"x": half}, 2, tmp_path)
    assert not list(tmp_path.iterdir())
    for rank in range(2):
        checkpoint.save_shard({"x": LocalTensor(torch.ones(2), Region((2 * rank,), (2,)), (4,))}, 2, tmp_path, rank=rank, world_size=2, run="a")
    assert checkpoint.load(tmp_path) is not None, "twin"
    with pytest.raises(ValueError, match="without a part"):
        LocalTensors(())


@pytest.mark.parametrize("options", [{"layout": {"dp": -1}}, {"layout": {"dp": True}}, {"layout": {1: 2, "1": 2}}, {"data_position": {1: 2, "1": 2}}])
def test_what_no_reader_takes_raises_before_anything_is_written(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says what it is
        checkpoint.save_shard({"x": 1}, 2, tmp_path, rank=0, world_size=1, **options)
    assert not list(tmp_path.iterdir())


def test_a_state_that_is_nested_too_deep_raises(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match=r"nested more than 100 levels deep, at 'data_position\.0\.0"):
        checkpoint.save({"x": 1}, 2, tmp_path, data_position=deep)
    with pytest.raises(TypeError, match=r"nested more than 100 levels deep, at 'state\.x\.0\.0"):
        checkpoint.save({"x": deep}, 2, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("levels", [400, 3000])
def test_what_no_reader_could_take_is_named_in_memory_as_on_disk_and_the_deepest_that_can_be_comes_back(tmp_path: Path, levels: int) -> None:
    def nested(count: int) -> Any:
        inner: Any = {"end": 1.5}
        for _ in range(count):
            inner = {1: inner}
        return inner

    memory = MemoryCheckpoints([], tmp_path / "0.memory")
    ring: dict[str, Any] = {"a": [1]}
    ring["a"].append(ring)
    for save in (memory.save, lambda state, step, **kept: checkpoint.save(state, step, tmp_path / "disk", **kept)):
        with pytest.raises(TypeError, match=r"more than 100 levels deep, at 'state\.d\.1\.1"):
            save({"d": nested(levels)}, 1)
        with pytest.raises(TypeError, match=r"the dict at 'state\.r': it holds itself, at 'state\.r\.a\.1'"):
            save({"r": ring}, 1)
        with pytest.raises(TypeError, match=r"the dict at 'data_position': it holds itself, at 'data_position\.a\.1'"):
            save({"r": 1}, 1, data_position=ring)
        with pytest.raises(TypeError, match=r"a data position cannot hold set at 'data_position\.seen'"):
            save({"r": 1}, 1, data_position={"seen": {1}})
        with pytest.raises(TypeError, match=r"the whole number at 'state\.n', of 16610 bits"):
            save({"n": 10**5000}, 1)
    assert not (tmp_path / "disk").exists()
    state = {"d": nested(98)}
    checkpoint.save(state, 1, tmp_path / "disk", data_position=nested(98))
    found = checkpoint.load(tmp_path / "disk")
    assert found is not None
    assert found[0] == state, "twin"
    assert memory.prepare(state)
    assert memory.save(state, 1)
    memory.finish()
    assert memory.safe_step == 1
    memory.close()


ODD = {"best_loss": float("inf"), "worst": [float("-inf"), {"x": float("nan")}], "file": os.fsdecode(b"caf\xe9.txt"), "$float": "nan", "$items": {"$x": 1.5}, "plain": {"$": None}}


def test_what_json_has_no_word_for_comes_back(tmp_path: Path) -> None:
    state = {"best_loss": float("inf"), "by_scale": {float("inf"): 1, 2: {float("-inf"): "a"}}, "file": ODD["file"], "x": torch.ones(2)}
    path = checkpoint.save(state, 2, tmp_path, data_position=ODD)
    assert path is not None
    json.loads(Path(path).read_text(), parse_constant=pytest.fail)  # strict JSON
    [entry] = checkpoint.entries(tmp_path)
    assert str(entry.manifest.data_position) == str(ODD)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert str(found[0]) == str(state)
    restored = checkpoint.restore({"x": torch.zeros(2), "by_scale": {float("inf"): 0, 2: {float("-inf"): ""}}}, tmp_path)
    assert restored is not None
    assert restored.state["by_scale"] == state["by_scale"]


NOT_DENSE = {
    "coo": lambda: torch.eye(3).to_sparse(), "csr": lambda: torch.eye(3).to_sparse_csr(), "meta": lambda: torch.ones(3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_what_has_no_elements_in_order_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    tensor = NOT_DENSE[kind]()
    for save in (checkpoint.save, checkpoint.save_shard):
        with pytest.raises(TypeError, match=r"a checkpoint cannot hold the tensor 'state\.a\.b': it (is sparse, nested or quantized: convert|has no data)"):
            save({"a": {"b": tensor}}, 2, tmp_path)
    assert not list(tmp_path.iterdir())
    checkpoint.save({"a": {"b": torch.ones(3)}}, 2, tmp_path)
    with pytest.raises(TypeError, match=r"'state\.a\.b'"):
        checkpoint.restore({"a": {"b": tensor}}, tmp_path)


# --- what is filled ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [torch.zeros(1).expand(6), torch.zeros(3).as_strided((2, 3), (0, 1)), torch.zeros(4).as_strided((2, 3), (1, 1)), torch.zeros(8).as_strided((2, 3), (3, 2)).as_strided((6,), (0,))],
)
def test_a_target_whose_elements_share_a_place_is_refused_before_anything_is_written(tmp_path: Path, target: torch.Tensor) -> None:
    checkpoint.save({"a": torch.ones(3), "b": torch.arange(6.0).reshape(target.shape)}, 2, tmp_path)
    template = {"a": torch.zeros(3), "b": target}
    with pytest.raises(ValueError, match=r"the tensor 'state\.b' cannot be filled: several of its elements lie in one place"):
        checkpoint.restore(template, tmp_path)
    assert not template["a"].any()
    assert not target.any()


@pytest.mark.parametrize(
    "target",
    [torch.zeros(3, 2).t(), torch.zeros(4, 6)[::2, ::2], torch.zeros(8).as_strided((2, 3), (3, 2)), torch.zeros(2, 1, 3).expand(2, 1, 3)[:, 0], torch.zeros(2, 3)],
    ids=["transposed", "slices", "strides that cross", "expanded by nothing", "plain"],
)
def test_twin_views_whose_elements_have_places_of_their_own_are_filled(tmp_path: Path, target: torch.Tensor) -> None:
    full = torch.arange(6.0).reshape(2, 3)
    checkpoint.save({"b": full}, 2, tmp_path)
    assert checkpoint.restore({"b": target}, tmp_path) is not None
    assert torch.equal(target, full)


def test_twin_two_names_of_one_tensor_and_a_parameter_are_filled(tmp_path: Path) -> None:
    tied = torch.nn.Parameter(torch.zeros(3))
    checkpoint.save({"a": torch.ones(3), "b": torch.ones(3), "none": torch.empty(0, 3)}, 2, tmp_path)
    assert checkpoint.restore({"a": tied, "b": tied, "none": torch.empty(0, 1).expand(0, 3)}, tmp_path) is not None
    assert tied.tolist() == [1.0] * 3


def test_a_tensor_of_inference_mode_is_refused(tmp_path: Path) -> None:
    with torch.inference_mode():
        target = torch.zeros(3)
    checkpoint.save({"a": torch.ones(3)}, 2, tmp_path)
    with pytest.raises(ValueError, match=r"'state\.a' cannot be filled: it was made in inference mode"):
        checkpoint.restore({"a": target}, tmp_path)
    with torch.inference_mode():
        assert checkpoint.restore({"a": target}, tmp_path) is not None, "twin"


# --- values that are not finite ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [complex("nan"), complex(0, float("inf")), complex(float("nan"), 1)])
def test_complex_values_that_are_not_finite_are_not_loaded(tmp_path: Path, bad: complex) -> None:
    checkpoint.save({"x": torch.ones(4, dtype=torch.complex64)}, 1, tmp_path)
    checkpoint.save({"x": torch.tensor([1, bad, 2, 3], dtype=torch.complex64)}, 2, tmp_path)
    assert [entry.finite for entry in checkpoint.entries(tmp_path)] == [True, False]
    assert (checkpoint.load(tmp_path) or ({}, 0))[1] == 1


def test_who_saves_what_will_not_be_loaded_hears_of_it_once_of_each_tensor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def saved(step: int, *odd: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            checkpoint.save({name: torch.tensor(float("nan") if name in odd else 1.0) for name in "abcde"}, step, tmp_path)
        return [record.getMessage() for record in caplog.records if "finite" in record.getMessage()]

    assert saved(1) == []
    assert saved(2, "b") == ["the checkpoint of step 2 will not be loaded: 'state.b' holds values that are not finite; an older one is kept"]
    assert saved(3, "b") == []
    [told] = saved(4, "a", "b", "c", "d", "e")
    assert told.startswith("the checkpoint of step 4 will not be loaded: 'state.a', 'state.c', 'state.d' and 1 further ones hold values")
