"""transformers.Trainer with checkpoints in memory: a worker's successor goes on from the step that its predecessor was at.

    from transformers import Trainer
    from eagle_eye.training.integrations.transformers_checkpoints import MemoryCheckpointTrainer

    class MyTrainer(MemoryCheckpointTrainer, Trainer): ...      # or any class derived from Trainer

    MyTrainer(model=model, args=arguments, train_dataset=dataset).train()

Before each step the state goes to memory beside that step: model, optimizer, scheduler, scaler, random generators, TrainerState and the states of callbacks.
`train` goes on from there where that is newer than the checkpoint that it is given, in the way in which the Trainer itself resumes: it skips the data that were
trained on. Checkpoints on disk stay the Trainer's own. Without a launcher nothing is kept and nothing is loaded.
"""

import dataclasses
import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint, has_length

from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.random_state import random_state, restore_random_state

TRAINER_STATE = "trainer_state.json"
"""As the Trainer names it in a folder that it resumes from."""
STATE_BYTES = 1 << 16
"""TrainerState in memory takes so much from the first step on, so that the memory is reserved once: the oldest entries of its log are left out."""
_trainings = itertools.count(1)
"""Of this process. The second training of a script does not go on from what the first one kept."""
_log = logging.getLogger("eagle_eye.checkpoint")


class MemoryCheckpointTrainer:
    """Put it before the Trainer class. `memory_every`: so many steps are between two that are kept."""

    if TYPE_CHECKING:
        add_callback: Callable[[Any], None]
        remove_callback: Callable[[Any], None]
        accelerator: Any
        args: Any
        callback_handler: Any
        control: Any
        is_deepspeed_enabled: bool
        is_fsdp_enabled: bool
        lr_scheduler: Any
        model: Any
        model_init: Any
        optimizer: Any
        state: TrainerState

    def __init__(self, *arguments: Any, memory_every: int = 1, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._memory_every = memory_every
        self._found: dict[str, Any] | None = None
        """What the training that is under way goes on from, of memory."""
        self._folder = ""
        """Which the Trainer takes for the checkpoint that it resumes from."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **named: Any) -> Any:
        """As Trainer's."""
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            _log.warning("no checkpoints in memory: with DeepSpeed or FSDP the Trainer does not hold the state itself; its own checkpoints decide")
            return self._train(resume_from_checkpoint, *arguments, **named)
        memory = MemoryCheckpoints()
        saves = _SavesToMemory(self, memory, self._memory_every)
        self.add_callback(saves)
        try:
            template = {} if self.model_init else {"model": self.model.state_dict()}
            found = memory.load({saves.name: template}, at_least=_step_of(resume_from_checkpoint, self.args.output_dir) + 1)
            with tempfile.TemporaryDirectory(prefix="eagle-eye-") as folder:
                if found is not None:
                    self._found, self._folder, resume_from_checkpoint = found.state[saves.name], folder, folder
                    Path(folder, TRAINER_STATE).write_text(self._found["trainer"])
                return self._train(resume_from_checkpoint, *arguments, **named)
        finally:
            self._found, self._folder = None, ""
            self.remove_callback(saves)
            memory.close()

    def _train(self, *arguments: Any, **named: Any) -> Any:
        return super().train(*arguments, **named)  # type: ignore[misc]  # the Trainer's

    def memory_state(self) -> dict[str, Any]:
        """What is kept, but for the random generators."""
        scaler = getattr(self.accelerator, "scaler", None)
        return {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "scheduler": self.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None, "trainer": _text_of(self.state, [*self.callback_handler.callbacks, self.control]),
        }  # fmt: skip

    # --- what the Trainer calls when it resumes from a folder

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        found = self._from_memory(resume_from_checkpoint)
        if found is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        elif self.model_init:  # else its tensors were filled
            (self.model if model is None else model).load_state_dict(found["model"])

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        found = self._from_memory(checkpoint)
        if found is None:
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        else:
            self.optimizer.load_state_dict(found["optimizer"])
            self.lr_scheduler.load_state_dict(found["scheduler"])

    def _load_scaler(self, checkpoint: str | None) -> None:
        found = self._from_memory(checkpoint)
        if found is None:
            super()._load_scaler(checkpoint)  # type: ignore[misc]
        elif found["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(found["scaler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        found = self._from_memory(checkpoint)
        if found is None:
            super()._load_rng_state(checkpoint)  # type: ignore[misc]
        else:
            restore_random_state(found["random"])
            self._found = None  # the last that is asked for: its memory is needed no longer

    def _from_memory(self, folder: str | None) -> dict[str, Any] | None:
        return self._found if folder == self._folder else None


class _SavesToMemory(TrainerCallback):  # type: ignore[misc]  # of another package, which is not looked into
    """The state before a step is kept, when logs, evaluation and the Trainer's own checkpoint of the step before are done."""

    def __init__(self, trainer: MemoryCheckpointTrainer, memory: MemoryCheckpoints, every: int) -> None:
        self._trainer, self._memory, self._every = trainer, memory, every
        self.name = f"training {next(_trainings)}"
        """Of the state in memory."""
        self._refused = False
        self._epoch_begins: dict[str, Any] | None = None
        """Random generators before the data of an epoch were asked for: that is where the Trainer puts them back."""

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002 - as transformers calls it, here and below
        self._memory.guard([getattr(optimizer, "optimizer", optimizer)])

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._epoch_begins = random_state()

    def on_step_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:  # noqa: ARG002
        generators, self._epoch_begins = self._epoch_begins, None
        if self._refused or state.global_step % self._every or not self._memory.has_place:
            return
        try:
            kept = {**self._trainer.memory_state(), "random": generators or random_state()}
            self._memory.save({self.name: kept}, state.global_step, data_position=_data_position(args, state, train_dataloader))
        except TypeError as error:
            self._refused = True
            _log.warning("no checkpoints in memory, the training goes on without: %s", error)


def _text_of(state: TrainerState, holders: Sequence[Any]) -> str:
    """A TrainerState as the Trainer writes it to a file, always equally long. Raises TypeError for what JSON cannot hold."""
    plain = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    states: dict[str, Any] = {}
    for holder in holders:
        if isinstance(holder, ExportableState):
            states.setdefault(type(holder).__name__, []).append(holder.state())
    plain |= {"stateful_callbacks": {name: each if len(each) > 1 else each[0] for name, each in states.items()}, "log_history": []}
    left = STATE_BYTES - len(json.dumps(plain))
    for entry in reversed(state.log_history):
        left -= len(json.dumps(entry)) + 2
        if left < 0:
            break
        plain["log_history"].insert(0, entry)
    return json.dumps(plain).ljust(STATE_BYTES)


def _data_position(arguments: Any, state: TrainerState, loader: Any) -> dict[str, int]:
    """How many batches of which epoch were trained on. The Trainer counts epochs in parts, and a stream without a length as one."""
    batches = len(loader) if has_length(loader) else state.max_steps * arguments.gradient_accumulation_steps
    epoch, part = divmod(state.epoch or 0.0, 1.0)
    return {"epoch": int(epoch), "batch": round(part * batches)}


def _step_of(resume_from_checkpoint: str | bool | None, output_dir: str) -> int:
    """Of the checkpoint on disk that the Trainer would resume from; -1 without one."""
    folder = get_last_checkpoint(output_dir) if resume_from_checkpoint is True and Path(output_dir).is_dir() else resume_from_checkpoint
    if not isinstance(folder, str) or not Path(folder, TRAINER_STATE).is_file():
        return -1
    return int(TrainerState.load_from_json(str(Path(folder, TRAINER_STATE))).global_step)
