"""Where in a backward pass the last gradient is there, and what comes behind it waits for other ranks.

DistributedDataParallel waits in C++, at the end of the backward pass: behind the last gradient, in a callback of autograd's engine. One that is queued
before, with the first gradient, is called before it; one that is queued by that is called behind it.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("eagle_eye.probe")


class LastGradient:
    """Calls a function behind the last gradient of a backward pass, and another one behind what waits there. Nothing here raises into it."""

    def __init__(self, then: Callable[[], None], behind: Callable[[], None] | None = None) -> None:
        """Both are called by whoever ends the backward pass, which may be a thread of autograd, on a GPU."""
        self._then, self._behind = then, behind

    def watch(self, tensors: Any) -> Any:
        """For the next backward pass from these (a loss, or some). Returns a hook to be removed, None where nobody can be waited for, or torch traces what the pass does."""
        try:
            from torch import Tensor, compiler, distributed

            if not (distributed.is_available() and distributed.is_initialized()) or compiler.is_compiling() or _traces_backward():
                return None
            given = tensors if isinstance(tensors, (list, tuple)) else (tensors,)  # what can be read once is not ours to read
            first = next((each for each in given if isinstance(each, Tensor) and each.requires_grad), None)
            return _put_first(first, self._first_gradient) if first is not None else None
        except Exception:  # noqa: BLE001 - what it is given may be anything
            _log.debug("no hook on this backward pass", exc_info=True)
            return None

    def _first_gradient(self, _gradient: object) -> None:
        """By a thread of autograd, on a GPU."""
        _queue(self._last_gradient)

    def _last_gradient(self) -> None:
        self._then()
        if self._behind is not None:
            _queue(self._behind)


def _queue(function: Callable[[], None]) -> None:
    """To be called at the end of the backward pass that is under way."""
    try:
        from torch.autograd import Variable

        engine: Any = Variable._execution_engine
        engine.queue_callback(function)
    except Exception:  # noqa: BLE001 - a private part of torch: the backward pass goes on
        _log.debug("the end of the backward pass cannot be seen", exc_info=True)


def _put_first(tensor: Any, function: Callable[[object], None]) -> Any:
    """A hook on a tensor, before those that it has: FSDP's, which queues what waits for others, may be one."""
    hook = tensor.register_hook(function)
    hooks = tensor._backward_hooks
    for key in [key for key in hooks if key != hook.id]:
        hooks[key] = hooks.pop(key)
    return hook


def _traces_backward() -> bool:
    """Compiled autograd makes a graph of all hooks."""
    enabled = getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False)
    return bool(enabled)
