"""Whose gradient was no number first: looked at before it is exchanged, for behind the exchange it is no number on any worker.

Behind each gradient of a backward pass its sum is taken, in the script's own stream: it is no finite number where one of its elements is none. DistributedDataParallel, which
exchanges a gradient once it is there, begins after that; so does a script that reduces its gradients itself. At the end of the step one number tells which tensor is the last of those,
which is the nearest to the loss: a backward pass carries NaN on to all that come before.

Where that costs more than half a percent of the time, as with small models on a CPU, only every second, fourth, … tensor is looked at, the first always: what is carried on is seen
there, too. Where one costs as much, only every so many steps are checked. On a GPU, what a sum takes is not waited for, and reckoned by its bytes.
"""

import contextlib
import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from . import messages
from .replica_digest import GPU_BYTES_PER_S, MOST, SHARE, interval

VALUE = "bad_gradient"
"""Value of a step: 0 where all gradients were numbers, else 1 + the place of the tensor, as the parameters were given."""
VARIABLE = "EAGLE_EYE_GRADIENT_CHECKS"
"""'0' in a worker's environment: none are made."""
MEASURED = 16
"""Checked steps whose cost decides about the next ones."""
TOLD_EVERY_S = 60.0
"""Between two messages that name a tensor: a loss scaler makes some bad steps in succession."""
DIMENSIONS = tuple(tuple(range(count)) for count in range(9))
"""All of a tensor, by how many it has."""
_log = logging.getLogger("eagle_eye.probe")


class GradientChecks:
    """Of one worker's parameters. Hooks of torch call `_look`, from a thread of autograd on a GPU; none of them raises."""

    def __init__(self, parameters: Iterable[Any], clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock_ns
        given = [each for each in parameters if _can_be_checked(each)]
        self._parameters = [weakref.ref(each) for each in given]
        """The script may let go of its model."""
        devices = {each.device for each in given}
        self._sums = {device: _zeros(len(given), device) for device in devices}
        """Device → a tensor with one sum for each parameter, 0.0 where there is none."""
        self._places = {device: _places(len(given), device) for device in devices}
        """Device → 1, 2, 3, …"""
        self._every, self._due, self._seen = 1, True, False
        self._spent_ns, self._steps = 0.0, 0
        self._least_ns = self._shortest_s = float("inf")
        """What a checked step has cost, and how long one took, at least: the first ones wait for kernels to be loaded."""
        self._told_at = float("-inf")
        self._teller: threading.Thread | None = None
        self._hooks = [each.register_post_accumulate_grad_hook(self._hook(place, each)) for place, each in enumerate(given)]

    def end(self, number: int, step_s: float) -> Any | None:
        """Behind the step of that number: the value of it, a number or a tensor of one; None where it was not checked."""
        began = self._clock()
        found = self._result() if self._due and self._seen else None
        if found is not None:
            self._choose(self._spent_ns + self._clock() - began, step_s)
        self._due, self._seen, self._spent_ns = (number + 1) % self._every == 0, False, 0.0
        return found

    def tell(self, step: int, place: float) -> None:
        """The value of a step has come: where a gradient was no number, tell the launcher which. By a thread: what it takes is nothing that training waits for."""
        index, now = int(place) - 1, self._clock() / 1e9
        parameter = self._parameters[index]() if 0 <= index < len(self._parameters) else None
        if parameter is not None and now - self._told_at > TOLD_EVERY_S:
            self._told_at = now
            self._teller = threading.Thread(target=_tell, args=(step, parameter), name="eagle-eye-gradient", daemon=True)
            self._teller.start()

    def join(self) -> None:
        """Wait until the newest message is out."""
        if self._teller is not None:
            self._teller.join()

    def stop(self) -> None:
        """Look at none any more."""
        self._due = False
        for hook in self._hooks:
            hook.remove()

    def _hook(self, place: int, parameter: Any) -> Callable[[Any], None]:
        """A function of few microseconds: a model has hundreds of parameters."""
        torch, clock = sys.modules["torch"], self._clock
        is_compiling = torch.compiler.is_compiling
        into = self._sums[parameter.device][place]
        on_gpu_ns = parameter.numel() * parameter.element_size() / GPU_BYTES_PER_S * 1e9 if parameter.is_cuda else 0.0

        def look(parameter: Any) -> None:
            if is_compiling() or not self._due:  # compiled autograd traces hooks: this one is nothing there
                return
            try:
                began = clock()
                gradient = parameter.grad
                if gradient is None or not _has_values(torch, gradient) or (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
                    return
                torch.sum(gradient.detach() if gradient.requires_grad else gradient, dim=DIMENSIONS[gradient.dim()], dtype=torch.float32, out=into)
                self._seen = True
                self._spent_ns += clock() - began + on_gpu_ns
            except Exception:  # noqa: BLE001 - it is called in the script's backward pass: whatever is wrong, that goes on
                self._due, self._every = False, MOST
                _log.debug("gradients are not looked at any more", exc_info=True)

        return look

    def _result(self) -> Any:
        """1 + the place of the last sum that is no finite number; 0: none. Leaves the sums at 0.0."""
        torch = sys.modules["torch"]
        found = None
        for device, sums in self._sums.items():
            last = torch.where(torch.isfinite(sums), 0.0, self._places[device]).max()
            sums.zero_()
            found = last if found is None else torch.maximum(found, last.to(found.device, non_blocking=True))
        return found

    def _choose(self, cost_ns: float, step_s: float) -> None:
        """Which tensors are looked at from here on, and in which steps."""
        self._steps, self._least_ns, self._shortest_s = self._steps + 1, min(self._least_ns, cost_ns), min(self._shortest_s, step_s)
        if self._steps < MEASURED:
            return
        parts = interval(self._least_ns / 1e9, self._shortest_s, SHARE, least=1)
        self._steps, self._least_ns, self._shortest_s = 0, float("inf"), float("inf")
        if len(self._hooks) == 1:
            self._every = parts
        elif parts > 1:
            for place, hook in enumerate(self._hooks):
                if place % parts:
                    hook.remove()
            self._hooks = self._hooks[::parts]


def _zeros(count: int, device: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.zeros(count, dtype=torch.float32, device=device)


def _places(count: int, device: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.arange(1, count + 1, dtype=torch.float32, device=device)


def _can_be_checked(tensor: Any) -> bool:
    """No part of a sharded tensor: its gradient is there once it is exchanged."""
    torch = sys.modules.get("torch")
    if torch is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    plain = tensor.dim() < len(DIMENSIONS) and tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)  # sums of float64 may be more than a float32 holds
    return bool(plain and tensor.is_leaf and tensor.requires_grad and tensor.device.type in ("cpu", "cuda"))


def _has_values(torch: Any, gradient: Any) -> bool:
    """It is a plain dense tensor whose storage was not freed by a hook before: who reads that ends the process. In few steps, as all in the hook."""
    return type(gradient) is torch.Tensor and not gradient.is_nested and gradient.layout is torch.strided and (gradient.untyped_storage().nbytes() > 0 or not gradient.numel())


def _tell(step: int, parameter: Any) -> None:
    try:
        messages.tell_launcher("bad_gradient", step=step, tensor=name_of(parameter), shape="x".join(map(str, parameter.shape)))
    except Exception:  # noqa: BLE001 - a thread of the script's process: an exception in it would be told as the script's
        _log.debug("the launcher is not told of a bad gradient", exc_info=True)


def name_of(parameter: Any) -> str:
    """Its name in the outermost module that has it, as `named_parameters` has it; "" of one that is in none."""
    torch = sys.modules["torch"]
    names = [""]
    for module in gc.get_objects():
        if issubclass(type(module), torch.nn.Module):  # by type, not isinstance: that would wake up every lazy proxy on the heap
            with contextlib.suppress(Exception):  # of one that was not made as a whole, or is changed now
                names += (name for name, each in module.named_parameters() if each is parameter)
    return max(names, key=len)
