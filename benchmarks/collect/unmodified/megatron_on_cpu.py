"""Lets Megatron-Core run where there is no GPU: what it asks of one, whether it uses it or not, is answered. Import it before Megatron-Core."""

import contextlib
import os
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch


class Nothing:
    """A stream or an event of no GPU."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *_: object) -> None: ...


class OnCpu(torch.overrides.TorchFunctionMode):
    """What is to be made on a GPU is made on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
        return function(*args, **kwargs)


def install() -> None:
    """For the life of the process."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *_, **__: None
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = cuda.stream = lambda *_, **__: Nothing()
    torch.Tensor.cuda = lambda self, *_, **__: self
    OnCpu().__enter__()
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
