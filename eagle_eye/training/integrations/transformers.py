"""transformers.Trainer as an elastic worker: data parallel, in place, its own callbacks, logs and arguments.

    from transformers import Trainer
    from eagle_eye.training.integrations.transformers import ElasticTraining, training_arguments

    class ElasticTrainer(ElasticTraining, Trainer): ...

    arguments = training_arguments(output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=16, max_steps=1000)
    ElasticTrainer(model=model, args=arguments, train_dataset=dataset).train()

Each worker's Trainer trains as if it were the only one. Of a step of `gradient_accumulation_steps` micro-batches, which is the
number over all workers together, it computes its share; the elastic worker reduces, commits, heals and moves state. Data
are drawn by (step, micro-batch), so any worker can do any of them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from eagle_eye.errors import ConfigError
from eagle_eye.training.elastic.api import assemble, connect
from eagle_eye.training.elastic.worker import ElasticWorker

from .sample_order import PlaceholderLoader, SampleOrder
from .trainer_model import TrainerModel

if TYPE_CHECKING:
    import torch
    from transformers import TrainingArguments

PEERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""With these transformers would make a process group of its own, which could not be healed."""


def training_arguments(*arguments: Any, **named: Any) -> "TrainingArguments":
    """TrainingArguments of a worker that is alone, on its own GPU if there are some; checkpoints are the elastic worker's.

    Call it before anything else of transformers or accelerate looks at the environment.
    """
    from transformers import TrainingArguments

    _hide_peers()
    return TrainingArguments(*arguments, **{"save_strategy": "no"} | named)


def _hide_peers() -> None:
    local_rank = os.environ.get("LOCAL_RANK", "")
    visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if local_rank.isdecimal() and len(visible) != 1:
        slot = int(local_rank)
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[slot] if slot < len(visible) else str(slot)
    for name in PEERS:
        os.environ.pop(name, None)


class ElasticTraining:
    """Mix it in before Trainer, or before any class derived from it.

    reduction: "exact" or "fast"; save_every: steps between two checkpoints, 0 for none; checkpoints: their folder (default:
    the launcher's); memory_every: steps between two in memory. A loss is the mean over a micro-batch and counts as much as any other's, also where labels are padded.
    A sampler, and workers that load data ahead, are not used. Raises ConfigError for what cannot be trained this way.
    """

    if TYPE_CHECKING:
        args: Any
        state: Any
        control: Any
        optimizer: Any
        lr_scheduler: Any
        accelerator: Any
        compute_loss: Callable[..., Any]
        compute_loss_context_manager: Callable[[], Any]
        _prepare_inputs: Callable[[Any], Any]

    def __init__(
        self, *arguments: Any, reduction: str = "exact", save_every: int = 100, memory_every: int = 10, checkpoints: str | os.PathLike[str] | None = None, **named: Any
    ) -> None:
        self._reduction, self._save_every, self._memory_every, self._checkpoints = reduction, save_every, memory_every, checkpoints
        self.elastic: ElasticWorker | None = None
        """The worker behind this trainer, from its first step on."""
        self._steps: Iterator[Any] | None = None
        self._sample_order: SampleOrder | None = None
        self._trained: TrainerModel | None = None
        super().__init__(*arguments, **named)
        _refuse(self.args)

    def train(self, *arguments: Any, **named: Any) -> Any:
        """As Trainer's. The newest checkpoint of the job is found without being named."""
        if named.get("resume_from_checkpoint") or (arguments and arguments[0]):
            raise ConfigError("resume_from_checkpoint is not needed: an elastic job goes on from its newest checkpoint by itself")
        try:
            output = super().train(*arguments, **named)  # type: ignore[misc]  # of Trainer
            if self._steps is not None:
                next(self._steps, None)  # the last step is over: leave the job
            return output
        finally:
            if self._steps is not None:
                self._steps.close()  # type: ignore[attr-defined]  # a generator

    def get_train_dataloader(self) -> PlaceholderLoader:
        """What the loop counts by; the data themselves are drawn by number."""
        loader = super().get_train_dataloader()  # type: ignore[misc]  # of Trainer
        size, total = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        self._sample_order = SampleOrder(loader.dataset, loader.collate_fn, size=size, micro_batches=total, seed=seed)
        return PlaceholderLoader(loader.dataset, self._sample_order.steps_per_epoch * total)

    def create_scheduler(self, *arguments: Any, **named: Any) -> Any:
        """As Trainer's, but stepped together with the optimizer, before a new worker may take its state."""
        from .trainer_model import SchedulerView

        scheduler = super().create_scheduler(*arguments, **named)  # type: ignore[misc]  # of Trainer
        self.lr_scheduler = scheduler if isinstance(scheduler, SchedulerView) else SchedulerView(scheduler)
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> "torch.Tensor":  # noqa: ARG002 - the signature of Trainer
        """The whole step, at the last of the micro-batches that the loop counts: its mean loss, and nothing at the others."""
        import torch

        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        first = self._steps is None
        step = next(self._steps or self._begin(model), None)
        if step is None:  # the job has ended
            self.control.should_training_stop = True
            return torch.zeros((), device=self.args.device)
        self.state.global_step = step.number
        if first:
            self._globalstep_last_logged = step.number  # a mean of losses is one since the job was joined
        return torch.tensor(step.run(), device=self.args.device)

    def log(self, logs: dict[str, Any], *arguments: Any, **named: Any) -> None:
        """As Trainer's; the gradient's norm is that of the whole step, before it was clipped."""
        if "grad_norm" in logs and self._trained is not None:
            logs["grad_norm"] = self._trained.norm
        super().log(logs, *arguments, **named)  # type: ignore[misc]  # of Trainer

    def floating_point_ops(self, inputs: Any) -> int:  # noqa: ARG002 - the signature of Trainer
        """Not counted: the loop does not see the data."""
        return 0

    def is_world_process_zero(self) -> bool:
        """Whether this is rank 0 of the job; that may change with each epoch."""
        return self.elastic is None or self.elastic.rank <= 0

    def _begin(self, model: Any) -> Iterator[Any]:
        if self._sample_order is None:
            raise ConfigError("the data loader was made elsewhere: let get_train_dataloader of ElasticTraining make it")
        trained = self._trained = TrainerModel(
            model, self._backward(model), self._sample_order, optimizer=self.optimizer, scheduler=self.lr_scheduler.scheduler,
            clip=self.args.max_grad_norm, seed=self.args.seed,
        )  # fmt: skip
        session, monitor = connect()
        self.elastic = assemble(
            trained, session, monitor, micro_batches=self.args.gradient_accumulation_steps, reduction=self._reduction,
            save_every=self._save_every, memory_every=self._memory_every, checkpoints=self._checkpoints,
        )  # fmt: skip
        self._steps = self.elastic.steps(until=self.state.max_steps)
        return self._steps

    def _backward(self, model: Any) -> Callable[[Any], float]:
        def backward(inputs: Any) -> float:
            model.train()
            given = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, given)
            loss.backward()
            return float(loss.detach())

        return backward


def _refuse(args: Any) -> None:
    """Raises ConfigError for arguments that would go past the elastic worker."""
    wrong: Sequence[tuple[bool, str]] = (
        (args.world_size > 1, "this Trainer is part of a process group: make its arguments with training_arguments(...) of this module"),
        (args.n_gpu > 1, "this Trainer sees several GPUs: give each worker one, by CUDA_VISIBLE_DEVICES or training_arguments(...)"),
        (bool(args.fp16), "fp16 scales the loss by what one worker sees: use bf16=True"),
        (bool(args.deepspeed or args.fsdp), "DeepSpeed and FSDP split the model over a fixed group: an elastic worker holds all of it"),
        (str(getattr(args.save_strategy, "value", args.save_strategy)) != "no", "the elastic worker saves: save_strategy='no', and save_every=N for ElasticTraining"),
    )
    for is_wrong, why in wrong:
        if is_wrong:
            raise ConfigError(why)
