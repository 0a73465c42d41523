"""An elastic worker tells digests of its parameters and of the reduced gradients, and whether its own were numbers, without a word of its script."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from eagle_eye.training.elastic.api import assemble
from eagle_eye.training.elastic.local_session import LocalSession
from eagle_eye.training.elastic.model import TrainedModel
from eagle_eye.training.probe import Monitor
from eagle_eye.training.replica_digest import LEAST, digest_of
from eagle_eye.training.ring_buffer import RingReader, RingWriter


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    return torch.full((2, 4), float(step + micro_batch)), torch.ones(2, 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_digests_of_an_elastic_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr(torch_optimizer, "_global_optimizer_pre_hooks", type(torch_optimizer._global_optimizer_pre_hooks)())
    trained = TrainedModel([nn.Linear(4, 1)], loss=nn.functional.mse_loss, batch=batch, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3), precision=precision)
    monitor = Monitor(RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0))
    with RingReader.open(tmp_path / "ring") as reader:
        worker = assemble(trained, LocalSession("alone"), monitor, micro_batches=2, reduction="exact", save_every=0, checkpoints=None)
        for _ in worker.steps(LEAST):
            pass
        last = reader.steps(-1)[-1].values
    found, _ = digest_of(trained.parameters)
    assert last["replica_digest"] == float(found)  # type: ignore[arg-type]
    assert ("gradient_digest" in last) == (precision == "fp32"), "its optimizer updates masters"
    assert (last["bad_gradient"], monitor.status()["faults"]) == (0.0, 0)
