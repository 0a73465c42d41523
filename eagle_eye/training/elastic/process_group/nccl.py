"""`NcclGroup`: a process group over NCCL, aborted by NCCL's own `abort()`.

An operation of NCCL is queued on a stream and its `wait()` returns at once, so that a failure would show nowhere.
Here `wait` lasts until the stream has got there; after an abort NCCL's kernels end, the stream goes on, and what it
leaves behind is raised as Broken. torch's own watchdog would end the process: it is switched off. Communicators are
made non-blocking, so that the abort of one that hangs in its construction returns.

Written against torch 2.13; nothing here has met a GPU yet.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eagle_eye.errors import ConfigError
from eagle_eye.training.elastic.epoch_protocol import EpochAssignment, EpochSession
from eagle_eye.training.elastic.rendezvous.session_store import SessionStore
from eagle_eye.training.elastic.worker_threads import worker_threads

from .construction import Construction
from .torch_group import LONGEST, TorchGroup

TIMEOUT_S = 60.0
"""Seconds to build a communicator."""

_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else the watchdog ends the process after an abort (distributed_c10d)
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # else a watchdog that hangs in an abort ends the process
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(int(TIMEOUT_S)),
}


@dataclass(frozen=True, slots=True)
class CudaRuntime:
    """What NcclGroup uses of torch and CUDA; a fake in tests."""

    process_group: Any
    """torch.distributed.ProcessGroupNCCL."""
    device: Any
    """torch.device of this worker's GPU."""
    token: Callable[[], Any]
    """A small tensor on it."""
    synchronize: Callable[[], None]
    """Wait for what was queued on the current stream."""


def cuda_runtime() -> CudaRuntime:
    """The runtime of the current process and its current GPU. Raises ConfigError where there is no NCCL, or too old a torch."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_nccl_available() and torch.cuda.is_available()):
        raise ConfigError(f"backend 'nccl': torch {torch.__version__} finds no NCCL or no GPU here; use backend 'gloo'")
    missing = [
        name
        for name in ("Options", "abort", "eager_connect_single_device")
        if not hasattr(distributed.ProcessGroupNCCL, name)
    ]
    if missing:
        raise ConfigError(
            f"backend 'nccl': torch {torch.__version__} has no {', '.join(missing)}; 2.5 or newer is needed"
        )
    device = torch.device("cuda", torch.cuda.current_device())

    def synchronize() -> None:
        event = torch.cuda.Event()
        event.record()
        event.synchronize()

    return CudaRuntime(distributed.ProcessGroupNCCL, device, lambda: torch.zeros(1, device=device), synchronize)


class NcclGroup(TorchGroup):
    """The workers of an epoch over NCCL."""

    def __init__(self, backend: Any, assignment: EpochAssignment, cuda_runtime: CudaRuntime) -> None:
        super().__init__(
            backend, epoch=assignment.epoch, rank=assignment.rank, world=assignment.world, device=str(cuda_runtime.device)
        )
        self._synchronize = cuda_runtime.synchronize

    def _complete(self, issued: Any) -> None:
        issued.wait()
        self._synchronize()

    def _end(self) -> None:
        begun = list(self._backend)
        worker_threads().run(lambda: _abort(begun))


def form(
    session: EpochSession, assignment: EpochAssignment, timeout_s: float = TIMEOUT_S, cuda_runtime: Callable[[], CudaRuntime] = cuda_runtime
) -> NcclGroup:
    """Form the group with the other workers of the epoch. Raises Fenced, Broken, ConfigError."""
    known = cuda_runtime()
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    store = SessionStore(session, assignment.epoch, timeout_s)
    begun: list[Any] = []

    def build() -> NcclGroup:
        from torch.distributed import PrefixStore

        backend = known.process_group(PrefixStore("nccl", store), assignment.rank, assignment.world, _options(known))
        begun.append(backend)
        backend.eager_connect_single_device(known.device)
        group = NcclGroup(backend, assignment, known)
        group.all_reduce(
            known.token()
        )  # the communicator of a non-blocking one is there when the first operation is done
        return group

    made: NcclGroup = Construction(session, assignment.epoch, build, lambda: _abort(begun)).result(timeout_s)
    return made


def _options(cuda_runtime: CudaRuntime) -> Any:
    options = cuda_runtime.process_group.Options()
    options._timeout = LONGEST
    options.config.blocking = False
    return options


def _abort(backends: list[Any]) -> None:
    while backends:
        backends.pop().abort()
