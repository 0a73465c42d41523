"""A network of one hidden layer: trained by torch in the process that fits, stored as plain numbers, evaluated in numpy.

torch may be missing on a server: then there is none, and the detectors judge by the statistics that need none.
"""

import logging
import time
from typing import Any

import msgspec
import numpy as np

from eagle_eye.types import Doubles

from .node_metrics import LARGEST

log = logging.getLogger(__name__)

UNITS = 16
LIMIT_S = 8.0
"""Of training, on one processor."""
ROUNDS, BATCH, RATE, DECAY = 200, 256, 3e-3, 1e-4
PATIENCE = 10
"""Rounds without a better forecast of what is not trained on."""
WATCHED = 0.15
"""Share of the samples, the newest, by which training is ended."""
SQUEEZED = 3.0
"""Deviations up to which an input counts in full; beyond by its logarithm."""
WIDEST = 1024
"""Units, at most, of one that comes over the stream."""


class HiddenLayer(msgspec.Struct, frozen=True):
    """As it is stored, in msgpack."""

    inward: list[list[float]]
    """Metrics × units."""
    bias: list[float]
    outward: list[list[float]]
    """Units × what is forecast."""

    def forecast(self, standard: Doubles) -> Doubles:
        """Samples × metrics, in deviations → what it tells of each."""
        added: Doubles = np.tanh(squeezed(standard) @ np.array(self.inward) + np.array(self.bias)) @ np.array(self.outward)
        return added


def squeezed(standard: Doubles) -> Doubles:
    """What is far off does not rule the sums."""
    far: Doubles = np.sign(standard) * (SQUEEZED + np.log1p(np.maximum(np.abs(standard) - SQUEEZED, 0.0)))
    return np.where(np.abs(standard) > SQUEEZED, far, standard)


def checked_layer(layer: HiddenLayer, count: int) -> HiddenLayer:
    """Raises ValueError for one that no learner of ours makes."""
    units = len(layer.bias)
    if not 0 < units <= WIDEST or len(layer.inward) != count or len(layer.outward) != units or {len(row) for row in layer.inward} != {units} or {len(row) for row in layer.outward} != {count}:
        raise ValueError("its hidden layer is of another size")
    if not all((np.abs(np.array(each)) < LARGEST).all() for each in (layer.inward, layer.bias, layer.outward)):
        raise ValueError("the weights of its hidden layer are no numbers")
    return layer


def trained(inputs: Doubles, wanted: Doubles, units: int = UNITS, seed: int = 0) -> HiddenLayer | None:
    """Samples × metrics, oldest first, and what is to be told of each; None without torch. The same samples give the same layer, unless the time is over."""
    torch = _torch()
    if torch is None:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        given, told = (torch.tensor(squeezed(each), dtype=torch.float32) for each in (inputs, wanted))
        return _descended(torch, given, told, units)


def _descended(torch: Any, given: Any, wanted: Any, units: int) -> HiddenLayer:
    """Until what is not trained on is not told better any more."""
    cut, loss = int(len(given) * (1.0 - WATCHED)), torch.nn.functional.smooth_l1_loss
    inward, outward = torch.nn.Linear(given.shape[1], units), torch.nn.Linear(units, wanted.shape[1], bias=False)
    torch.nn.init.zeros_(outward.weight)
    both = torch.nn.Sequential(inward, torch.nn.Tanh(), outward)
    steps = torch.optim.AdamW(both.parameters(), lr=RATE, weight_decay=DECAY)
    until, best, kept, worse = time.monotonic() + LIMIT_S, float("inf"), _layer(inward, outward), 0
    for _ in range(ROUNDS):
        for chosen in torch.randperm(cut).split(BATCH):
            steps.zero_grad()
            loss(both(given[chosen]), wanted[chosen]).backward()
            steps.step()
            if time.monotonic() > until:
                break
        with torch.no_grad():
            error = float(loss(both(given[cut:]), wanted[cut:]))
        kept, worse = (_layer(inward, outward), 0) if error < best else (kept, worse + 1)
        best = min(best, error)
        if worse >= PATIENCE or time.monotonic() > until:
            break
    return kept


def _layer(inward: Any, outward: Any) -> HiddenLayer:
    return HiddenLayer(inward.weight.detach().T.tolist(), inward.bias.detach().tolist(), outward.weight.detach().T.tolist())


def _torch() -> Any:
    """None, and one line in the log, where it is not installed."""
    try:
        import torch
    except ImportError:
        log.info("torch is not installed: no network is trained, and the statistics that need none are used")
        return None
    torch.set_num_threads(1)
    return torch
