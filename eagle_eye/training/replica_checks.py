"""What a worker's replicas are compared by: digests of the parameters and of the exchanged gradients, the look at its own gradients, and a step that is run again.

The probe holds one of these once a script has said `monitor.replicas`, or an integration has found the model. Each of the parts goes on or ends by itself: an error ends that part alone.
"""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import gradient_check, replica_digest, step_replay
from .gradient_check import GradientChecks
from .replica_digest import DigestSchedule, Tensors
from .step_replay import StepReplay

Replicated = Iterable[Any] | Tensors
"""A module, its parameters, or a function that gives them."""


class ReplicaChecks:
    """Of one worker's model. `fault` is called with what goes wrong; nothing here raises but what `fault` raises."""

    def __init__(self, model: Replicated, replay: Callable[[], Any] | None, clock_ns: Callable[[], int], fault: Callable[[Exception], None]) -> None:
        tensors = tensors_of(model)
        self._fault = fault
        self._gradients = GradientChecks(tensors(), clock_ns) if os.environ.get(gradient_check.VARIABLE) != "0" else None
        self._digests = DigestSchedule(tensors, clock_ns) if os.environ.get(replica_digest.VARIABLE) != "0" else None
        self._replay = StepReplay(model, replay, clock_ns) if replay is not None and os.environ.get(step_replay.VARIABLE) != "0" else None

    def before_update(self, number: int, optimizer: Any) -> Mapping[str, Any]:
        """Values of the step, before that optimizer writes."""
        try:
            found = None if self._digests is None else self._digests.before_update(number, optimizer)
        except Exception as error:  # noqa: BLE001 - it is called within the script's step of its optimizer
            self._digests = None
            self._fault(error)
            return {}
        return {} if found is None else {replica_digest.OF_GRADIENTS: found}

    def behind(self, number: int, step_s: float) -> Mapping[str, Any]:
        """Values of the step that has taken so long."""
        values: dict[str, Any] = {}
        try:
            if self._digests is not None:
                values[replica_digest.VALUE] = self._digests.behind(number, step_s)
        except Exception as error:  # noqa: BLE001 - no others are taken: each may have cost a device's time
            self._digests = None
            self._fault(error)
        try:
            if self._gradients is not None:
                values[gradient_check.VALUE] = self._gradients.end(number, step_s)
        except Exception as error:  # noqa: BLE001 - the same
            self._gradients = None
            self._fault(error)
        if self._replay is not None:
            values[step_replay.VALUE] = self._replay.behind(step_s)
        return {name: value for name, value in values.items() if value is not None}

    def replay_due(self, number: int) -> bool:
        """A step is to be run again behind the one of that number."""
        return self._replay is not None and self._replay.due(number)

    def replay(self, number: int) -> None:
        """Run it again. The record of that step is stored: it is told with the next one."""
        if self._replay is not None:
            self._replay.run(number)

    def tell_gradient(self, step: int, place: float) -> None:
        """A step's record holds a gradient that is no number."""
        if self._gradients is not None:
            self._gradients.tell(step, place)

    def stop(self) -> None:
        """Others are compared from here on, or none."""
        if self._gradients is not None:
            self._gradients.stop()
        self._gradients = self._digests = self._replay = None


def tensors_of(model: Replicated) -> Tensors:
    """A module is not kept alive by it."""
    parameters: Any = getattr(model, "parameters", None)
    if parameters is not None:
        held = weakref.ref(model)
        return lambda: _parameters(held())
    if callable(model):
        return model
    kept = list(model)
    return lambda: kept


def _parameters(model: Any) -> Iterable[Any]:
    return () if model is None else model.parameters()


def watch_updates(before_update: Callable[[Any], object]) -> Any:
    """Have it called with any optimizer of torch that is about to write. Not to be called from within such a call. Gives what ends it, None without torch."""
    try:
        from torch.optim import optimizer

        return optimizer.register_optimizer_step_pre_hook(lambda stepping, *_: before_update(stepping))
    except ImportError:
        return None


@contextlib.contextmanager
def quiet(owner: object, names: tuple[str, ...]) -> Iterator[None]:
    """These methods of it do nothing meanwhile."""
    own = vars(owner)
    before = {name: own[name] for name in names if name in own}
    own.update(dict.fromkeys(names, _nothing))
    try:
        yield
    finally:
        for name in names:
            del own[name]
        own.update(before)


def _nothing(*_: object, **__: object) -> None:
    """In place of a method."""
