"""Steps of a framework's loop as the probe's: one for each update of the optimizer, of however many micro-batches, with what they tell."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eagle_eye.training.fault_drills import AcceleratorError
from eagle_eye.training.last_gradient import LastGradient
from eagle_eye.training.probe import Monitor

_log = logging.getLogger("eagle_eye.probe")
SHARDED = ("device_mesh", "ds_id", "_is_flat_param")
"""What parameters have of which a rank holds a part: DTensor's, DeepSpeed's, those of FSDP's first version."""
LENGTH = "sequence_length"
"""Of a step that of its longest sequence; all other counts are sums."""
DEPTH = 3
"""So far into a batch its first tensor is looked for."""

CountsOf = Callable[[Any], Mapping[str, float]]
"""A micro-batch → what it counts: samples, tokens, sequence_length."""


class TrainingSteps:
    """Called by an integration's hooks, from the thread that trains. Nothing here raises: what cannot be read of a batch is left out."""

    def __init__(self, monitor: Monitor, counts_of: CountsOf) -> None:
        self._monitor = monitor
        self._counts_of = counts_of
        self._number = -1
        self._parameters = 0
        self._ending = LastGradient(lambda: monitor.mark("communication"), lambda: monitor.mark("backward"))
        self._counts: dict[str, float] = {}
        self._loss: Any = None
        self._losses = 0

    def start(self, number: int, model: Any = None) -> None:
        """The loop begins, or goes on, with this step. `model`: whose operations are told, six for each parameter and token, and whose replicas are compared."""
        self._number = number
        if model is not None and self._monitor.watched:
            self._attempt(lambda: self._measure(model))
            self._monitor.found_replicas(model)
        self._begin()

    def micro_batch(self, batch: Any) -> None:
        """It has come: its forward pass begins."""
        self._monitor.mark("forward")
        if self._monitor.watched:
            self._monitor.batch(batch)
            self._attempt(lambda: self._count(batch))

    def backward(self, tensors: Any) -> None:
        """The backward pass from these begins; behind its last gradient the step is in `communication`, while ranks wait for each other."""
        self._monitor.mark("backward")
        if self._monitor.watched:
            self._ending.watch(tensors)

    def loss(self, loss: Any) -> None:
        """Of a micro-batch; a step's is their mean. Of a tensor the value is kept, not its graph."""
        if self._monitor.watched and loss is not None:
            self._attempt(lambda: self._add(loss))

    def log(self, values_of: Callable[[], Mapping[str, Any]]) -> None:
        """What else there is to tell of the step that is under way."""
        if self._monitor.watched:
            self._attempt(lambda: self._monitor.log(**values_of()))

    def end_micro_batch(self, *, stepped: bool, then: str = "data") -> None:
        """`stepped`: the optimizer has made its update, the step is over. `then`: phase of what comes now; the next micro-batch is asked for."""
        if stepped:
            self._attempt(self._tell)
            self._monitor.end()
            self._number += 1
            self._begin()
        if then != "data" or not stepped:  # a step begins in that phase
            self._monitor.mark(then)

    @property
    def number(self) -> int:
        """Of the step that is under way, or would be the next."""
        return self._number

    def stop(self) -> None:
        """The loop is over; a step that was begun is not recorded."""
        self._monitor.stop()

    def _begin(self) -> None:
        self._counts, self._loss, self._losses = {}, None, 0
        self._monitor.begin(self._number)

    def _count(self, batch: Any) -> None:
        for name, value in self._counts_of(batch).items():
            before = self._counts.get(name, 0.0)
            self._counts[name] = max(before, value) if name == LENGTH else before + value

    def _add(self, loss: Any) -> None:
        value = loss.detach() if hasattr(loss, "detach") else loss
        self._loss = value if self._loss is None else self._loss + value
        self._losses += 1

    def _measure(self, model: Any) -> None:
        """Of one of which a part is trained, used or held here (adapters, experts, shards) another number is needed: nothing is told."""
        parameters = dict(model.named_parameters())
        whole = all(each.requires_grad and not any(hasattr(each, mark) for mark in SHARDED) and "expert" not in name for name, each in parameters.items())
        self._parameters = sum(each.numel() for each in parameters.values()) if whole else 0

    def _tell(self) -> None:
        self._monitor.log(**self._counts)
        if self._parameters and "tokens" in self._counts:
            self._monitor.log(flops=6.0 * self._parameters * self._counts["tokens"])
        if self._losses:
            self._monitor.log(loss=self._loss / self._losses)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except AcceleratorError:  # a drill: it is meant for the script
            raise
        except Exception:  # noqa: BLE001 - what a batch or a loss is made of is the script's affair, and no reason to end it
            _log.debug("values of a step were not read", exc_info=True)


def counts_of(batch: Any) -> dict[str, float]:
    """Samples: the first dimension of a batch's first tensor; tokens: the elements of its input_ids, if it has some, and sequence_length their last dimension."""
    found: dict[str, float] = {}
    tokens: Any = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if (count := getattr(tokens, "numel", None)) is not None:
        found["tokens"] = float(count())
        if len(tokens.shape) > 1:
            found[LENGTH] = float(tokens.shape[-1])
    first = tokens if found else _first_tensor(batch, DEPTH)
    if first is not None and len(first.shape):
        found["samples"] = float(first.shape[0])
    return found


def loss_scale(scaler: Any) -> dict[str, Any]:
    """Of a torch.amp.GradScaler, as the tensor that it keeps: its own get_scale would wait for the GPU. Nothing where there is none, or it has not begun."""
    scale = getattr(scaler, "_scale", None)
    return {} if scale is None else {"loss_scale": scale}


def _first_tensor(batch: Any, depth: int) -> Any:
    if hasattr(batch, "shape"):
        return batch
    if not depth or isinstance(batch, str | bytes):
        return None
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch if isinstance(batch, Sequence) else ()
    return next((found for part in parts[:DEPTH] if (found := _first_tensor(part, depth - 1)) is not None), None)
