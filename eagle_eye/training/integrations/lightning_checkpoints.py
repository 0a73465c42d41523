"""Lightning with checkpoints in memory: `trainer.fit` goes on from the step that the worker's predecessor was at.

    from eagle_eye.training.integrations.lightning_checkpoints import MemoryCheckpointCallback

    trainer = Trainer(callbacks=[MemoryCheckpointCallback()])

Before a batch that begins a step the state goes to memory beside that step: module, optimizers, schedulers, scaler, loops, callbacks, data module, random
generators, and how far the epoch's data were read. `fit` goes on from there where that is newer than the checkpoint that it is given. ModelCheckpoint, or whatever saves to
disk, is left as it is. Without a launcher nothing is kept and nothing is loaded. Import lightning or pytorch_lightning first.
"""

import itertools
import logging
from collections.abc import Callable
from typing import Any

from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.random_state import random_state, restore_random_state

from .batch_order import BatchOrder, order_of
from .lightning import Callback  # type: ignore[attr-defined]  # of whichever of the two packages is used
from .lightning_scores import with_tensors, without_tensors

EPOCH_LOOP = "epoch_loop."
"""Before the names of its states in that of the loop around it."""
PROCESS = "process_dataloader"
_fits = itertools.count(1)
"""Of this process. The second `fit` of a script does not go on from what the first one kept."""
_log = logging.getLogger("eagle_eye.checkpoint")


class MemoryCheckpointCallback(Callback):  # type: ignore[misc]  # of another package, which is not looked into
    """The names of its methods are Lightning's. `every`: so many steps of the optimizer are between two that are kept."""

    def __init__(self, *, every: int = 1) -> None:
        self._every = every
        self._memory: MemoryCheckpoints | None = None
        self._fit = ""
        self._given: dict[str, Any] | None = None
        """The checkpoint that `fit` was given."""
        self._found: dict[str, Any] | None = None
        """What is gone on from, until its first batch is there."""
        self._orders: list[BatchOrder] = []
        """One for each loader."""
        self._batch_seen = False
        self._stepped = -1
        self._unwrap: Callable[[], None] = lambda: None

    # --- load

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - the signature of Lightning, here and below
        self._given = None

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        self._given = checkpoint

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is on its device and there are optimizers; what a given checkpoint has of them and of the loops is put in place behind this."""
        given, self._given = self._given, None
        memory = MemoryCheckpoints(trainer.optimizers)
        if trainer.strategy.restore_checkpoint_after_setup or not memory.has_place:
            if memory.has_place:
                _log.warning("no checkpoints in memory: %s cuts the state by its own means; Lightning's checkpoints decide", type(trainer.strategy).__name__)
            return
        self._memory, self._fit, self._stepped = memory, f"fit {next(_fits)}", -1
        found = memory.load({self._fit: {"model": pl_module.state_dict()}}, at_least=int(given["global_step"]) + 1 if given else 0)
        if found is not None:
            self._found = found.state[self._fit]
            self._put_back(trainer, self._found, given)
        self._wrap(trainer)

    def _put_back(self, trainer: Any, state: dict[str, Any], given: dict[str, Any] | None) -> None:
        """The tensors of the model were filled."""
        if given is not None:  # Lightning puts that in place when this is done
            given |= {"optimizer_states": state["optimizers"], "lr_schedulers": state["schedulers"], "loops": {"fit_loop": state["loops"]}}
            given |= {type(trainer.precision_plugin).__qualname__: state["precision"]} if state["precision"] else {}
        else:
            for optimizer, held in zip(trainer.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(held)
            for config, held in zip(trainer.lr_scheduler_configs, state["schedulers"], strict=True):
                config.scheduler.load_state_dict(held)
            if state["precision"]:
                trainer.precision_plugin.load_state_dict(state["precision"])
            trainer.fit_loop.load_state_dict(state["loops"])
        for callback in trainer.callbacks:
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(with_tensors(state["callbacks"][callback.state_key]))
        if state["datamodule"] and trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(state["datamodule"])

    # --- the data

    def _wrap(self, trainer: Any) -> None:
        """Until the end of the fit: what Lightning calls for each loader, before it asks it for the batches of an epoch."""
        own, function = vars(trainer.strategy), trainer.strategy.process_dataloader
        before = {name: own[name] for name in [PROCESS] if name in own}

        def process_dataloader(loader: Any) -> Any:
            loader = function(loader)
            return self._begin_data(loader) if trainer.training else loader

        def unwrap() -> None:
            del own[PROCESS]
            own.update(before)

        own[PROCESS] = process_dataloader
        self._unwrap = unwrap

    def _begin_data(self, loader: Any) -> Any:
        if hasattr(loader, "load_state_dict"):  # it is put in place with the loops
            return loader
        if self._batch_seen:  # the loaders are made anew
            self._orders, self._batch_seen = [], False
        replaced, order = order_of(loader)
        self._orders.append(order)
        if self._found is None:
            return loader
        samplers: list[Any] = [getattr(loader, "sampler", None), getattr(order, "sampler", None)]
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):  # Lightning calls that when workers of the loader have drawn from it already
                sampler.set_epoch(self._found["epoch"])
        drawn_from = self._found["drawn_from"]
        order.resume(self._found["batches"], drawn_from[len(self._orders) - 1] if len(self._orders) <= len(drawn_from) else None)
        return replaced

    # --- save

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if self._memory is None:
            return
        self._batch_seen = True
        if self._found is not None:
            self._go_on(trainer, self._found)
        before, self._stepped = self._stepped, trainer.global_step
        clean = not pl_module.automatic_optimization or batch_idx % trainer.accumulate_grad_batches == 0
        if clean and before // self._every < self._stepped // self._every:
            self._save(trainer, pl_module, batch_idx)

    def _go_on(self, trainer: Any, state: dict[str, Any]) -> None:
        """This batch is the one before which the state was kept; on the way to it Lightning has counted some things twice."""
        self._found, loops, epoch_loop = None, state["loops"], trainer.fit_loop.epoch_loop
        epoch_loop.batch_progress.load_state_dict(state["batch_progress"])
        epoch_loop.val_loop.batch_progress.load_state_dict(loops[f"{EPOCH_LOOP}val_loop.batch_progress"])
        epoch_loop.on_load_checkpoint(loops[f"{EPOCH_LOOP}state_dict"])
        restore_random_state(state["random"])

    def _save(self, trainer: Any, module: Any, batches: int) -> None:
        assert self._memory is not None
        loops = trainer.fit_loop.state_dict()
        progress = loops[f"{EPOCH_LOOP}batch_progress"]
        before_this = {**progress, "is_last_batch": False, "current": {**progress["current"], "ready": progress["current"]["completed"]}}
        state = {
            "model": module.state_dict(), "optimizers": [each.state_dict() for each in trainer.optimizers],
            "schedulers": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs], "precision": trainer.precision_plugin.state_dict(),
            "loops": {**loops, f"{EPOCH_LOOP}batch_progress": before_this}, "batch_progress": progress,
            "callbacks": {each.state_key: without_tensors(held) for each in trainer.callbacks if (held := each.state_dict())},
            "datamodule": trainer.datamodule.state_dict() if trainer.datamodule is not None else {}, "random": random_state(),
            "epoch": trainer.current_epoch, "batches": batches, "drawn_from": [each.drawn_from for each in self._orders],
        }  # fmt: skip
        try:
            self._memory.save({self._fit: state}, self._stepped, data_position={"epoch": trainer.current_epoch, "batch": batches})
        except TypeError as error:
            _log.warning("no checkpoints in memory, the training goes on without: %s", error)
            self._release()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        self._release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._release()

    def _release(self) -> None:
        self._unwrap()
        self._unwrap = lambda: None
        memory, self._memory, self._found, self._orders = self._memory, None, None, []
        if memory is not None:
            memory.close()
