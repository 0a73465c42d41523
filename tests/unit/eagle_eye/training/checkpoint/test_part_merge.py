"""What the ranks of a save have written, put together: a name means one tensor on all of them. Ranks are calls one after the other."""

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from eagle_eye.training import checkpoint, messages, state_tree
from eagle_eye.training.checkpoint import LocalTensor, Region, shard_file
from eagle_eye.training.object_path import ObjectPath


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[messages.ProbeMessage]:
    """What a launcher is told."""
    heard: list[messages.ProbeMessage] = []
    monkeypatch.setenv("EAGLE_EYE_SOCKET", "launcher.sock")
    monkeypatch.setattr(messages, "send", lambda _path, line: heard.append(messages.decode(line)))
    return heard


def require_same(found: "Stage", expected: "Stage") -> None:
    """Bit by bit."""
    (ours, our_rest), (theirs, their_rest) = (state_tree.flatten(each.local(), lambda value: isinstance(value, torch.Tensor)) for each in (found, expected))
    assert our_rest == their_rest
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


DOCUMENTATION = Path(__file__).parents[5] / "docs/frameworks.md"
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class Stage:
    """Of a pipeline of two: two layers, which have their numbers in the whole model, trained for some steps."""

    def __init__(self, stage: int, steps: int) -> None:
        torch.manual_seed(stage if steps else 99)
        layers = {str(2 * stage + layer): torch.nn.Linear(3, 3) for layer in range(2)}
        self.model = torch.nn.ModuleDict({"layers": torch.nn.ModuleDict(layers)})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01 if steps else 0.5)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        for _ in range(steps):
            value = torch.ones(1, 3)
            for layer in self.model["layers"].values():
                value = layer(value)
            value.sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def local(self) -> dict[str, Any]:
        """Names of an optimizer are numbers from 0 on, on each stage."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def state(self) -> dict[str, Any]:
        """As docs/frameworks.md has it."""
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer, options=OPTIONS)
        return {"model": model_state, "optimizer": optimizer_state, "scheduler": self.scheduler.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """As docs/frameworks.md has it."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=OPTIONS)
        self.scheduler.load_state_dict(state["scheduler"])


def save(home: Path, states: list[dict[str, Any]], step: int = 7) -> None:
    for rank, state in enumerate(states):
        checkpoint.save_shard(state, step, home, rank=rank, world_size=len(states), run="a", writes_whole=True)


def test_stages_whose_optimizers_count_from_0_each_are_refused_by_tensor_ranks_and_remedy(tmp_path: Path, told: list[messages.ProbeMessage], caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, [Stage(stage, 3).local() for stage in range(2)])
    assert checkpoint.entries(tmp_path) == []
    assert [message["kind"] for message in told] == ["checkpoint_failed"]
    assert "ranks 0 and 1 have both written tensor 'state.optimizer.state.0.exp_avg'" in told[0]["reason"]
    assert "flatten_optimizer_state_dict=True" in told[0]["reason"]
    assert told[0]["reason"] in caplog.text


def test_twin_what_the_documentation_shows_brings_each_stage_back(tmp_path: Path) -> None:
    stages = [Stage(stage, 3) for stage in range(2)]
    save(tmp_path, [stage.state() for stage in stages])
    for number, stage in enumerate(stages):
        new = Stage(number, 0)
        found = checkpoint.restore(new.state(), tmp_path, rank=number, strict=False)
        assert found is not None
        new.load(found.state)
        require_same(new, stage)
        assert new.scheduler.state_dict() == stage.scheduler.state_dict()


def test_twin_one_rank_alone_goes_on_as_the_documentation_shows(tmp_path: Path) -> None:
    stage = Stage(0, 3)
    checkpoint.save_shard(stage.state(), 7, tmp_path, rank=0, world_size=1)
    new = Stage(0, 0)
    found = checkpoint.restore(new.state(), tmp_path)
    assert found is not None
    new.load(found.state)
    require_same(new, stage)


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_DIR", str(tmp_path))
    section = DOCUMENTATION.read_text().partition("## Checkpoints of sharded state")[2]
    example = section.partition("```python")[2].partition("```")[0]
    stage = Stage(0, 3)
    first: dict[str, Any] = {"model": stage.model, "optimizer": stage.optimizer, "scheduler": stage.scheduler, "torch": torch, "step": 2, "sample": 16}
    exec(example, first)
    assert (first["start"], first["found"]) == (0, None)
    new = Stage(0, 0)
    second = {**first, "model": new.model, "optimizer": new.optimizer, "scheduler": new.scheduler}
    exec(example.partition("\n...")[0], second)
    assert (second["start"], second["found"].data_position) == (3, {"sample": 16})
    require_same(new, stage)
    assert new.scheduler.state_dict() == stage.scheduler.state_dict()


def _region(value: float) -> LocalTensor:
    return LocalTensor(torch.full((2,), value), Region((0,), (2,)), (2,))


@pytest.mark.parametrize("make", [lambda value: torch.full((2,), value), _region, torch.tensor], ids=["whole", "region", "scalar"])
@pytest.mark.parametrize(("second", "visible"), [(0.0, True), (2.0, False), (-0.0, False)])
def test_a_region_that_two_ranks_wrote_is_there_once_if_they_wrote_the_same(tmp_path: Path, make: Callable[[float], Any], second: float, visible: bool) -> None:
    save(tmp_path, [{"x": make(0.0), "own": {"0": torch.ones(1)}}, {"x": make(second), "own": {"1": torch.ones(2)}}])
    entries = checkpoint.entries(tmp_path)
    assert len(entries) == visible
    for entry in entries:
        assert len(entry.manifest.tensors["state.x"].pieces) == 1
        assert "tensor_crc32" not in entry.path.read_bytes().decode()


def test_two_ranks_of_another_version_that_have_no_sums_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shard_file.write
    monkeypatch.setattr(shard_file, "write", lambda path, tensors, rank, sum_each: real(path, tensors, rank))
    save(tmp_path, [{"x": torch.ones(2)}, {"x": torch.ones(2)}])
    assert checkpoint.entries(tmp_path) == []
    save(tmp_path, [{"x": torch.ones(2)}, {"y": torch.ones(2)}], 8)
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [8], "twin: nobody wrote twice"


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 1 << 20])
def test_the_sum_of_each_tensor_is_that_of_its_bytes_however_the_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(shard_file, "CHUNK_BYTES", chunk)
    monkeypatch.setattr("eagle_eye.training.object_path.PART_BYTES", chunk)
    tensors = {"a": torch.arange(40.0), "b": torch.arange(9, dtype=torch.uint8), "none": torch.empty(0), "c": torch.tensor(2.5)}
    sums = {name: zlib.crc32(each.numpy().tobytes()) for name, each in tensors.items()}
    shard = shard_file.write(tmp_path / "a.safetensors", tensors, sum_each=True)
    assert (shard.tensor_crc32, shard.crc32) == (sums, zlib.crc32((tmp_path / "a.safetensors").read_bytes()))
    if chunk > 1:
        assert shard_file.write(ObjectPath("memory://sums/a.safetensors"), tensors, sum_each=True).tensor_crc32 == sums
    assert shard_file.write(tmp_path / "b.safetensors", tensors).tensor_crc32 == {}


def test_of_what_is_no_tensor_the_first_rank_counts_and_what_differs_has_a_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for rank in range(2):
            checkpoint.save_shard({"n": rank, "by": {str(rank): rank}}, 7, tmp_path, rank=rank, world_size=2, run="a", per_rank={"n": rank})
    for rank in range(2):
        found = checkpoint.restore({"n": -1}, tmp_path, rank=rank)
        assert found is not None
        assert (found.state, found.per_rank) == ({"n": 0, "by": {"0": 0, "1": 1}}, {"n": rank})
