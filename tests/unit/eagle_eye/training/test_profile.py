"""Profiling a model: what is measured of each layer, what is remembered, and how the planner reads it."""

import json
import sys

import pytest
import torch
from click.testing import CliRunner

from eagle_eye.app.cli import main
from eagle_eye.app.profile_run import print_profile
from eagle_eye.errors import ConfigError
from eagle_eye.training.profile import ModelError, ProfileRequest, profile
from eagle_eye.training.profile_collectives import all_reduce_ms
from eagle_eye.training.profile_layers import Repeats, WallClock, named, profile_layers
from remediation.planner.performance.hardware import Hardware
from remediation.planner.performance.profiled_throughput import read_profile, throughput
from remediation.planner.performance.throughput_model import ThroughputModel, ThroughputSource

MODEL = """
import torch
from torch import nn

def layers():
    return [("embedding", nn.Embedding(50, 8)), ("middle", nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))), ("head", nn.Linear(8, 50))]

def batch(size):
    return torch.randint(50, (size, 6))
"""


class Script(WallClock):
    """A clock that says 1, 2, 3, ... milliseconds, and counts."""

    def __init__(self) -> None:
        self.runs = 0

    def milliseconds(self, work) -> float:
        work()
        self.runs += 1
        return float(self.runs)


@pytest.fixture(autouse=True)
def _paths(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("eagle_eye_profiled", None)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_each_layer_is_measured_with_the_median_of_its_repeats_and_its_exact_memory():
    linear, clock = torch.nn.Linear(8, 32, bias=False), Script()
    (found,) = profile_layers([("linear", linear)], torch.randn(4, 8), "cpu", Repeats(warm_up=2, measured=3), clock)
    assert found.forward_ms == 2  # of 1, 2, 3: warm-up runs are not timed
    assert found.backward_ms == 7  # 4, 5 were warm-up; of 6, 7, 8
    assert found.parameter_bytes == 8 * 32 * 4
    assert found.activation_bytes == 4 * 8 * 4  # the input alone: the weight is no activation
    assert found.output_bytes == 4 * 32 * 4
    assert found.flops == 3 * 2 * 4 * 8 * 32  # forward once, backward for input and weight


def test_a_layer_gets_what_the_one_before_it_made_and_parameters_are_left_as_they_were():
    first, second = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
    before = [one.clone() for one in (*first.parameters(), *second.parameters())]
    found = list(profile_layers(named([first, second]), torch.randn(7, 3), "cpu", Repeats(0, 1), WallClock()))
    assert [layer.name for layer in found] == ["Linear.0", "Linear.1"]
    assert found[1].output_bytes == 7 * 2 * 4
    assert all(torch.equal(one, other) for one, other in zip(before, (*first.parameters(), *second.parameters()), strict=True))
    assert all(one.grad is None for one in (*first.parameters(), *second.parameters()))


def test_a_profile_is_kept_until_model_or_micro_batch_change(model, tmp_path):
    said: list[dict] = []
    request = ProfileRequest(str(model), micro_batch=2, processes=1, device="cpu", repeats=Repeats(0, 1))
    path = profile(request, tmp_path / "cache", said.append)
    assert said[-1] == {"profile": str(path), "cached": False}
    assert [words["done"] for words in said[:-1]] == sorted(words["done"] for words in said[:-1])
    assert profile(request, tmp_path / "cache", said.append) == path
    assert said[-1]["cached"]
    profile(request, tmp_path / "cache", said.append, fresh=True)
    assert not said[-1]["cached"]
    other = ProfileRequest(str(model), micro_batch=3, processes=1, device="cpu", repeats=Repeats(0, 1))
    assert profile(other, tmp_path / "cache", said.append) != path
    model.write_text(MODEL.replace("32", "64"))
    assert profile(request, tmp_path / "cache", said.append) != path
    assert len(list((tmp_path / "cache").iterdir())) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"has no function layers\(\)"),
        ("def layers(): return []", "gave none"),
        ("import torch\ndef layers(): return [torch.nn.Linear(2, 2)]", r"has no function batch\(\)"),
        (MODEL.replace("nn.Linear(8, 50)", "nn.Linear(9, 50)"), "layer 'head' failed on its input"),
    ],
)
def test_a_model_that_cannot_be_profiled_is_told_what_it_lacks(model, tmp_path, text, message):
    model.write_text(text)
    with pytest.raises(ModelError, match=message):
        profile(ProfileRequest(str(model), processes=1, device="cpu", repeats=Repeats(0, 1)), tmp_path / "cache", lambda _: None)


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="no such file, nor a module"):
        profile(ProfileRequest("no_such_model"), tmp_path, lambda _: None)


def test_a_profile_is_shown_layer_by_layer(model, tmp_path, capsys):
    path = profile(ProfileRequest(str(model), processes=1, device="cpu", repeats=Repeats(0, 1)), tmp_path, lambda _: None)
    print_profile(json.loads(path.read_text()), path, cached=True, wide=True)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("embedding", "middle", "head", "forward ms", "from the cache", str(path)))


def test_one_process_reduces_nothing():
    assert all_reduce_ms([100, 200, 100], 1, "gloo") == {100: 0.0, 200: 0.0}


def test_the_planner_makes_templates_and_t_of_a_profile(model, tmp_path):
    path = profile(ProfileRequest(str(model), micro_batch=2, processes=1, device="cpu", repeats=Repeats(0, 2)), tmp_path, lambda _: None)
    profiled = read_profile(path)
    assert len(profiled.layers) == 3
    assert profiled.flops == pytest.approx(3 * 2 * 12 * (2 * 8 * 32 + 8 * 50))
    hardware = Hardware(name="x", peak_flops=1, memory_bytes=1e9, memory_bytes_s=1, link_bytes_s=1e9, network_bytes_s=1e12, gpus_per_node=1)
    row = throughput(profiled, hardware, nodes=4, global_batch=64)
    assert row[0] == 0 < row[1] < row[4]
    made = ThroughputModel(hardware, profiled={"small": row})
    assert made.estimate("small", 4).flops == row[4]
    assert made.estimate("small", 4).source is ThroughputSource.MODELLED
    assert made.row("small", 8)[5:].sum() == 0
    with pytest.raises(ConfigError, match="less than the 2 samples"):
        throughput(profiled, hardware, nodes=4, global_batch=1)


def test_a_job_of_a_cluster_file_may_have_a_profile_in_place_of_a_model(model, tmp_path):
    path = profile(ProfileRequest(str(model), micro_batch=2, processes=1, device="cpu", repeats=Repeats(0, 2)), tmp_path, lambda _: None)
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(f'[cluster]\nnodes = 4\ngpus_per_node = 1\n\n[[job]]\nname = "small"\nprofile = "{path.name}"\nglobal_batch = 64\n')
    done = CliRunner().invoke(main, ["plan", str(cluster), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["jobs"][0]["nodes"] > 0
    path.write_text("{}")
    done = CliRunner().invoke(main, ["plan", str(cluster)])
    assert "line 7: job[0].profile" in done.output
    assert "profile the model again" in done.output
