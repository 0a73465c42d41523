"""Lightning's Trainer, watched: steps, their phases, evaluations and checkpoints, loss, learning rate and samples.

    from eagle_eye.training.integrations.lightning import StepCallback

    trainer = Trainer(callbacks=[StepCallback()])

A step is an update of the optimizer (`trainer.global_step`), of however many batches; one of several optimizers counts once. An evaluation within the
fit is a phase of the step that is under way, or of none behind the last. Without a launcher it does nothing. Import lightning or pytorch_lightning first.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from eagle_eye.training.phase_contexts import Phase
from eagle_eye.training.probe import Monitor, monitor

from .training_steps import CountsOf, TrainingSteps, counts_of, loss_scale

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:  # two packages with the same classes: the one that is used
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


FETCH = ".train_dataloader_next"
"""End of the name under which a profiler is told that the training asks for a batch."""


class StepCallback(Callback):  # type: ignore[misc]  # of another package, which is not looked into
    """Reports what a Trainer does. The names of its methods are Lightning's.

    counts_of: a batch → its samples and tokens, where input_ids or the first tensor do not tell. gradient_norm: compute it before each update, in one
    more pass over the gradients; it is that of a rank's own shard with FSDP. A script that knows it logs it for nothing: `eagle_eye.monitor().log(grad_norm=...)`.
    """

    def __init__(self, *, counts_of: CountsOf = counts_of, gradient_norm: bool = False) -> None:
        self._counts_of, self._gradient_norm = counts_of, gradient_norm
        self._monitor: Monitor = Monitor(None)
        self._steps: TrainingSteps | None = None
        self._updates = 0
        self._evaluation: Phase | None = None
        self._fetches = False
        """It was seen when a batch is asked for: what comes before that is no wait for data."""
        self._wrapped: list[tuple[Any, str]] = []

    def __getstate__(self) -> dict[str, Any]:
        """On its way to another process, which has its own monitor."""
        return {**self.__dict__, "_monitor": None, "_steps": None, "_evaluation": None, "_wrapped": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._monitor = Monitor(None)

    # --- the loop

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - the signature of Lightning, here and below
        self._monitor = monitor()
        if self._monitor.watched and not self._wrapped:
            self._wrap(trainer, "save_checkpoint", self._saving)
            self._wrap(getattr(trainer, "profiler", None), "start", self._fetching)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        for owner, name in self._wrapped:
            vars(owner).pop(name, None)
        self._monitor, self._steps, self._wrapped = Monitor(None), None, []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps, self._updates = TrainingSteps(self._monitor, self._counts_of), trainer.global_step
        self._steps.start(trainer.global_step, pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if self._steps is not None:
            self._steps.micro_batch(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        if self._steps is not None:
            self._steps.backward(loss)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._monitor.mark("other")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002
        self._monitor.mark("optimizer")
        if self._steps is not None:
            self._steps.log(lambda: {"learning_rate": optimizer.param_groups[0]["lr"]})
            self._steps.log(lambda: loss_scale(getattr(trainer.precision_plugin, "scaler", None)))
            if self._gradient_norm:
                self._steps.log(lambda: {"grad_norm": _norm(optimizer.param_groups)})

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if self._steps is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and pl_module.automatic_optimization and trainer.accumulate_grad_batches > 1:
            loss = loss * trainer.accumulate_grad_batches  # it comes divided by that
        self._steps.loss(loss)
        before, self._updates = self._updates, trainer.global_step
        self._steps.end_micro_batch(stepped=self._updates > before, then="other" if self._fetches else "data")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._monitor.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._monitor.stop()

    # --- what is no training

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._evaluation = self._monitor.phase("evaluation")
        self._evaluation.__enter__()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._evaluation is not None:
            self._evaluation.__exit__()
            self._evaluation = None

    on_test_start, on_test_end = on_validation_start, on_validation_end
    on_predict_start, on_predict_end = on_validation_start, on_validation_end

    # --- what Lightning has no hook for

    def _wrap(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Until teardown this object has another method of its own."""
        function, own = getattr(owner, name, None), getattr(owner, "__dict__", None)
        if function is not None and own is not None and name not in own:  # where somebody has put theirs, it stays
            own[name] = functools.wraps(function)(around(function))
            self._wrapped.append((owner, name))

    def _saving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(*arguments: Any, **named: Any) -> Any:
            with self._monitor.phase("checkpoint"):
                return function(*arguments, **named)

        return save_checkpoint

    def _fetching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A profiler is told of everything, also of the moment in which the loop asks for a batch."""

        def start(action_name: str, *arguments: Any, **named: Any) -> Any:
            if self._steps is not None and action_name.endswith(FETCH):
                self._fetches = True
                self._monitor.mark("data")
            return function(action_name, *arguments, **named)

        return start


def _norm(groups: Any) -> Any:
    """Euclidean norm of all gradients, a tensor of one element on their device."""
    import torch

    gradients = [each.grad for group in groups for each in group["params"] if each.grad is not None]
    norms = [torch.linalg.vector_norm(each.detach()).to(gradients[0].device) for each in gradients]
    return torch.linalg.vector_norm(torch.stack(norms))
