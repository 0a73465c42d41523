"""Puts an elastic worker together; `eagle_eye.elastic` is the function below."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_eye.errors import ConfigError
from eagle_eye.training import probe

from .checkpointing import Checkpointing
from .fault_injection import InjectedFaults
from .launcher_session import LauncherSession
from .local_session import LocalSession
from .model import Batch, Loss, Trainable, TrainedModel
from .reduce.reduction import make_reduction
from .train_state.train_state import TrainState
from .warmup import make_ready
from .worker import ElasticWorker

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

SOCKET = "EAGLE_EYE_ELASTIC_SOCKET"
"""Where the launcher listens for elastic workers."""
JOINING = "EAGLE_EYE_JOINING"
"""1: the others of the job train already."""


def elastic(
    layers: "nn.Module | Iterable[nn.Module]",
    *,
    loss: Loss,
    batch: Batch,
    optimizer: "Callable[[list[nn.Parameter]], Optimizer]",
    micro_batches: int,
    scheduler: "Callable[[Optimizer], Any] | None" = None,
    clip: float | None = None,
    precision: str = "fp32",
    reduction: str = "exact",
    seed: int = 0,
    tokens: Callable[[Any, Any], int] | None = None,
    save_every: int = 100,
    checkpoints: str | os.PathLike[str] | None = None,
) -> ElasticWorker:
    """A worker that finishes its steps whatever happens to its peers. Training begins with its `steps`.

    layers: modules that are applied one after another, or one module.
    loss(output, target): mean over a micro-batch, a scalar tensor.
    batch(step, micro_batch) → (input, target): the same whoever asks, so that any worker can do any micro-batch.
    optimizer(parameters), scheduler(optimizer): e.g. AdamW, or a function that makes one.
    micro_batches: of a step, over all workers together; their number does not depend on how many workers there are.
    clip: greatest norm of the mean gradient. precision: "fp32" or "bf16" (with fp32 masters).
    reduction: "exact", a fixed order of additions, so that the result has the same bits for any number of workers and
    after any fault; or "fast", all-reduce while the last backward runs, equal within float tolerance.
    save_every: steps between two checkpoints, 0 for none; checkpoints: their folder (default: the launcher's).

    Under `eagle-eye run` or `launch` the launcher says who the peers are; without it the worker is alone. Raises
    ConfigError for what cannot be trained this way, LauncherLost if the launcher is gone.
    """
    session, monitor = connect()
    trained = TrainedModel(
        layers, loss=loss, batch=batch, optimizer=optimizer, scheduler=scheduler, clip=clip, precision=precision,
        seed=seed, tokens=tokens,
    )  # fmt: skip
    return assemble(
        trained, session, monitor, micro_batches=micro_batches, reduction=reduction, save_every=save_every,
        checkpoints=checkpoints,
    )  # fmt: skip


def connect() -> tuple[LauncherSession | LocalSession, probe.Monitor]:
    """The line to the launcher, if there is one, and the monitor of this worker."""
    monitor = probe.monitor()
    return _session(os.environ), monitor


def assemble(
    trained: Trainable, session: LauncherSession | LocalSession, monitor: probe.Monitor, *, micro_batches: int, reduction: str,
    save_every: int, checkpoints: str | os.PathLike[str] | None,
) -> ElasticWorker:  # fmt: skip
    """The worker of whatever is trained; the arguments are those of `elastic`."""
    gradients, reducing = make_reduction(reduction, trained.parameters, micro_batches)
    train_state = TrainState(trained.layers, trained.optimizer, masters=trained.masters, scheduler=trained.scheduler)

    def ready() -> None:
        if os.environ.get(JOINING) == "1":
            make_ready(trained, gradients, train_state)

    return ElasticWorker(
        trained, gradients, reducing, session, train_state=train_state, monitor=monitor,
        saving=Checkpointing(save_every, Path(checkpoints) if checkpoints is not None else None),
        faults=InjectedFaults.from_environment(os.environ), backend="nccl" if trained.device.type == "cuda" else "gloo",
        skipped=probe.steps_of(os.environ.get("EAGLE_EYE_SKIP_STEPS", "")), make_ready=ready,
    )  # fmt: skip


def _session(environment: Mapping[str, str]) -> LauncherSession | LocalSession:
    path = environment.get(SOCKET, "")
    if path:
        return LauncherSession.connect(path, environment.get("EAGLE_EYE_WORKER", ""), os.getpid())
    if int(environment.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError("an elastic worker gets its peers from Eagle Eye's launcher: start it with `eagle-eye run`, not torchrun")
    return LocalSession(environment.get("EAGLE_EYE_WORKER") or "alone")
