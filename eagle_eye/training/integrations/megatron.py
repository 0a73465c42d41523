"""Megatron-Core's timers as marks of the probe: an iteration is a step, with its phases, whatever level of timers is switched on.

    from eagle_eye.training.integrations.megatron import WatchedTimers

    config.timers = optimizer_config.timers = timers = WatchedTimers(timers)    # of a TransformerConfig, an OptimizerConfig and the loop

A step begins with the timer `forward-backward` and ends when that is started again after an optimizer's timer (`optimizer`, `optimizer-inner-step`, ...)
has run: what is logged, evaluated or saved in between belongs to it. Timers know no numbers: `eagle_eye.monitor().log(loss=..., grad_norm=..., tokens=...)`
after the optimizer's step. Without a launcher it does nothing but call the timers. It needs nothing of Megatron's package.
"""

import atexit
from typing import Any

from eagle_eye.training.phase_contexts import Phase
from eagle_eye.training.probe import Monitor, monitor

ITERATION = "forward-backward"
UPDATE = "optimizer"
"""What names of an optimizer's timers begin with."""
PHASES = {"batch-generator": "data", ITERATION: "forward", "forward-compute": "forward", "backward-compute": "backward"}
BEGINNINGS = {UPDATE: "optimizer", "eval": "evaluation", "save-checkpoint": "checkpoint", "load-checkpoint": "checkpoint"}
PARTS = ("-send", "-recv", "all-reduce", "all-gather", "-sync")
"""Of names of timers around communication."""


class WatchedTimers:
    """In the place of a `megatron.core.timers.Timers`, in the thread that trains."""

    def __init__(self, timers: Any, *, start: int = 0, watched_by: Monitor | None = None) -> None:
        """start: number of the first iteration. watched_by: another monitor than the process's own."""
        self._timers = timers
        self._monitor = monitor() if watched_by is None else watched_by
        self._number = start - 1
        self._in_step = self._updated = False
        self._open: dict[str, Phase] = {}
        """Timer that runs → the phase to go back to."""
        if self._monitor.watched:
            atexit.register(self.finish)

    def __call__(self, name: str, *arguments: Any, **named: Any) -> Any:
        """The timer of that name, as `Timers` gives it; its `start` and `stop` mark a phase besides."""
        timer = self._timers(name, *arguments, **named)
        return WatchedTimer(self, timer, name) if self._monitor.watched else timer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._timers, name)

    def __deepcopy__(self, _memo: object) -> "WatchedTimers":
        """The same: a copied config is of the same loop."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Stored with a config, they are the timers alone."""
        return _unwatched, (self._timers,)

    def finish(self) -> None:
        """The training is over; also called when the process ends."""
        self._end()
        self._monitor.stop()

    def started(self, name: str) -> None:
        """A timer was started."""
        if name == ITERATION and (self._updated or not self._in_step) and not self._evaluates:
            self._end()
            self._number += 1
            self._in_step = True
            self._monitor.begin(self._number)
        phase = phase_of(name)
        if phase:
            self._open[name] = self._monitor.phase(phase)
            self._open[name].__enter__()

    def stopped(self, name: str) -> None:
        """A timer was stopped."""
        before = self._open.pop(name, None)
        if before is not None:
            before.__exit__()
        if name.startswith(UPDATE):
            self._updated = True

    def communicate(self) -> Phase:
        """The other ranks are waited for."""
        return self._monitor.phase("communication")

    @property
    def _evaluates(self) -> bool:
        """Forward passes of an evaluation are no iterations."""
        return any(phase_of(name) == "evaluation" for name in self._open)

    def _end(self) -> None:
        if self._in_step and self._updated:
            self._monitor.end()
        self._in_step = self._updated = False


class WatchedTimer:
    """One timer; what is not here is the timer's own."""

    __slots__ = ("_name", "_timer", "_timers")

    def __init__(self, timers: WatchedTimers, timer: Any, name: str) -> None:
        self._timers, self._timer, self._name = timers, timer, name

    def start(self, barrier: bool = False) -> None:
        """As the timer's."""
        self._timers.started(self._name)
        self._call(self._timer.start, barrier)

    def stop(self, barrier: bool = False) -> None:
        """As the timer's."""
        try:
            self._call(self._timer.stop, barrier)
        finally:
            self._timers.stopped(self._name)

    def _call(self, act: Any, barrier: bool) -> None:
        if barrier:
            with self._timers.communicate():
                act(barrier=True)
        else:
            act()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


def _unwatched(timers: Any) -> Any:
    return timers


def phase_of(name: str) -> str:
    """Of a timer's name, '' for one that is around other things."""
    if name in PHASES:
        return PHASES[name]
    if any(part in name for part in PARTS):
        return "communication"
    return next((phase for beginning, phase in BEGINNINGS.items() if name.startswith(beginning)), "")
