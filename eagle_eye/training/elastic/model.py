"""The model that is trained, and the two operations on it: run one micro-batch, apply one update.

    trained = TrainedModel(layers, loss=loss_of, batch=batch_of, optimizer=lambda parameters: AdamW(parameters, lr=1e-3))
    loss, tokens = trained.run(step, micro_batch)
    trained.apply(mean_gradient)

A micro-batch gives the same gradients on every worker: its data are a function of its step and number, and torch's
random numbers (dropout) are seeded from them, too. An update does the same to every worker's state. Both hold bit by
bit as far as torch's own operations do: the same number of threads everywhere (`torch.set_num_threads`), the same
kind of processor; on a GPU `torch.use_deterministic_algorithms(True)`.

The user chooses how the optimizer computes: `foreach` and `fused` give other bits than plain loops, hence the choice
must be the same everywhere, and where a plain reference is to be met bit by bit, the same as in the reference.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from eagle_eye.errors import ConfigError

from .precision import prepare_precision, refresh, to_device

if TYPE_CHECKING:
    from torch.optim import Optimizer

LossFunction = Callable[[Any, Any], Tensor]
"""loss(output, target) → mean over the micro-batch, a scalar."""
BatchFunction = Callable[[int, int], tuple[Any, Any]]
"""batch(step, micro_batch) → (input, target), the same on every worker."""


class Trainable(Protocol):
    """What an elastic worker asks of the model that it trains: `TrainedModel`, or a framework's trainer in its place."""

    @property
    def layers(self) -> "list[nn.Module]":
        """They own all parameters and buffers; state is transferred layer by layer."""

    @property
    def parameters(self) -> "list[nn.Parameter]":
        """Those that are trained, each once, in the same order everywhere."""

    @property
    def masters(self) -> "Mapping[Tensor, Tensor]":
        """Of a parameter of lower precision: the fp32 tensor that the optimizer updates in its place."""

    @property
    def optimizer(self) -> "Optimizer": ...

    @property
    def scheduler(self) -> Any:
        """Something with state_dict and load_state_dict, or None."""

    @property
    def device(self) -> "torch.device": ...

    def run(self, step: int, micro_batch: int) -> tuple[float, int]:
        """Add the gradients of one micro-batch to the parameters' `.grad`; its mean loss and number of tokens."""

    def apply(self, gradient: "Tensor", /) -> float:
        """Make the update by the mean gradient: flat fp32, in the order of `parameters`. Returns the gradient's norm, or nan."""

    def refresh(self) -> None:
        """Called when the state came from another worker or a checkpoint."""


class TrainedModel:
    """Layers, loss, data, optimizer and scheduler of one worker.

    `layers`: modules that are applied one after another, or one module; an `nn.Sequential` counts as its parts.
    `optimizer(parameters)`, `scheduler(optimizer)`: how to make them; a scheduler's step() is called without an
    argument after each update. `clip`: the norm to which the mean gradient is clipped. `precision`: "fp32", or "bf16" (the model
    in bfloat16, the optimizer on fp32 masters of its parameters, gradients added up in fp32). `tokens(input, target)`:
    how many a micro-batch has; by default the number of elements of the target.

    Weights that layers share count once, in the first. A parameter that no micro-batch gave a gradient has gradient
    zero, not none. Raises ConfigError for layers whose state depends on who computes (running statistics).
    """

    def __init__(
        self,
        layers: nn.Module | Iterable[nn.Module],
        *,
        loss: LossFunction,
        batch: BatchFunction,
        optimizer: "Callable[[list[nn.Parameter]], Optimizer]",
        scheduler: "Callable[[Optimizer], Any] | None" = None,
        clip: float | None = None,
        precision: str = "fp32",
        seed: int = 0,
        tokens: Callable[[Any, Any], int] | None = None,
    ) -> None:
        self.layers = _layers_of(layers)
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip={clip}: give the norm to clip the gradient to, above 0, or None")
        _refuse_running_statistics(self.layers)
        self.parameters, self.masters = prepare_precision(self.layers, precision)
        """The trained parameters, each once; and, in bf16, the fp32 tensor that the optimizer updates in place of each."""
        self.device = self.parameters[0].device
        self.clip, self.seed = clip, seed
        self.optimizer = optimizer(self.updated_parameters)
        self.scheduler = scheduler(self.optimizer) if scheduler is not None else None
        self._dtype = self.parameters[0].dtype
        self._loss, self._batch, self._tokens = loss, batch, tokens or _elements_of_target

    @property
    def updated_parameters(self) -> list[nn.Parameter]:
        """The fp32 tensors that the optimizer updates: masters, or the parameters themselves."""
        return [self.masters.get(parameter, parameter) for parameter in self.parameters]

    def run(self, step: int, micro_batch: int) -> tuple[float, int]:
        """Forward and backward of one micro-batch: its mean loss and the number of its tokens.

        Gradients are added to the parameters' `.grad`. What the user's functions raise passes through.
        """
        _seed(self.device, seed_of(self.seed, step, micro_batch))
        given, target = self._batch(step, micro_batch)
        output = to_device(given, self.device, self._dtype)
        target = to_device(target, self.device)
        with torch.enable_grad():
            for layer in self.layers:
                output = layer(output)
            loss = self._loss(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ConfigError(f"loss(output, target) gave {_described(loss)}: give the micro-batch's mean loss, a tensor of one element")
        loss.backward()
        return float(loss.detach()), self._tokens(given, target)

    def apply(self, gradient: Tensor) -> float:
        """Update parameters, optimizer and scheduler by the mean gradient over all micro-batches.

        `gradient`: flat fp32, in the order of `parameters`; it is scaled in place where it is clipped. Returns its
        norm before that, nan without clipping.
        """
        updated = self.updated_parameters
        parts = gradient.split([parameter.numel() for parameter in updated])
        for parameter, part in zip(updated, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        norm = math.nan if self.clip is None else float(nn.utils.clip_grad_norm_(updated, self.clip))
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        for parameter in updated:
            parameter.grad = None
        self.refresh()
        return norm

    def refresh(self) -> None:
        """Set the parameters to the rounded values of their masters, after an update or a state transfer."""
        refresh(self.masters)


def seed_of(seed: int, step: int, micro_batch: int) -> int:
    """Of torch's random numbers in one micro-batch: 63 bits that have nothing in common with its neighbours'."""
    content = f"{seed}/{step}/{micro_batch}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


def _seed(device: torch.device, seed: int) -> None:
    """What torch.manual_seed does for the model's device; that one formats a stack trace for each kind of device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _layers_of(layers: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    single = isinstance(layers, nn.Module) and not isinstance(layers, nn.Sequential | nn.ModuleList)
    found: list[Any] = [layers] if single else list(layers)
    others = [type(layer).__name__ for layer in found if not isinstance(layer, nn.Module)]
    if others or not found:
        raise ConfigError(f"`layers` holds {', '.join(others) or 'nothing'}: give a torch module or a list of them")
    return found


def _refuse_running_statistics(layers: Sequence[nn.Module]) -> None:
    for index, layer in enumerate(layers):
        for name, module in layer.named_modules():
            if getattr(module, "track_running_stats", False) and module.training:
                raise ConfigError(
                    f"layer {index}: {name or 'it'} is a {type(module).__name__} with running statistics, which depend on "
                    "who computes which micro-batch: use LayerNorm or GroupNorm, track_running_stats=False, or eval()"
                )


def _elements_of_target(_: Any, target: Any) -> int:
    return int(target.numel()) if isinstance(target, Tensor) else 0


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
