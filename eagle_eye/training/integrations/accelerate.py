"""A loop of Accelerate, watched: steps, their phases, loss, gradient norm, learning rate and samples; evaluations where the script says so.

    from eagle_eye.training.integrations.accelerate import AcceleratorSteps

    watch = AcceleratorSteps(accelerator)
    for batch in watch.steps(loader):       # in place of `for batch in loader`; the rest of the loop stays as it is
        ...
    with watch.evaluation():
        ...

A step is an update by a torch optimizer, of however many batches (`accelerator.accumulate`, or the script's own counting). What the accelerator's methods
do is marked: `backward`, `clip_grad_norm_`, those that wait for the other ranks, those that save. Without a launcher it does nothing.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from eagle_eye.training.phase_contexts import Phase
from eagle_eye.training.probe import Monitor, monitor

from .training_steps import CountsOf, TrainingSteps, counts_of, loss_scale

Item = TypeVar("Item")
PHASES = {
    "clip_grad_norm_": "optimizer", "wait_for_everyone": "communication", "gather": "communication", "reduce": "communication",
    "save_state": "checkpoint", "save_model": "checkpoint", "save": "checkpoint",
}  # fmt: skip
"""Method of an Accelerator → phase while it runs; behind it the loop is where it was before."""


class AcceleratorSteps:
    """For one Accelerator, whose methods it marks from then on. counts_of: a batch → its samples and tokens, where input_ids or the first tensor do not tell."""

    def __init__(self, accelerator: Any, *, counts_of: CountsOf = counts_of, watched_by: Monitor | None = None) -> None:
        """watched_by: another monitor than the process's own."""
        self._accelerator = accelerator
        self._monitor = monitor() if watched_by is None else watched_by
        self._steps = TrainingSteps(self._monitor, counts_of)
        self._next = 0
        self._stepped = False
        self._thread = 0
        if self._monitor.watched:
            accelerator.backward = self._backward(accelerator.backward)
            for name, phase in PHASES.items():
                setattr(accelerator, name, self._marked(getattr(accelerator, name), phase))

    def steps(self, loader: Iterable[Item], start: int | None = None) -> Iterator[Item]:
        """Yield the batches of `loader`. Steps are numbered on from those before, or from `start`.

        A step whose update is not made when the loop is left is not recorded. Exceptions of the loader and the loop pass through.
        """
        if not self._monitor.watched:
            yield from loader
            return
        self._next = self._next if start is None else start
        self._thread = threading.get_ident()
        hooks = self._watch_optimizers()
        self._monitor.found_replicas(self._parameters)
        self._steps.start(self._next)
        try:
            for batch in loader:
                self._steps.micro_batch(batch)
                yield batch
                self._end_micro_batch()
        finally:
            if self._stepped:  # left behind its update
                self._end_micro_batch()
            self._next = self._steps.number
            self._steps.stop()
            for hook in hooks:
                hook.remove()

    def evaluation(self) -> Phase:
        """`with watch.evaluation():` what runs in there is no training."""
        return self._monitor.phase("evaluation")

    def _end_micro_batch(self) -> None:
        """An update that was left out because a scaled gradient overflowed ends its step, too."""
        over = self._stepped or (self._accelerator.sync_gradients and self._accelerator.optimizer_step_was_skipped)
        self._stepped = False
        self._steps.end_micro_batch(stepped=over)

    # --- what is marked

    def _watch_optimizers(self) -> tuple[Any, ...]:
        from torch.optim import optimizer

        return (
            optimizer.register_optimizer_step_pre_hook(self._before_update),
            optimizer.register_optimizer_step_post_hook(self._after_update),
        )

    def _parameters(self) -> Iterator[Any]:
        """Of the models that the accelerator has prepared."""
        for model in getattr(self._accelerator, "_models", ()):
            yield from model.parameters()

    def _before_update(self, optimizer: Any, _arguments: object, _named: object) -> None:
        if threading.get_ident() == self._thread:
            self._monitor.mark("optimizer")
            if not self._stepped:  # of several optimizers the first one tells
                self._steps.log(lambda: {"learning_rate": optimizer.param_groups[0]["lr"], **loss_scale(getattr(self._accelerator, "scaler", None))})

    def _after_update(self, _optimizer: object, _arguments: object, _named: object) -> None:
        if threading.get_ident() == self._thread:
            self._stepped = True
            self._monitor.mark("other")

    def _backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def backward(loss: Any, *arguments: Any, **named: Any) -> Any:
            self._steps.loss(loss)
            self._steps.backward(loss)
            try:
                return function(loss, *arguments, **named)
            finally:
                self._monitor.mark("other")

        return backward

    def _marked(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def marked(*arguments: Any, **named: Any) -> Any:
            with self._monitor.phase(phase):
                result = function(*arguments, **named)
            if function.__name__ == "clip_grad_norm_" and result is not None:
                self._steps.log(lambda: {"grad_norm": result})
            return result

        return marked
