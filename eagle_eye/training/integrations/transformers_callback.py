"""transformers.Trainer as it is, watched: steps, their phases, evaluations and checkpoints, loss, gradient norm, learning rate, samples and tokens.

    from eagle_eye.training.integrations.transformers_callback import TrainerSteps

    trainer = Trainer(..., callbacks=[TrainerSteps()])

A step is an update of the optimizer (`state.global_step`), of however many batches. A callback is given no batch and no loss: batches are seen where
the model is called, and the loss is what the Trainer logs, the mean since its log before. Without a launcher it does nothing.
"""

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from eagle_eye.training.probe import Monitor, monitor

from .training_steps import CountsOf, TrainingSteps, counts_of

LOGGED = ("loss", "grad_norm")
"""Of what the Trainer logs, under the same names."""


class TrainerSteps(TrainerCallback):  # type: ignore[misc]  # of another package, which is not looked into
    """Reports what a Trainer does. The names of its methods are those of transformers.

    counts_of: a batch (the arguments of the model, by name) → its samples and tokens, where input_ids or the first tensor do not tell.
    """

    def __init__(self, *, counts_of: CountsOf = counts_of) -> None:
        self._counts_of = counts_of
        self._monitor = Monitor(None)
        self._steps: TrainingSteps | None = None
        self._hooks: tuple[Any, ...] = ()
        self._unlogged = False
        """The step under way has made its update, and what is logged next is of it."""

    def __getstate__(self) -> dict[str, Any]:
        """A model that is pickled or copied takes its hooks along, and so this callback: without what it does in this process."""
        return {"counts_of": self._counts_of}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # --- the loop

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002 - as transformers calls it, here and below
        self._release()
        self._monitor = monitor()
        if not self._monitor.watched:
            return
        self._steps = TrainingSteps(self._monitor, self._counts_of)
        self._steps.start(state.global_step, model)
        if model is not None and not args.torch_compile:  # a hook would cut the compiled graph in two
            self._hooks = (model.register_forward_pre_hook(self._before_forward, with_kwargs=True), model.register_forward_hook(self._after_forward))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """The micro-batches of a step were all fetched before."""
        self._go_on(control, "forward")

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._steps is not None:
            self._steps.end_micro_batch(stepped=False, then="other")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002
        if self._steps is not None:
            self._monitor.mark("optimizer")
            self._steps.log(lambda: {"learning_rate": optimizer.param_groups[0]["lr"]})

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._monitor.mark("other")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._steps is not None:
            self._unlogged = True
            if not control.should_log:
                self._go_on(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if self._steps is not None and logs and "loss" in logs:
            self._steps.log(lambda: {name: logs[name] for name in LOGGED if name in logs})
            self._go_on(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._go_on(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._go_on(control)
        self._monitor.stop()
        self._release()

    # --- what is no training

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._go_on(control, "evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._go_on(control)

    on_save = on_evaluate

    def _go_on(self, control: Any, phase: str = "") -> None:
        """End the step whose update was made, if one was. phase: what comes now; without it what the Trainer means to do."""
        if self._steps is None:
            return
        phase = phase or ("evaluation" if control.should_evaluate else "checkpoint" if control.should_save else "data")
        if self._unlogged:
            self._unlogged = False
            self._steps.end_micro_batch(stepped=True, then=phase)
        else:
            self._monitor.mark(phase)

    # --- what a callback is not told

    def _before_forward(self, module: Any, arguments: Any, named: Any) -> None:
        if self._steps is not None and module.training:  # an evaluation calls it, too
            self._steps.micro_batch(named or arguments)

    def _after_forward(self, module: Any, _arguments: Any, output: Any) -> None:
        """The Trainer's loss is made of the model's: of its first gradient is known when the pass is under way."""
        if self._steps is not None and module.training:  # an evaluation calls it, too
            self._steps.backward(tuple(output.values()) if isinstance(output, Mapping) else output)

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._steps, self._hooks, self._unlogged = None, (), False
