"""The public API: `eagle_eye.elastic` builds an elastic worker from a model, a loss and data."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from eagle_eye.errors import ConfigError
from eagle_eye.training import probe
from eagle_eye.training.object_path import storage_path

from .checkpointing import Checkpointing
from .fault_injection import InjectedFaults
from .launcher_session import LauncherSession
from .local_session import LocalSession
from .model import BatchFunction, LossFunction, Trainable, TrainedModel
from .reduce.gradients import Gradients
from .reduce.reduction import make_reduction
from .replica_memory import ReplicaMemory
from .train_state import huge_pages
from .train_state.train_state import TrainState
from .worker import ElasticWorker

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_log = logging.getLogger("eagle_eye.elastic")

SOCKET = "EAGLE_EYE_ELASTIC_SOCKET"
"""Environment variable: the unix socket on which the launcher listens for elastic workers."""
JOINING = "EAGLE_EYE_JOINING"
"""Environment variable, 1: the other workers of the job train already."""


def elastic(
    layers: "nn.Module | Iterable[nn.Module]",
    *,
    loss: LossFunction,
    batch: BatchFunction,
    optimizer: "Callable[[list[nn.Parameter]], Optimizer]",
    micro_batches: int,
    scheduler: "Callable[[Optimizer], Any] | None" = None,
    clip: float | None = None,
    precision: str = "fp32",
    reduction: str = "exact",
    seed: int = 0,
    tokens: Callable[[Any, Any], int] | None = None,
    save_every: int = 100,
    memory_every: int = 10,
    checkpoints: str | os.PathLike[str] | None = None,
) -> ElasticWorker:
    """An elastic worker, which finishes its steps whatever happens to its peers. Training starts with its `steps`.

    layers: modules that are applied one after another, or one module.
    loss(output, target): mean over a micro-batch, a scalar tensor.
    batch(step, micro_batch) → (input, target): the same on every worker, so that any worker can compute any micro-batch.
    optimizer(parameters), scheduler(optimizer): e.g. AdamW, or a function that makes one.
    micro_batches: of a step, over all workers together; their number does not depend on how many workers there are.
    clip: the norm to which the mean gradient is clipped. precision: "fp32" or "bf16" (with fp32 masters).
    reduction: "exact", a fixed order of additions, so that the result has the same bits for any number of workers and
    after any fault; or "fast", all-reduce while the last backward runs, equal within float tolerance.
    save_every: steps between two checkpoints, 0 for none; checkpoints: their folder (default: the launcher's).
    memory_every: steps between two that one worker of each node keeps in its memory, 0 for none (docs/checkpoints.md).

    Under `eagle-eye run` or `launch` the launcher assigns the peers; without a launcher the worker trains alone. Raises
    ConfigError for a model or an option that cannot be trained this way, LauncherLost if the launcher is gone.
    """
    session, monitor = connect()
    trained = TrainedModel(
        layers, loss=loss, batch=batch, optimizer=optimizer, scheduler=scheduler, clip=clip, precision=precision,
        seed=seed, tokens=tokens,
    )  # fmt: skip
    return assemble(
        trained, session, monitor, micro_batches=micro_batches, reduction=reduction, save_every=save_every,
        memory_every=memory_every, checkpoints=checkpoints,
    )  # fmt: skip


def connect() -> tuple[LauncherSession | LocalSession, probe.Monitor]:
    """The session with the launcher, or a local one without it, and the monitor of this worker."""
    monitor = probe.monitor()
    return _session(os.environ), monitor


def assemble(
    trained: Trainable, session: LauncherSession | LocalSession, monitor: probe.Monitor, *, micro_batches: int, reduction: str,
    save_every: int, checkpoints: str | os.PathLike[str] | None, memory_every: int = 10,
) -> ElasticWorker:  # fmt: skip
    """The worker that trains `trained`; the other arguments are those of `elastic`. Integrations call it with their own model."""
    gradients, reduction_of_step = make_reduction(reduction, trained.parameters, micro_batches)
    train_state = TrainState(trained.layers, trained.optimizer, masters=trained.masters, scheduler=trained.scheduler)
    monitor.found_replicas(trained.parameters)

    def warm_up_if_joining() -> None:
        if os.environ.get(JOINING) == "1":
            warm_up(trained, gradients, train_state)

    memory = ReplicaMemory(trained.optimizer, memory_every, getattr(trained, "data_position", lambda _: None))
    return ElasticWorker(
        trained, gradients, reduction_of_step, session, train_state=train_state, monitor=monitor,
        checkpointing=Checkpointing(save_every, storage_path(checkpoints) if checkpoints is not None else None, memory),
        faults=InjectedFaults.from_environment(os.environ), backend="nccl" if trained.device.type == "cuda" else "gloo",
        skipped=probe.steps_of(os.environ.get("EAGLE_EYE_SKIP_STEPS", "")), warm_up=warm_up_if_joining,
    )  # fmt: skip


def _session(environment: Mapping[str, str]) -> LauncherSession | LocalSession:
    path = environment.get(SOCKET, "")
    if path:
        return LauncherSession.connect(path, environment.get("EAGLE_EYE_WORKER", ""), os.getpid())
    if int(environment.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError("WORLD_SIZE is above 1 without Eagle Eye's launcher: start an elastic worker with `eagle-eye run`, not torchrun")
    return LocalSession(environment.get("EAGLE_EYE_WORKER") or "alone")


# --- warm-up


def warm_up(trained: Trainable, gradients: Gradients, train_state: TrainState) -> None:
    """Do what can be done before a worker joins a job that trains. The training state and the accumulated gradients are unchanged afterwards.

    The other workers wait from the step boundary at which it joins until it has its state, and in its first step until it has computed its
    micro-batches. So it allocates memory for the state before, and computes one micro-batch for which no other worker waits.
    """
    _run_first_micro_batch(trained, gradients)
    preallocated = train_state.preallocate()
    huge_pages.collapse([*(entry.tensor for layer in train_state.layers for entry in layer.entries), *preallocated])


def _run_first_micro_batch(trained: Trainable, gradients: Gradients) -> None:
    """Forward and backward of a micro-batch whose result is discarded: the first one of a process takes longer than any other."""
    before = {(layer, name): buffer.clone() for layer in trained.layers for name, buffer in layer.named_buffers()}
    gradients.begin(0)
    try:
        gradients.finish(0, *trained.run(0, 0))
    except Exception:  # noqa: BLE001 - the user's code: the same error is raised in the first step
        _log.debug("the warm-up micro-batch failed", exc_info=True)
    finally:
        gradients.clear()
    for layer in trained.layers:
        for name, buffer in layer.named_buffers():
            _restore(buffer, before.get((layer, name)))


def _restore(buffer: "Tensor", before: "Tensor | None") -> None:
    if before is not None and before.shape == buffer.shape:
        buffer.detach().copy_(before)
