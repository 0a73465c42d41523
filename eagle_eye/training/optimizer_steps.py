"""Steps of a script that marks none: from one step of its optimizer to the next, with their data, forward, backward, communication and optimizer phases.

A loop of torch calls three things, whatever framework is around it: `DataLoader`'s iterator, `torch.autograd.backward` and `Optimizer.step`. The
third has hooks for everybody (torch.optim.optimizer.register_optimizer_step_pre_hook), around the other two a function is put, and one around
`Work.wait`, by which a collective of `torch.distributed` waits for others; what waits behind the last gradient is seen, too (last_gradient.py). Nothing
here raises into the script, and everything that it calls is called as before. A script that begins a step itself is left alone from then on.
"""

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from .last_gradient import LastGradient
from .probe import Monitor

_log = logging.getLogger("eagle_eye.probe")
VARIABLE = "EAGLE_EYE_STEPS_FROM"
OPTIMIZER = "optimizer"
"""Its value that asks for this."""
OTHERS = 3
"""Backward passes behind which another optimizer has stepped, and the leading one not once, after which the other leads: the first is not used any more.

Several optimizers that step behind one pass, or each behind its own, are parts of one step, however many they are.
"""


def begin(monitor: Monitor, environment: Mapping[str, str]) -> None:
    """Watch this process's loop, as soon as torch is imported; without EAGLE_EYE_STEPS_FROM=optimizer or a ring, do nothing."""
    if environment.get(VARIABLE) != OPTIMIZER or not monitor.watched:
        return
    steps = OptimizerSteps(monitor)
    if "torch" in sys.modules:
        steps.install()
    else:
        sys.meta_path.insert(0, _AfterImport("torch", steps.install))


class _Uses(NamedTuple):
    """Steps of an optimizer that does not lead."""

    passes: int
    newest: int
    """Number of the pass behind which it stepped last."""


class OptimizerSteps:
    """Marks the steps of the thread that trains."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._number = -1
        """Of the step that we have begun."""
        self._thread = 0
        self._leader: Callable[[], object] = lambda: None
        """Gives the optimizer whose steps are counted, None where it is gone: held weakly, and its id may be the next one's."""
        self._passes = 0
        """Backward passes and batches that the training thread has begun."""
        self._others: weakref.WeakKeyDictionary[object, _Uses] = weakref.WeakKeyDictionary()
        """Optimizers that have stepped since the leading one did."""
        self._ending = LastGradient(self._last_gradient)
        self._over = self._backward = False
        """The script is left alone; it is in a backward pass that is marked."""

    def install(self) -> None:
        """Put the functions around torch's, for the life of the process. Never raises."""
        try:
            from torch import autograd
            from torch.optim import optimizer
            from torch.utils.data import dataloader

            optimizer.register_optimizer_step_pre_hook(self._before_step)
            self._monitor.watch_updates()  # behind the other: a step begins and its optimizer is known before
            optimizer.register_optimizer_step_post_hook(self._after_step)
            autograd.backward = self._watched_backward(autograd.backward)
            iterator: Any = dataloader._BaseDataLoaderIter
            iterator.__next__ = self._loading(iterator.__next__)
            self._watch_collectives()
            atexit.register(self._monitor.stop)  # the loop is over: what the script does not do is no hang
        except Exception:  # noqa: BLE001 - another torch: the script runs on unwatched
            self._over = True
            _log.warning("eagle-eye: this torch has other parts than expected: steps are not counted", exc_info=True)

    def _loading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; while it runs the loop is in `data`, and behind it, with what it has returned, in `forward`."""

        @functools.wraps(function)
        def marked(*arguments: Any, **named: Any) -> Any:
            if self._over or not self._enter("data"):
                return function(*arguments, **named)
            try:
                batch = function(*arguments, **named)
                self._monitor.batch(batch)
                return batch
            finally:
                self._monitor.mark("forward")

        return marked

    def _watched_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; behind the last gradient the step is in `communication`, as what is left waits for others, and behind it in `forward`.

        A backward pass within one (checkpoints that compute again) is a part of that.
        """

        @functools.wraps(backward)
        def marked(*arguments: Any, **named: Any) -> Any:
            if self._over or self._backward or not self._enter("backward"):
                return backward(*arguments, **named)
            hook = self._ending.watch(arguments[0] if arguments else named.get("tensors"))
            self._backward = True
            try:
                return backward(*arguments, **named)
            finally:
                self._backward = False
                if hook is not None:
                    hook.remove()
                self._monitor.mark("forward")

        return marked

    def _last_gradient(self) -> None:
        """Whoever runs the backward pass waits for this, and marks nothing meanwhile."""
        if self._backward and not self._over and self._number == self._monitor.step:
            self._monitor.mark("communication")

    def _watch_collectives(self) -> None:
        """The collectives themselves stay as they are: torch.compile knows them by their identity."""
        from torch import distributed

        if distributed.is_available():
            work: Any = distributed.Work
            work.wait = self._communicating(work.wait)

    def _communicating(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; while it runs the step is in `communication`, and behind it in the phase before."""

        @functools.wraps(wait)
        def marked(*arguments: Any, **named: Any) -> Any:
            if not self._in_step():
                return wait(*arguments, **named)
            with self._monitor.wait():
                return wait(*arguments, **named)

        return marked

    def _in_step(self) -> bool:
        return not self._over and 0 <= self._number == self._monitor.step and self._thread == threading.get_ident()

    def _enter(self, phase: str) -> bool:
        """False where nothing is to be marked: another thread, or a script that marks its steps itself."""
        if self._monitor.step != self._number:
            self._over = True
            return False
        if self._number < 0:
            if phase == "data":  # of an evaluation before the training, it may be
                return False
            self._thread, self._number = threading.get_ident(), 0
            self._monitor.begin(0)
        if self._thread != threading.get_ident():
            return False
        self._passes += phase != OPTIMIZER
        self._monitor.mark(phase)
        return True

    def _before_step(self, optimizer: object, _arguments: object, _named: object) -> None:
        if not self._over and self._enter(OPTIMIZER):
            self._follow(optimizer)

    def _after_step(self, optimizer: object, _arguments: object, _named: object) -> None:
        if not self._in_step():
            return
        if optimizer is self._leader():
            self._monitor.end()
            self._number += 1
            self._monitor.begin(self._number)
        self._monitor.mark("forward")

    def _follow(self, optimizer: object) -> None:
        """Of several optimizers the first one counts, as long as it is used."""
        leader = self._leader()
        if leader is None or (optimizer is not leader and self._used(optimizer) > OTHERS):
            self._leader = weakref.ref(optimizer)
            self._monitor.found_replicas(self._parameters)
        if optimizer is self._leader():
            self._others.clear()

    def _used(self, optimizer: object) -> int:
        """Passes behind which this one has stepped since the leading one did."""
        uses = self._others.get(optimizer, _Uses(0, -1))
        if uses.newest != self._passes:
            uses = self._others[optimizer] = _Uses(uses.passes + 1, self._passes)
        return uses.passes

    def _parameters(self) -> Iterator[object]:
        """What the leading optimizer updates."""
        leader: Any = self._leader()
        for group in leader.param_groups if leader is not None else ():
            yield from group["params"]


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls a function once a module is imported, and is gone before."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._loader: Any = None

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:  # noqa: ARG002
        """Of the module that is waited for: as everybody else finds it, with a loader that is ours."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        found: importlib.machinery.ModuleSpec | None = importlib.util.find_spec(fullname)
        if found is not None:
            self._loader, found.loader = found.loader, self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()
