"""A worker's line to its launcher, for its whole life: epochs come in, what the worker holds goes out.

The thread of the session answers a fence even while the main thread is stuck in a collective or hangs in Python, in
this order and under one lock: what the worker holds is taken down, entering the commit of an older epoch is barred,
the group in use is cut, the answer is sent. So what was answered stays true: no step is finished behind its back.
The words are those of eagle_eye.training.messages.
"""

import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from eagle_eye.errors import ElasticError, Ended, Fenced, FencedOut, Halted, LauncherLost, WireError
from eagle_eye.training import messages

PHASES = ("starting", "computing", "reducing", "committing", "applying", "idle")
_ENTERED = ("committing", "applying")
_CLOSED = "this worker has closed its session"


@dataclass(frozen=True, slots=True)
class Holding:
    """What a worker holds at a moment."""

    step: int
    """Number of the first step still to do that its state is for."""
    done: tuple[int, ...] = ()
    """Micro-batches of that step whose gradients it has, or is about to have."""
    segments: tuple[int, ...] = ()
    """Segments of the summed gradient it has; all of them in the phases committing and applying."""
    phase: str = "starting"
    """One of PHASES."""
    fresh: bool = True
    """The state is but the initial one: worth nothing if anybody holds more."""


@dataclass(frozen=True, slots=True)
class Regroup:
    """A new epoch as one worker is told it: who is in it, and how the step in flight goes on."""

    epoch: int
    rank: int
    world: int
    workers: tuple[str, ...]
    """Names, by rank."""
    step: int
    """The step that the new group works on first."""
    current: tuple[tuple[int, ...], ...]
    """Micro-batches that each rank contributes to that step; it computes those of them that it has not done."""
    shares: tuple[tuple[int, ...], ...]
    """Micro-batches of each rank in the steps after it."""
    finish: tuple[int, ...] = ()
    """If not empty: which rank has each segment of the sum; nothing is computed again."""
    moves: tuple[tuple[int, int, int], ...] = ()
    """(giver's rank, taker's rank, layer): state that goes from one to another before the step."""
    source: str = ""
    """"checkpoint" if nobody holds state: everybody loads the newest one, or begins anew where there is none."""
    resume_step: int = 0
    """Step of the checkpoint that is to be loaded, where the launcher knows it."""


class Cuttable(Protocol):
    """What the session needs of a group."""

    @property
    def epoch(self) -> int: ...

    def cut(self) -> None: ...

    def close(self) -> None: ...


class Orders(Protocol):
    """What forming a group needs of a session."""

    def check(self, epoch: int) -> None: ...

    def watch(self, notice: Callable[[], None]) -> Callable[[], None]: ...

    def ask(self, epoch: int, timeout_s: float, **question: Any) -> messages.Message: ...
