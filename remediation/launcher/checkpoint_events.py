"""What workers say of their checkpoints, as events of the job: saved, refused by storage or memory, loaded."""

from collections.abc import Callable, Mapping

from eagle_eye.training import messages

from .event_log import EventLog

SAVED = ("step", "path", "finite")
UNSAVED = ("step", "path", "errno", "reason", "free_bytes", "needed_bytes", "attempt", "retry_s")
UNSAVED_IN_MEMORY = ("step", "path", "errno", "reason", "free_bytes", "needed_bytes", "safe_step", "retry_s")
REDUCED = ("path", "errno", "reason", "free_bytes", "needed_bytes", "slots", "wanted")
LOADED = ("step", "tier", "source", "why")
"""Fields of a worker's message that become attributes of checkpoint.saved, checkpoint.failed, checkpoint.memory_failed, checkpoint.memory_reduced and checkpoint.loaded."""


class CheckpointEvents:
    """Of the workers of one node."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self.stored: Callable[[int, int], object] = lambda *_: None
        """Called with the step of a checkpoint that is in storage, and the epoch in which it was made (0: it is not known)."""
        self.refused: Callable[[str, str, str, str], None] = lambda *_: None
        """Called with (worker, tier, reason, name of its file in memory): memory or storage has refused its checkpoint."""

    def take(self, worker: str, kind: str, message: messages.ProbeMessage) -> None:
        """A message of that worker; of another kind it says nothing of checkpoints."""
        if kind == "checkpoint":
            self._saved(worker, message)
        elif kind == "checkpoint_failed":
            told = self._emit("checkpoint.failed", worker, message, UNSAVED, "worker {worker} could not save the checkpoint of step {step} to {path}: {reason}")
            self.refused(worker, "storage", told["reason"], "")
        elif kind == "memory_checkpoint_failed":
            told = self._emit("checkpoint.memory_failed", worker, message, UNSAVED_IN_MEMORY, "worker {worker} has no checkpoint of step {step} in memory: {reason}")
            self.refused(worker, "memory", told["reason"], str(message.get("file", "")))
        elif kind == "memory_checkpoint_reduced":
            self._emit(
                "checkpoint.memory_reduced", worker, message, REDUCED,
                "the memory of worker {worker} holds {slots} copies of its state, not {wanted}: {reason}; what is on its way to another node, or to storage, gives way to saves",
            )  # fmt: skip
        elif kind == "memory_checkpoint_loaded":
            attributes = _attributes(worker, message, LOADED)
            self._event_log.of_job("checkpoint.loaded", loaded_message(worker, attributes), attributes)

    def _saved(self, worker: str, message: messages.ProbeMessage) -> None:
        told = self._emit("checkpoint.saved", worker, message, SAVED, "checkpoint of step {step}")
        if told["finite"] == "True":
            self.stored(step_of(told["step"]), max(0, step_of(str(message.get("epoch", "")))))

    def _emit(self, event: str, worker: str, message: messages.ProbeMessage, fields: tuple[str, ...], text: str) -> dict[str, str]:
        attributes = _attributes(worker, message, fields)
        self._event_log.of_job(event, text.format_map(attributes), attributes)
        return attributes


def _attributes(worker: str, message: messages.ProbeMessage, fields: tuple[str, ...]) -> dict[str, str]:
    return {name: str(message.get(name, "")) for name in fields} | {"worker": worker}


def loaded_message(worker: str, attributes: Mapping[str, str]) -> str:
    """Of checkpoint.loaded."""
    why = f": {attributes['why']}" if attributes["why"] else ""
    if step_of(attributes["step"]) < 0:
        return f"worker {worker} found no usable checkpoint in memory, here or on another node{why}"
    origin = {"neighbour": f"the copy on {attributes['source']}", "storage": "the copy in storage"}.get(attributes["tier"], "its own memory")
    return f"worker {worker} goes on from step {attributes['step']}, of {origin}{why}"


def step_of(text: str) -> int:
    """-1 where there is none."""
    return int(text) if text.isdecimal() else -1
