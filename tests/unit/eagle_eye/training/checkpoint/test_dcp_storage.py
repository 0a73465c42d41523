"""What DCP saves through our storage, and loads from it. Ranks are calls one after the other, with DCP's own planners between them, and no processes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from eagle_eye import DcpReader, DcpWriter
from eagle_eye.errors import ConfigError
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint.manifest import UnusableCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)


def bits(rows: int, salt: int = 0) -> torch.Tensor:
    return (torch.arange(rows * 3, dtype=torch.float64) + salt).sin().float().reshape(rows, 3)


class Rows(torch.Tensor):
    """Some rows of a tensor, which DCP asks in the way in which it asks a DTensor."""

    @staticmethod
    def __new__(cls, part: torch.Tensor, begin: int, whole: torch.Size) -> "Rows":
        rows: Rows = torch.Tensor._make_subclass(cls, part)
        rows.part, rows.begin, rows.whole = part, begin, whole
        return rows

    def _chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size((self.begin, 0)), self.part.shape)

    def size(self, *dimension: int) -> Any:
        return self.whole[dimension[0]] if dimension else self.whole

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        chunk = self._chunk()
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.part), self.whole)
        return [WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._chunk()]

    def __get_tensor_shard__(self, _: MetadataIndex) -> torch.Tensor:
        return self.part


def cut(full: torch.Tensor, rows: Sequence[int], rank: int) -> Rows:
    begin = sum(rows[:rank])
    return Rows(full[begin : begin + rows[rank]].clone(), begin, full.shape)


def state(rows: Sequence[int], rank: int, *, blank: bool = False) -> dict[str, Any]:
    """Of one rank: what is cut, what all have, and what is no tensor."""
    total = sum(rows)
    full = [bits(total), bits(total, 1).bfloat16(), torch.tensor(7)]
    if blank:
        full = [torch.zeros_like(each) for each in full]
    groups = [{"lr": 0.0, "betas": [], "params": [""]}] if blank else [{"lr": 0.1, "betas": [0.9, 0.95], "params": ["w"]}]
    return {"model": {"w": cut(full[0], rows, rank)}, "optim": {"state": {0: {"m": cut(full[1], rows, rank)}}, "param_groups": groups}, "step": full[2], "note": "" if blank else "same"}


def save_ranks(home: Path, rows: Sequence[int], step: int = 10) -> None:
    """As `dcp.save` does it on so many ranks."""
    writers, planners = [DcpWriter(home, step=step) for _ in rows], [DefaultSavePlanner() for _ in rows]
    plans = []
    for rank, (writer, planner) in enumerate(zip(writers, planners, strict=True)):
        writer.reset()
        planner.set_up_planner(state(rows, rank), writer.storage_meta(), rank == 0)
        writer.set_up_storage_writer(rank == 0)
        plans.append(writer.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    plans = writers[0].prepare_global_plan(plans)
    results = []
    for writer, planner, plan in zip(writers, planners, plans, strict=True):
        assert not checkpoint.entries(home), "it is visible when all are done"
        results.append(writer.write_data(planner.finish_plan(plan), planner).wait())
    writers[0].finish(metadata, results)


def load_ranks(home: Path, rows: Sequence[int], readers: Sequence[DcpReader] | None = None) -> list[dict[str, Any]]:
    """As `dcp.load` does it on so many ranks."""
    readers = readers or [DcpReader(home) for _ in rows]
    states, planners, plans = [state(rows, rank, blank=True) for rank in range(len(rows))], [DefaultLoadPlanner() for _ in rows], []
    for rank, (reader, planner) in enumerate(zip(readers, planners, strict=True)):
        metadata = reader.read_metadata()
        planner.set_up_planner(states[rank], metadata, rank == 0)
        reader.set_up_storage_reader(metadata, rank == 0)
        plans.append(reader.prepare_local_plan(planner.create_local_plan()))
    plans = readers[0].prepare_global_plan(planners[0].create_global_plan(plans))
    for reader, planner, plan in zip(readers, planners, plans, strict=True):
        reader.read_data(planner.finish_plan(plan), planner).wait()
    return states


def require_equal(found: dict[str, Any], rows: Sequence[int], rank: int) -> None:
    expected = state(rows, rank)
    assert torch.equal(found["model"]["w"].part, expected["model"]["w"].part)
    assert torch.equal(found["optim"]["state"][0]["m"].part, expected["optim"]["state"][0]["m"].part)
    assert (found["step"].item(), found["note"], found["optim"]["param_groups"]) == (7, "same", expected["optim"]["param_groups"])


@pytest.mark.parametrize(("saved", "loaded"), [([3, 3, 3, 3], [4, 4, 4]), ([3, 3, 2], [8]), ([8], [3, 3, 2])], ids=lambda rows: "+".join(map(str, rows)))
def test_what_some_ranks_saved_another_number_of_them_loads(tmp_path: Path, saved: list[int], loaded: list[int]) -> None:
    save_ranks(tmp_path, saved)
    for rank, found in enumerate(load_ranks(tmp_path, loaded)):
        require_equal(found, loaded, rank)
    assert not list(tmp_path.glob("*.part"))
    [manifest] = tmp_path.glob("*.json")
    assert len(json.loads(manifest.read_text())["shards"]) == len(saved)


def test_calls_of_dcp_and_of_ours_read_what_the_other_wrote(tmp_path: Path) -> None:
    """In one process, by dcp.save and dcp.load themselves."""
    given = {"model": {"w": bits(4)}, "optim": {0: torch.tensor([1, 2]), "lr": 0.1}, "rest": {"epoch": 3, "names": ["a", "b"]}}
    dcp.save(given, storage_writer=DcpWriter(tmp_path, step=5, data_position={"sample": 40}), no_dist=True)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found[1] == 5
    assert torch.equal(found[0]["model"]["w"], bits(4))
    assert found[0]["rest"] == given["rest"]
    checkpoint.save({**given, "model": {"w": bits(4, 1)}}, 6, tmp_path)
    blank = {"model": {"w": torch.zeros(4, 3)}, "optim": {0: torch.tensor([0, 0]), "lr": 0.0}, "rest": {"epoch": 0, "names": []}}
    for at_most, salt, position in ((None, 1, None), (5, 0, {"sample": 40})):
        reader = DcpReader(tmp_path, at_most=at_most)
        dcp.load(blank, storage_reader=reader, no_dist=True)
        assert (reader.step, reader.data_position) == (6 - (at_most is not None), position)
        assert torch.equal(blank["model"]["w"], bits(4, salt))
        assert (blank["optim"]["lr"], blank["rest"], blank["optim"][0].tolist()) == (0.1, given["rest"], [1, 2])


def test_a_flipped_bit_changes_nothing_and_the_step_before_is_loaded(tmp_path: Path) -> None:
    for step in (5, 6):
        dcp.save({"w": bits(4, step)}, storage_writer=DcpWriter(tmp_path, step=step), no_dist=True)
    [shard] = tmp_path.glob("*6-0-0-*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    reader, blank = DcpReader(tmp_path), {"w": torch.zeros(4, 3)}
    with pytest.raises(CheckpointException) as raised:
        dcp.load(blank, storage_reader=reader, no_dist=True)
    assert any(isinstance(error, UnusableCheckpoint) for error, _ in raised.value.failures.values())
    assert not blank["w"].any()
    dcp.load(blank, storage_reader=DcpReader(tmp_path, at_most=reader.step - 1), no_dist=True)
    assert torch.equal(blank["w"], bits(4, 5))


def test_a_shard_that_is_cut_off_is_passed_over_and_told(tmp_path: Path) -> None:
    for step in (5, 6):
        dcp.save({"w": bits(4, step)}, storage_writer=DcpWriter(tmp_path, step=step), no_dist=True)
    [shard] = tmp_path.glob("*6-0-0-*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    reader, blank = DcpReader(tmp_path), {"w": torch.zeros(4, 3)}
    dcp.load(blank, storage_reader=reader, no_dist=True)
    assert (reader.step, len(reader.skipped)) == (5, 1)
    shard.unlink()
    for path in tmp_path.glob("*5*.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointException, match="no checkpoint in"):
        dcp.load(blank, storage_reader=DcpReader(tmp_path), no_dist=True)


@pytest.mark.parametrize("value", [{1, 2}, 1 + 2j, Path("a"), torch.tensor([1 + 2j]).to(torch.complex128)], ids=lambda value: type(value).__name__)
def test_what_no_checkpoint_can_hold_is_refused_by_name_and_nothing_is_visible(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointException, match="odd"):
        dcp.save({"w": bits(4), "odd": value}, storage_writer=DcpWriter(tmp_path, step=5), no_dist=True)
    assert not checkpoint.entries(tmp_path)


def test_a_rank_that_writes_elsewhere_leaves_nothing_visible(tmp_path: Path) -> None:
    writer = DcpWriter(tmp_path, step=5)
    planner = DefaultSavePlanner()
    planner.set_up_planner({"w": bits(4)}, None, is_coordinator=True)
    plan = planner.create_local_plan()
    [plan, _] = writer.prepare_global_plan([plan, plan])
    writer.write_data(plan, planner)
    with pytest.raises(OSError, match="not all of the 2 ranks"):
        writer.finish(None, [])  # type: ignore[arg-type]
    assert not checkpoint.entries(tmp_path)


def test_ranks_that_find_different_steps_load_none(tmp_path: Path) -> None:
    save_ranks(tmp_path, [4, 4], 5)
    (tmp_path / "b").mkdir()
    save_ranks(tmp_path / "b", [4, 4], 6)
    with pytest.raises(ConfigError, match=r"\[5, 6\]"):
        load_ranks(tmp_path, [4, 4], [DcpReader(tmp_path), DcpReader(tmp_path / "b")])


def test_a_save_without_a_coordinator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use_collectives"):
        DcpWriter(tmp_path, step=1).set_up_storage_writer(is_coordinator=True, use_collectives=False)
    with pytest.raises(ValueError, match="first step"):
        DcpWriter(tmp_path, step=-1)
    assert DcpWriter.validate_checkpoint_id("s3://bucket/run")
    assert not DcpWriter.validate_checkpoint_id("nothing://bucket/run"), "it would be a folder of that name"
