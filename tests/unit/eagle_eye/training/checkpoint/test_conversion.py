"""Conversion from and to torch.save and DCP, and that nothing of what they hold is executed."""

import os
import pickle
import resource
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner, Result
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

from eagle_eye.app.cli import main
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import conversion

STATE = {
    "model": {"layer.weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.bfloat16)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, 0.999)},
    "best": float("inf"),
}


class Executed:
    """What runs a command where somebody unpickles it."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.witness),)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EAGLE_EYE_SOCKET", raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)


def convert(*words: object) -> Result:
    result = CliRunner().invoke(main, ["checkpoint", "convert", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), "a bug shows its traceback"
    return result


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], value) for key, value in expected.items())
    return found == expected


def test_a_file_of_torch_save_there_and_back(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "model.pt")
    assert convert(tmp_path / "model.pt", tmp_path / "ours", "--step", 12).exit_code == 0
    found = checkpoint.load(tmp_path / "ours", at_most=-1)
    assert found is not None
    assert found[1] == 12
    assert same(found[0], STATE)
    assert convert(tmp_path / "ours", tmp_path / "back.pt", "--to", "torch").exit_code == 0
    assert same(torch.load(tmp_path / "back.pt", weights_only=True), STATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.pt", "model.pt", "ours"]


def test_a_directory_of_dcp_there_and_back(tmp_path: Path) -> None:
    state = {**STATE, "optimizer": {"state": {"0": {"step": torch.tensor(3.0)}}, "lr": 0.1}}  # it has text as keys, and no tuples
    checkpoint.save(state, 7, tmp_path / "ours")
    assert convert(tmp_path / "ours", tmp_path / "dcp", "--to", "dcp").exit_code == 0
    loaded = {"model": {name: torch.zeros_like(each) for name, each in STATE["model"].items()}, "best": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(loaded, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert same(loaded["model"], STATE["model"])
    assert convert(tmp_path / "dcp", tmp_path / "again", "--step", 8).exit_code == 0
    found = checkpoint.load(tmp_path / "again", at_most=-1)
    assert found is not None
    assert found[1] == 8
    assert same(found[0], state)


def test_nothing_is_overwritten_or_deleted(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(1)}, tmp_path / "model.pt")
    ours = tmp_path / "ours"
    for step in (20, 30):
        checkpoint.save({"x": torch.zeros(1)}, step, ours)
    assert convert(tmp_path / "model.pt", ours, "--step", 10).exit_code == 0
    assert [entry.step for entry in checkpoint.entries(ours)] == [10, 20, 30], "an older one is no superfluous one"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for words, said in (
        ((tmp_path / "model.pt", ours, "--step", 20), "is there already"),
        ((ours, tmp_path / "model.pt", "--to", "torch"), "is there already"),
        ((ours, tmp_path / "full", "--to", "dcp"), "is not empty"),
        ((tmp_path / "model.pt", ours), "give --step"),
        ((ours, tmp_path / "new", "--step", 1), "to convert one of ours give --to"),
    ):
        refused = convert(*words)
        assert (refused.exit_code, said in refused.output) == (1, True), refused.output
    assert torch.load(tmp_path / "model.pt", weights_only=True)["x"].item() == 1.0


def test_a_file_of_torch_save_that_would_execute_something_is_refused(tmp_path: Path) -> None:
    torch.save({"x": Executed(tmp_path / "executed")}, tmp_path / "model.pt")
    refused = convert(tmp_path / "model.pt", tmp_path / "ours", "--step", 1)
    assert (refused.exit_code, "holds tensors and plain values alone" in refused.output) == (1, True)
    assert not (tmp_path / "executed").exists()
    (tmp_path / "text.pt").write_text("text")
    assert "is no file of torch.save" in convert(tmp_path / "text.pt", tmp_path / "ours", "--step", 1).output
    torch.save([1], tmp_path / "list.pt")
    assert "holds no dict, but list" in convert(tmp_path / "list.pt", tmp_path / "ours", "--step", 1).output
    torch.save({"x": torch.ones(1, dtype=torch.complex128)}, tmp_path / "odd.pt")
    assert "cannot be converted: a checkpoint cannot hold torch.complex128" in convert(tmp_path / "odd.pt", tmp_path / "ours", "--step", 1).output
    assert not list(tmp_path.glob("ours/*.json"))


@pytest.mark.parametrize("what", ["in the metadata", "in an item", "elsewhere"])
def test_a_directory_of_dcp_that_would_execute_something_or_leads_elsewhere_is_refused(tmp_path: Path, what: str) -> None:
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

    home = tmp_path / "dcp"
    home.mkdir()
    with (home / "items").open("wb") as file:
        torch.save(Executed(tmp_path / "executed") if what == "in an item" else 1, file)
    size = (home / "items").stat().st_size
    items = {MetadataIndex("x"): _StorageInfo("../dcp/items" if what == "elsewhere" else "items", 0, size)}
    planner = Executed(tmp_path / "executed") if what == "in the metadata" else {"x": ("x",)}
    (home / ".metadata").write_bytes(pickle.dumps(Metadata({"x": BytesStorageMetadata()}, planner, items)))
    refused = convert(home, tmp_path / "ours", "--step", 1)
    assert (refused.exit_code, "is no checkpoint of torch.distributed.checkpoint that holds" in refused.output) == (1, True)
    assert not (tmp_path / "executed").exists()
    (home / "items").unlink()
    torch.save(1, home / "items")
    items = {MetadataIndex("x"): _StorageInfo("items", 0, (home / "items").stat().st_size)}
    (home / ".metadata").write_bytes(pickle.dumps(Metadata({"x": BytesStorageMetadata()}, {"x": ("x",)}, items)))
    assert conversion.read_dcp(home) == {"x": 1}, "twin"


def test_a_tensor_of_dcp_of_which_a_part_is_missing_is_refused(tmp_path: Path) -> None:
    described = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([4]), [])
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({"x": described}, None, {})))
    refused = convert(tmp_path, tmp_path / "ours", "--step", 1)
    assert (refused.exit_code, "tensor 'x' is not whole: 0 of 4 elements" in refused.output) == (1, True)


def test_an_optimizer_of_dcp_has_its_lists_and_numbers_again(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias]}])
    plain = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "plain": plain.state_dict(), "pairs": [[torch.ones(1), 2], {"7": torch.zeros(1)}], "state": {"0": 1}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert convert(tmp_path / "dcp", tmp_path / "ours", "--step", 8).exit_code == 0
    found = checkpoint.load(tmp_path / "ours", at_most=-1)
    assert found is not None
    assert same(found[0]["pairs"][0][0], torch.ones(1))
    assert (found[0]["pairs"][0][1], found[0]["pairs"][1].keys(), found[0]["state"]) == (2, {"7"}, {"0": 1})
    fresh = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias]}])
    fresh.load_state_dict(found[0]["optimizer"])
    assert same(fresh.state_dict()["state"], optimizer.state_dict()["state"])
    assert [group["lr"] for group in fresh.param_groups] == [0.1, 0.001]
    plain.load_state_dict(found[0]["plain"])


def test_a_list_of_dcp_with_a_gap_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"x": [torch.ones(1), torch.ones(1)]}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    path = tmp_path / "dcp/.metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data["x.1"] = ("x", 5)
    path.write_bytes(pickle.dumps(metadata))
    refused = convert(tmp_path / "dcp", tmp_path / "ours", "--step", 1)
    assert (refused.exit_code, "of a list of 6 there are 2" in refused.output) == (1, True), refused.output


def test_keys_that_dcp_cannot_tell_apart_are_one_line(tmp_path: Path) -> None:
    checkpoint.save({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}, 1, tmp_path / "ours")
    refused = convert(tmp_path / "ours", tmp_path / "dcp", "--to", "dcp")
    assert refused.exit_code == 1
    assert "does not take the state" in refused.output
    assert "duplicated flatten key a.b; convert it with --to torch, or rename the keys" in refused.output
    assert convert(tmp_path / "ours", tmp_path / "model.pt", "--to", "torch").exit_code == 0, "twin"


def test_what_is_no_part_of_the_state_is_said_to_be_left_out(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    checkpoint.save({"x": torch.ones(1)}, 1, ours)
    assert "not in it" not in convert(ours, tmp_path / "one.pt", "--to", "torch").output, "twin"
    checkpoint.save_shard({"x": torch.ones(1)}, 2, ours, rank=0, world_size=1, per_rank={"rng": 5}, data_position={"sample": 7})
    for kind in ("torch", "dcp"):
        said = " ".join(convert(ours, tmp_path / kind, "--to", kind).output.split())  # lines are broken where the path is long
        assert "not in it: its data position and what each rank alone had (per_rank)" in said


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(1000)}, tmp_path / "model.pt")
    data = (tmp_path / "model.pt").read_bytes()
    for size in (4, 40, 2000, len(data) - 1):
        (tmp_path / "cut.pt").write_bytes(data[:size])
        refused = convert(tmp_path / "cut.pt", tmp_path / "ours", "--step", 1)
        assert (refused.exit_code, "cut.pt is no" in refused.output.replace("\n", "")) == (1, True), refused.output


def test_a_state_without_an_end_is_one_line(tmp_path: Path) -> None:
    ring: dict[str, Any] = {}
    ring["self"] = ring
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    for name, state, told in (("ring", ring, "it holds itself"), ("deep", deep, "more than 100 levels deep")):
        torch.save(state, tmp_path / f"{name}.pt")
        refused = convert(tmp_path / f"{name}.pt", tmp_path / "ours", "--step", 1)
        assert (refused.exit_code, told in " ".join(refused.output.split())) == (1, True), refused.output
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("kind", ["torch", "dcp", "ours"])
def test_a_full_disk_is_told_with_its_room_and_nothing_blocks_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A process may write no longer files than a few kB: the system refuses the rest, as a disk that is full does."""
    ours, source, target = tmp_path / "ours", tmp_path / "model.pt", tmp_path / "made"
    state = {"x": torch.arange(100_000.0)}
    checkpoint.save(state, 1, ours)
    torch.save(state, source)
    words = (source, target, "--step", 1) if kind == "ours" else (ours, target, "--to", kind)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        refused = convert(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    said = " ".join(refused.output.split())
    assert refused.exit_code == 1
    for part in ("nothing was converted", "made", "File too large (EFBIG); ", " are free, ", "400 kB are needed; make room, or give another place"):
        assert part in said, said
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != ours and path != source]
    assert convert(*words).exit_code == 0, "twin"
