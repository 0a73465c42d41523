"""What an integration makes of a framework's loop, and that none of it reaches the loop."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle_eye.training.fault_drills import AcceleratorError
from eagle_eye.training.integrations.training_steps import TrainingSteps, counts_of, loss_scale
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter

Watched = tuple[Monitor, RingReader]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    writer = RingWriter.create(tmp_path / "ring", worker="run/a/0")
    with RingReader.open(tmp_path / "ring") as reader:
        yield Monitor(writer), reader


def tensor(*shape: int) -> SimpleNamespace:
    count = 1
    for length in shape:
        count *= length
    return SimpleNamespace(shape=shape, numel=lambda: count)


@pytest.mark.parametrize(("batch", "counts"), [
    (tensor(4, 8), {"samples": 4}),
    ((tensor(4, 8), tensor(4)), {"samples": 4}),
    ({"pixels": [tensor(3, 2)]}, {"samples": 3}),
    ({"labels": tensor(2), "input_ids": tensor(2, 16)}, {"samples": 2, "tokens": 32, "sequence_length": 16}),
    ({"input_ids": tensor(32)}, {"samples": 32, "tokens": 32}),
    (tensor(), {}), ("text", {}), ({}, {}), (None, {}), (7, {}), ([[[[tensor(4)]]]], {}),
])  # fmt: skip
def test_samples_and_tokens_of_a_batch(batch: Any, counts: dict[str, float]) -> None:
    assert counts_of(batch) == counts


def test_micro_batches_are_added_up_until_the_update(watched: Watched) -> None:
    monitor, reader = watched
    steps = TrainingSteps(monitor, counts_of)
    steps.start(40)
    for loss, stepped in ((1.0, False), (2.0, True), (5.0, True), (7.0, False)):
        steps.micro_batch({"input_ids": tensor(2, 8)})
        steps.loss(loss)
        steps.end_micro_batch(stepped=stepped)
    steps.stop()
    found = [(step.number, step.values["loss"], step.values["samples"], step.values["tokens"]) for step in reader.steps(-1)]
    assert found == [(40, 1.5, 4.0, 32.0), (41, 5.0, 2.0, 16.0)]
    assert steps.number == 42
    assert not reader.now().running


def test_a_step_is_as_long_as_its_longest_sequence(watched: Watched) -> None:
    monitor, reader = watched
    steps = TrainingSteps(monitor, counts_of)
    steps.start(0)
    for length in (8, 32, 16):
        steps.micro_batch({"input_ids": tensor(2, length)})
        steps.end_micro_batch(stepped=length == 16)
    assert [(step.values["tokens"], step.values["sequence_length"]) for step in reader.steps(-1)] == [(112.0, 32.0)]


def flops_of(watched: Watched, model: Any) -> float | None:
    """Of a step with 32 tokens."""
    monitor, reader = watched
    steps = TrainingSteps(monitor, counts_of)
    steps.start(0, model)
    steps.micro_batch({"input_ids": tensor(2, 16)})
    steps.end_micro_batch(stepped=True)
    return reader.steps(-1)[-1].values.get("flops")


def test_the_operations_of_a_model_are_six_for_each_parameter_and_token(watched: Watched) -> None:
    assert flops_of(watched, torch.nn.Linear(4, 2)) == 6.0 * 10 * 32


def test_twin_of_adapters_experts_and_shards_no_operations_are_told(watched: Watched) -> None:
    adapters, experts, shards = torch.nn.Linear(4, 2), torch.nn.ModuleDict({"experts": torch.nn.Linear(4, 2)}), torch.nn.Linear(4, 2)
    adapters.bias.requires_grad = False
    shards.weight.ds_id = 3  # type: ignore[assignment]
    for model in (adapters, experts, shards, None, object()):
        assert flops_of(watched, model) is None


def test_the_scale_of_a_loss_is_told_once_it_is_there() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    assert loss_scale(scaler) == loss_scale(None) == {}
    scaler.scale(torch.ones(1))
    assert float(loss_scale(scaler)["loss_scale"]) == 1024.0


def failing(error: Exception) -> Any:
    def fail(*_: object) -> Any:
        raise error

    return fail


def test_what_a_batch_a_loss_or_a_script_s_count_raises_stays_here(watched: Watched) -> None:
    monitor, reader = watched
    steps = TrainingSteps(monitor, failing(ValueError("odd batch")))
    steps.start(0)
    steps.micro_batch(object())
    steps.loss(SimpleNamespace(detach=failing(RuntimeError("freed"))))
    steps.log(failing(KeyError("lr")))
    steps.end_micro_batch(stepped=True)
    assert [step.number for step in reader.steps(-1)] == [0]


def test_the_exception_of_a_drill_is_the_script_s(watched: Watched) -> None:
    steps = TrainingSteps(watched[0], failing(AcceleratorError("illegal memory access")))
    steps.start(0)
    with pytest.raises(AcceleratorError):
        steps.micro_batch(object())
